#!/usr/bin/env bash
# Runs the commands of a new user on a minimal Debian in a folder, and prints the time of each: ./dev fresh. A machine
# is debootstrap's minbase in build/fresh/NAME, entered by chroot with separate namespaces. It gets only this machine's
# apt sources, apt settings, name resolution and proxies.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  cat <<'EOF'
usage: ./dev fresh [FORM...] [-R REGEX]

Each form runs on a minimal Debian 12 with nothing else installed:

  quickstart   ./dev quickstart as root
  test         ./dev test as root
  offline      both again without a network, where 'test' or 'blanks' has run them
  blanks       both in a folder whose path has blanks
  umlaut       ./dev quickstart in a folder whose path has an umlaut, in the C locale
  user         both as a user who may not become root: told what is missing, then with these packages installed
  runtime      cmake -S runtime from a source tree that cannot be written, and a run with what it built
  package      ./dev package; its Debian package and archive on further machines, where a user runs recipes
  wheel        the wheel of ./dev package by pip on Debian 11, 12 and 13, where a user runs recipes
  pages        every command of the wheel's pages, where a user follows them with this wheel
  all          all of them, in this order

  -R REGEX     only the tests of that name, in every form
  --keep       continue with machines that an earlier call has made

  BLIS_ARCH_TYPE=NUMBER in the environment: all runs use this set of BLIS' kernels

What is made stands in build/fresh: machines, output of each command (logs), and base, the Debian that all start as.
EOF
}

suite=bookworm
fresh=$PWD/build/fresh
forms_known=' quickstart test offline blanks umlaut user runtime package wheel pages '

die() {
  printf './dev fresh: error: %s\n' "$1" >&2
  exit "${2:-1}"
}

# This machine's sources of the suite, one line each as in sources.list.
sources() {
  apt-get indextargets --format "\$(REPO_URI) \$(RELEASE) \$(COMPONENT) \$(ORIGIN)" 'Created-By: Packages' |
    awk -v suite="$suite" '$4 == "Debian" && index($2, suite) == 1 && !seen[$1 $2 $3]++ { print "deb", $1, $2, $3 }'
}

# make_base [SUITE]: makes the base of every machine, once. An interrupted run leaves nothing that looks like a base.
make_base() {
  local mirror release=${1:-$suite} base=$fresh/base${1:+-$1}
  local partial=$base.partial
  [ ! -d "$base" ] || return 0
  mirror=$(sources | awk '$3 !~ /-/ { print $2; exit }')
  [ -n "$mirror" ] || die "apt knows no source of Debian on this machine"
  rm -rf --one-file-system "$partial"
  mkdir -p "$partial"
  debootstrap --variant=minbase "$release" "$partial" "$mirror"
  rm -f "$partial"/var/cache/apt/archives/*.deb
  if [ -z "${1:-}" ]; then sources; else echo "deb $mirror $release main"; fi >"$partial/etc/apt/sources.list"
  apt-config dump | grep '^Acquire::' >"$partial/etc/apt/apt.conf.d/90outer" || true
  [ ! -e /etc/apt/auth.conf ] || cp /etc/apt/auth.conf "$partial/etc/apt/"
  if [ -d /etc/apt/auth.conf.d ]; then cp -r /etc/apt/auth.conf.d "$partial/etc/apt/"; fi
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    mkdir -p "$partial/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$partial/etc/ssl/certs/"
  fi
  # Debian's package of certificates writes that file again, with those of this folder.
  if [ -d /usr/local/share/ca-certificates ]; then cp -rL /usr/local/share/ca-certificates "$partial/usr/local/share/"; fi
  mv "$partial" "$base"
}

# make_machine NAME [SUITE]: makes a machine, unless this call has made it already or --keep reuses it.
declare -A made=()
make_machine() {
  local root=$fresh/$1
  if [ -n "${made[$1]:-}" ] || { [ "$keep" = 1 ] && [ -d "$root" ]; }; then return 0; fi
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$fresh/base${2:+-$2}" "$root"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  made[$1]=1
}

# copy_source NAME FOLDER [USER]: copies the files that git tracks; without git, all files except builds.
copy_source() {
  local target=$fresh/$1$2
  [ ! -d "$target" ] || return 0
  mkdir -p "$target"
  if [ -e .git ] && git ls-files >/dev/null 2>&1; then
    git ls-files -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done
  else
    find . -path ./build -prune -o -type f -print0
  fi | tar --null --files-from=- --create | tar --extract --directory "$target"
  git rev-parse --short=12 HEAD >"$target/COMMIT" 2>/dev/null || rm -f "$target/COMMIT"
  [ -z "${3:-}" ] || chroot "$fresh/$1" chown -R "$3" "$2"
}

# ROOT USER COMMAND: mounts what programs expect and enters the machine. Runs in separate namespaces.
inside() {
  local root=$1 user=$2 command=$3 variables=()
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
  if [ -n "${READ_ONLY:-}" ]; then
    mkdir -p "$root$READ_ONLY"
    mount --bind "$PWD" "$root$READ_ONLY"
    mount -o remount,bind,ro "$root$READ_ONLY"
  fi
  ip link set lo up
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY BLIS_ARCH_TYPE; do
    [ -z "${!name:-}" ] || variables+=("$name=${!name}")
  done
  local home=/root
  [ "$user" = root ] || home=/srv/$user
  exec chroot --userspec="$user:$user" --groups= "$root" /usr/bin/env -i "${variables[@]}" HOME="$home" USER="$user" LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$command"
}

# within NAME USER FOLDER COMMAND [online|offline]
within() {
  local flags=(--mount --propagation private --pid --fork --kill-child --uts --ipc) folder
  if [ "${5:-online}" = offline ]; then flags+=(--net); fi
  printf -v folder %q "$3"
  unshare "${flags[@]}" "$BASH" "$fresh_script" --inside "$fresh/$1" "$2" "cd $folder && $4"
}

# Rows of the table at the end of the output.
table=()

# record FORM WHAT COMMAND...: runs the command, logs its output and records its time. A failure ends everything.
record() {
  local form=$1 what=$2 log start=$SECONDS status first=
  shift 2
  log=$fresh/logs/$form-${what//[^a-z0-9]/-}.log
  printf '==== %s: %s\n' "$form" "$what"
  set +e
  { # a command that fails ends only the subshell
    (
      set -e
      "$@"
    ) 2>&1
    echo $? >"$log.status"
  } | tee "$log" | while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ ! -e $log.first && $line =~ ^step\ [0-9]+/[0-9]+.*\ loss\  ]]; then echo $((SECONDS - start)) >"$log.first"; fi
  done
  set -e
  status=$(cat "$log.status")
  rm "$log.status"
  if [ -e "$log.first" ]; then
    first=", first loss after $(cat "$log.first") s"
    rm -f "$log.first"
  fi
  while IFS= read -r line; do table+=("    $line"); done < <(sed -n 's/^== \(.*: [0-9]* s\)$/\1/p' "$log")
  table+=("$(printf '%-11s %-28s %5d s  status %d%s' "$form" "$what" $((SECONDS - start)) "$status" "$first")")
  [ "$status" -eq 0 ] || finish "$status"
}

finish() {
  printf '==== times\n'
  printf '%s\n' "${table[@]}"
  exit "$1"
}

# The arguments for ./dev test.
test_words() { [ -z "$regex" ] || printf ' -R %q' "$regex"; }

form_quickstart() {
  make_machine root
  copy_source root /src/shardc
  record quickstart "dev quickstart" within root root /src/shardc "./dev quickstart"
}

form_test() {
  make_machine root
  copy_source root /src/shardc
  record test "dev test" within root root /src/shardc "./dev test --launch$(test_words)"
  record test "daemons are off" within root root / "$daemons_off"
}

# Packages for tests of launches contain daemons; none may start with the machine.
daemons_off="! ls /etc/systemd/system/*.wants | grep -E '^(munge|slurm)' && test ! -e /usr/sbin/policy-rc.d"

# Uses the folder in which an earlier call or form has run the tests, or else /src/shardc.
form_offline() {
  local source
  for source in "$with_blanks" /src/shardc; do
    [ ! -e "$fresh/root$source/build/release/results.xml" ] || break
  done
  if [ ! -e "$fresh/root$source/build/release/results.xml" ]; then
    form_quickstart
    form_test
  fi
  record offline "dev quickstart" within root root "$source" "./dev quickstart" offline
  record offline "dev test" within root root "$source" "./dev test$(test_words)" offline
}

form_umlaut() {
  make_machine root
  copy_source root /srv/größer/shardc
  record umlaut "dev quickstart" within root root /srv/größer/shardc "LC_ALL=C ./dev quickstart"
}

with_blanks="/srv/a folder with blanks/shardc"
form_blanks() {
  make_machine root
  copy_source root "$with_blanks"
  record blanks "dev quickstart" within root root "$with_blanks" "./dev quickstart"
  record blanks "dev test" within root root "$with_blanks" "./dev test$(test_words)"
}

# refused COMMAND...: it must end with status 1 and the one message that tells what to install.
refused() {
  local out status=0
  out=$("$@" 2>&1) || status=$?
  printf '%s\n' "$out"
  [ "$status" -eq 1 ] || die "status $status instead of 1"
  [ "$(grep -c 'error:' <<<"$out")" -eq 1 ] || die "not one message"
  grep -q '^    apt-get install --no-install-recommends g++ ' <<<"$out" || die "it does not say what to install"
}

form_user() {
  local root=$fresh/user install='apt-get update -q && DEBIAN_FRONTEND=noninteractive'
  make_machine user
  [ -d "$root/srv/someone" ] || chroot "$root" useradd --create-home --home-dir /srv/someone --shell /bin/bash someone
  copy_source user /srv/someone/shardc someone
  if ! within user root / "command -v g++ >/dev/null"; then
    record user "refused" refused within user someone /srv/someone/shardc "./dev quickstart"
  fi
  record user "packages for quickstart" within user root /srv/someone/shardc \
    "$install \$(./dev packages build | tail -n 1) -q -y"
  record user "dev quickstart" within user someone /srv/someone/shardc "./dev quickstart"
  record user "packages for test" within user root /srv/someone/shardc "$install \$(./dev packages test | tail -n 1) -q -y"
  record user "dev test" within user someone /srv/someone/shardc "./dev test$(test_words)"
}

form_runtime() {
  make_machine runtime
  make_machine root
  copy_source root /src/shardc
  export READ_ONLY=/src/shardc
  record runtime "packages" within runtime root / "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
    --no-install-recommends g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libblis-serial-dev libsodium-dev zlib1g-dev"
  record runtime "cmake -S runtime" within runtime root / \
    "! touch /src/shardc/x 2>/dev/null && cmake -G Ninja -S /src/shardc/runtime -B /tmp/runtime && cmake --build /tmp/runtime"
  record runtime "run a plan" within runtime root /tmp "/tmp/runtime/bin/shardc-run /src/shardc/test/fuzz/plan/corpus/toy.plan"
  unset READ_ONLY
}

form_package() {
  local source=/src/shardc packages
  packages=$fresh/root$source/build/release/packages
  make_machine root
  copy_source root "$source"
  record package "dev package" within root root "$source" "./dev package"
  for name in deb tgz; do
    make_machine "$name"
    [ -d "$fresh/$name/srv/someone" ] || chroot "$fresh/$name" useradd --create-home --home-dir /srv/someone --shell /bin/bash someone
    cp test/tools/installed.sh "$fresh/$name/srv/someone/"
  done
  cp "$packages"/shardc_*.deb "$fresh/deb/tmp/shardc.deb"
  cp "$packages"/shardc*.tar.gz "$fresh/tgz/tmp/shardc.tar.gz"
  record package "install the deb" within deb root /tmp \
    "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ./shardc.deb"
  record package "recipes with the deb" within deb someone /srv/someone "bash installed.sh shardc"
  record package "unpack the archive" within tgz root /tmp \
    "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends libfmt9 libsodium23 libsentencepiece0 &&
     mkdir -p '/opt/some where' && tar -xzf shardc.tar.gz -C '/opt/some where' --strip-components=1"
  record package "recipes with the archive" within tgz someone /srv/someone "bash installed.sh '/opt/some where/bin/shardc'"
}

packages=$fresh/root/src/shardc/build/release/packages

# need_wheel FORM: makes the wheel unless an earlier call has.
need_wheel() {
  if ! compgen -G "$packages/*.whl" >/dev/null; then
    make_machine root
    copy_source root /src/shardc
    record "$1" "dev package" within root root /src/shardc "./dev package"
  fi
}

# make_wheel_machine FORM MACHINE [SUITE]: a machine with Python, a user, and the wheel in the user's folder.
make_wheel_machine() {
  make_machine "$2" "${3:-}"
  [ -d "$fresh/$2/srv/someone" ] || chroot "$fresh/$2" useradd --create-home --home-dir /srv/someone --shell /bin/bash someone
  cp test/tools/installed.sh "$packages"/*.whl "$fresh/$2/srv/someone/"
  record "$1" "$2: python3-venv" within "$2" root / \
    "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv ${4:-}"
}

form_wheel() {
  local machine
  need_wheel wheel
  for machine in bullseye trixie; do
    record wheel "debootstrap $machine" make_base "$machine"
  done
  for machine in bullseye bookworm trixie; do
    make_wheel_machine wheel "wheel-$machine" "${machine#"$suite"}"
    record wheel "$machine: pip install" within "wheel-$machine" someone /srv/someone \
      "python3 -m venv v && v/bin/pip install -q --no-index ./*.whl"
    record wheel "$machine: recipes" within "wheel-$machine" someone /srv/someone "bash installed.sh /srv/someone/v/bin/shardc"
  done
}

# What a page needs and no machine here has is named; the list is in follow_pages.py.
form_pages() {
  need_wheel pages
  make_wheel_machine pages pages "" openssl
  cp test/tools/follow_pages.py test/docs/Inputs/page_session.py "$fresh/pages/srv/someone/"
  record pages "pip install" within pages someone /srv/someone "python3 -m venv v && v/bin/pip install -q --no-index ./*.whl"
  record pages "every command" within pages someone /srv/someone \
    "PATH=\$PWD/v/bin:\$PATH v/bin/python follow_pages.py v/lib/python3*/site-packages/shardc/share/doc/shardc/docs followed"
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
fi

fresh_script=$PWD/test/tools/fresh.sh
forms=() regex='' keep=0
while [ $# -gt 0 ]; do
  case $1 in
  -R)
    [ -n "${2:-}" ] || die "-R needs a regular expression" 2
    regex=$2
    shift
    ;;
  --keep) keep=1 ;;
  -h | --help | help) usage; exit 0 ;;
  all) read -ra forms <<<"$forms_known" ;;
  *)
    [[ $forms_known == *" $1 "* ]] || die "there is no form '$1' (forms:${forms_known}all)" 2
    forms+=("$1")
    ;;
  esac
  shift
done
[ ${#forms[@]} -gt 0 ] || { usage >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || die "only root can make a machine; try sudo ./dev fresh ${forms[*]}"
for program in debootstrap unshare chroot ip apt-get; do
  command -v "$program" >/dev/null || die "there is no $program; ./dev install fresh"
done
mkdir -p "$fresh/logs"
record base "debootstrap" make_base
for form in "${forms[@]}"; do "form_$form"; done
finish 0
