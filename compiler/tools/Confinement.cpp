#include "compiler/tools/Confinement.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include "runtime/base/UntrustedFolder.h"

namespace shardc::tools {
namespace {

constexpr const char *kMark = "--first-process-of-a-program";
constexpr int kNotStarted = 126; ///< exit status if the program did not start
constexpr rlim_t kFileBytesMax = rlim_t{64} << 20;
constexpr rlim_t kMemoryBytesMax = rlim_t{4} << 30;
constexpr rlim_t kProcessesMax = 512, kOpenFilesMax = 256;
constexpr int kNamespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID |
                            CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

/// What a program needs of the system. The sandbox shows it read-only and hides everything else.
// clang-format off
constexpr const char *kShown[] = {
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/nsswitch.conf", "/etc/group", "/etc/passwd"};
// clang-format on
constexpr const char *kDevices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                    "/dev/urandom"};

/// Takes the next argument. Aborts if there is none, since only this program writes them.
std::string next(char **&argument) {
  if (!*argument)
    std::abort();
  return *argument++;
}

bool writeSmall(const char *path, const std::string &text) {
  Descriptor file(::open(path, O_WRONLY | O_CLOEXEC));
  return file.isOpen() && writeFully(file.fd(), text);
}

/// Gives up root, whose files a namespace of users does not protect, and moves into new namespaces.
/// Processes that are started later are in the new PID namespace. The folder becomes the working
/// one first, since only root may be able to reach it by its path.
bool enterNamespaces(const std::string &folder) {
  if (::chdir(folder.c_str()) != 0)
    return false;
  if (::geteuid() == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
        ::setresuid(kNobody, kNobody, kNobody) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0)
      return false;
  }
  std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::access(".", W_OK) != 0 || ::unshare(kNamespaces) != 0)
    return false;
  writeSmall("/proc/self/setgroups", "deny"); // does not exist in old kernels
  return writeSmall("/proc/self/uid_map", user + " " + user + " 1") &&
         writeSmall("/proc/self/gid_map", group + " " + group + " 1") &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

/// Makes the folders on the way to a path.
void makeParents(const std::string &path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    ::mkdir(path.substr(0, at).c_str(), 0755);
}

/// Binds a file or a folder of the machine into the new root.
bool bindPath(const std::string &path, const std::string &to) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0)
    return false;
  makeParents(to);
  if (S_ISDIR(info.st_mode))
    ::mkdir(to.c_str(), 0755);
  else
    ::close(::open(to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  return ::mount(path.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}

/// Shows a path of the machine read-only, if it exists. A link is copied.
bool show(const std::string &path, const std::string &root) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0)
    return true;
  if (S_ISLNK(info.st_mode)) {
    std::string target(4096, '\0');
    ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    target.resize(length > 0 ? static_cast<size_t>(length) : 0);
    makeParents(root + path);
    return ::symlink(target.c_str(), (root + path).c_str()) == 0;
  }
  struct {
    uint64_t set, clear, propagation, userns;
  } attributes = {0x1 | 0x2 | 0x4, 0, 0, 0}; // MOUNT_ATTR_RDONLY, _NOSUID and _NODEV
  constexpr unsigned kRecursive = 0x8000;    // AT_RECURSIVE
  constexpr long kMountSetattr = 442;        // the same number on all architectures
  return bindPath(path, root + path) && ::syscall(kMountSetattr, AT_FDCWD, (root + path).c_str(),
                                                  kRecursive, &attributes, sizeof attributes) == 0;
}

bool mountMemory(const std::string &path, const char *options) {
  ::mkdir(path.c_str(), 0755);
  return ::mount("none", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options) == 0;
}

/// Copies what is in the working folder, which has the new root as well.
bool copyFiles(const std::string &root, const std::string &to) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const fs::path &path : fs::directory_iterator(".", error))
    if (path.filename() != root && !error)
      fs::copy(path, to / path.filename(), fs::copy_options::recursive, error);
  return !error;
}

/// Copies the results into the folder `to` of the machine. Writes a link in place of anything else
/// than a file, so that the reader of the results refuses it.
void takeResults(const std::string &folder, int to) {
  Result<UntrustedFolder> in = UntrustedFolder::open(folder);
  Result<std::vector<UntrustedFolder::Entry>> entries = in.isOk() ? in->list() : in.status();
  for (size_t i = 0; entries.isOk() && i < entries->size(); ++i) {
    const auto &[name, isFolder] = (*entries)[i];
    Result<std::string> text = in->read(name, kFileBytesMax);
    int fd = text.isOk() ? ::openat(to, name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600) : -1;
    if (fd < 0 || ::write(fd, text->data(), text->size()) != std::ssize(*text))
      std::ignore = isFolder ? 0 : ::symlinkat(".", to, name.c_str());
    ::close(fd);
  }
}

/// Replaces the root of the file system by an empty one in memory with what a program needs and a
/// copy of the working folder, which has the same path `folder`. Only the files of the new PID
/// namespace's processes are in /proc.
bool changeRoot(const std::string &folder) {
  const std::string root = "root";
  if (!mountMemory(root, "mode=755,size=64m") || !mountMemory(root + "/dev", "mode=755,size=64k") ||
      !mountMemory(root + "/dev/shm", "mode=1777,size=64m") ||
      !mountMemory(root + "/tmp", "mode=1777,size=64m"))
    return false;
  for (const char *path : kShown)
    if (!show(path, root))
      return false;
  for (const char *path : kDevices)
    if (!bindPath(path, root + path))
      return false;
  constexpr std::pair<const char *, const char *> kLinks[] = {
      {"fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}};
  for (auto [to, from] : kLinks)
    if (::symlink((std::string("/proc/self/") + to).c_str(), (root + from).c_str()) != 0)
      return false;
  makeParents(root + folder);
  std::string proc = root + "/proc";
  ::mkdir(proc.c_str(), 0555);
  return ::mount("proc", proc.c_str(), "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                 "subset=pid,hidepid=2") == 0 &&
         mountMemory(root + folder, "mode=755,size=256m,nr_inodes=64k") &&
         copyFiles(root, root + folder) && ::chdir(root.c_str()) == 0 &&
         ::syscall(SYS_pivot_root, ".", ".") == 0 && ::umount2(".", MNT_DETACH) == 0;
}

void limitResources(unsigned seconds) {
  auto limit = [](auto which, rlim_t value) {
    rlimit both{value, value};
    ::setrlimit(which, &both);
  };
  limit(RLIMIT_FSIZE, kFileBytesMax);
  limit(RLIMIT_AS, kMemoryBytesMax);
  limit(RLIMIT_NOFILE, kOpenFilesMax);
  limit(RLIMIT_CPU, seconds);
  limit(RLIMIT_CORE, 0);
}

/// Drops all capabilities of the namespace, also those that a later program could gain.
bool dropPrivileges() {
  for (int capability = 0; ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0;)
    ++capability;
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return ::syscall(SYS_capset, &header, none) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif
constexpr uint32_t kNumberEnd = 0x40000000; // numbers of x32 begin here

/// System calls that no script or configuration needs and that reach much of the kernel, or other
/// processes. They fail with EPERM.
// clang-format off
constexpr uint32_t kRefusedCalls[] = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd,
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_mount, SYS_umount2,
    SYS_pivot_root, SYS_chroot, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsmount,
    SYS_mount_setattr, SYS_unshare, SYS_setns, SYS_name_to_handle_at, SYS_open_by_handle_at,
    SYS_swapon, SYS_swapoff, SYS_reboot, SYS_kexec_load, SYS_init_module, SYS_finit_module,
    SYS_delete_module, SYS_quotactl, SYS_acct, SYS_syslog, SYS_personality, SYS_shmget};
// clang-format on

/// Installs the filter. `clone` is refused if it makes a namespace, and `clone3`, whose flags are
/// in memory, fails with ENOSYS, so that libraries use `clone`. Programs can
/// create UNIX and IP sockets, which reach no further than the sandbox, and no others (AF_VSOCK).
bool filterCalls() {
  std::vector<sock_filter> code;
  auto load = [&](size_t offset) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  auto endIf = [&](uint16_t test, uint32_t value, uint32_t result) {
    code.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, result));
  };
  constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
  load(offsetof(seccomp_data, arch));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  load(offsetof(seccomp_data, nr));
  endIf(BPF_JGE, kNumberEnd, kRefuse);
  for (uint32_t call : kRefusedCalls)
    endIf(BPF_JEQ, call, kRefuse);
  endIf(BPF_JEQ, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
  load(offsetof(seccomp_data, args));
  endIf(BPF_JSET, kNamespaces, kRefuse);
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 8));
  load(offsetof(seccomp_data, args));
  for (uint32_t family : {AF_UNIX, AF_INET, AF_INET6})
    endIf(BPF_JEQ, family, SECCOMP_RET_ALLOW);
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/// Ends all processes below this one. Those whose parent has ended are children of this process, so
/// a new session does not save them.
void endDescendants() {
  do {
    std::ifstream children("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    for (pid_t child = 0; children >> child;)
      ::kill(child, SIGKILL);
  } while (::waitpid(-1, nullptr, 0) > 0);
}

/// Starts the program. Waits for it and for all processes that it leaves behind, or ends them when
/// SIGTERM arrives. Returns the program's exit status.
int superviseProgram(Confinement &confinement) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  std::vector<char *> argv = pointersOf(confinement.command),
                      environment = pointersOf(confinement.environment);
  pid_t program = ::fork();
  if (program == 0) {
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (confinement.closesOff) { // not of this process, which is alone in its namespace
      rlimit processes{kProcessesMax, kProcessesMax};
      ::setrlimit(RLIMIT_NPROC, &processes);
    }
    if (::chdir((confinement.folder + "/" + confinement.workingFolder).c_str()) == 0)
      ::execve(argv[0], argv.data(), environment.data());
    ::dprintf(STDERR_FILENO, "%s: %s\n", argv[0], std::strerror(errno));
    ::_exit(kNotStarted);
  }
  int status = kNotStarted, waited = 0;
  while (true) {
    pid_t ended = ::waitpid(-1, &waited, WNOHANG);
    if (ended == program)
      status = statusOf(waited);
    if (ended < 0)
      return status;
    if (ended == 0 && ::sigwaitinfo(&signals, nullptr) == SIGTERM)
      endDescendants();
  }
}

/// Closes this process off and starts the program.
int closeOff(Confinement &confinement) {
  if (!enterNamespaces(confinement.folder))
    return kNotStarted;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM); // giving up root has cleared it
  pid_t child = ::fork(); // the first process of the PID namespace; all others end with it
  if (child != 0) {
    ::close(kReadyDescriptor);
    int waited = 0;
    while (::waitpid(child, &waited, 0) < 0 && errno == EINTR)
      ;
    return statusOf(waited);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::umask(022);
  limitResources(confinement.secondsMax);
  int results = ::open(confinement.resultFolder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (results < 0 || !changeRoot(confinement.folder) || !dropPrivileges() || !filterCalls() ||
      ::write(kReadyDescriptor, "1", 1) != 1)
    return kNotStarted;
  ::close(kReadyDescriptor);
  ::prctl(PR_SET_DUMPABLE, 0); // so that the program cannot reach `results` through /proc
  int status = superviseProgram(confinement);
  takeResults(confinement.folder + "/" + confinement.resultFolder, results);
  return status;
}

} // namespace

int statusOf(int waited) {
  return WIFSIGNALED(waited) ? 128 + WTERMSIG(waited) : WEXITSTATUS(waited);
}

std::vector<char *> pointersOf(std::vector<std::string> &words) {
  std::vector<char *> pointers;
  for (std::string &word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> argumentsOf(const Confinement &confinement) {
  std::vector<std::string> words = {"shardc",
                                    kMark,
                                    confinement.folder,
                                    confinement.workingFolder,
                                    confinement.resultFolder,
                                    std::to_string(confinement.secondsMax),
                                    confinement.closesOff ? "1" : "0",
                                    std::to_string(confinement.environment.size())};
  words.insert(words.end(), confinement.environment.begin(), confinement.environment.end());
  words.insert(words.end(), confinement.command.begin(), confinement.command.end());
  return words;
}

std::optional<int> runConfined(int argc, char **argv) {
  if (argc < 2 || std::strcmp(argv[1], kMark) != 0)
    return std::nullopt;
  char **argument = argv + 2;
  Confinement confinement;
  confinement.folder = next(argument);
  confinement.workingFolder = next(argument);
  confinement.resultFolder = next(argument);
  confinement.secondsMax = static_cast<unsigned>(std::stoul(next(argument)));
  confinement.closesOff = std::stoul(next(argument)) != 0;
  for (size_t left = std::stoul(next(argument)); left > 0; --left)
    confinement.environment.push_back(next(argument));
  while (*argument)
    confinement.command.push_back(next(argument));
  ::syscall(SYS_close_range, kReadyDescriptor + 1, ~0U, 0);
  // If the parent is killed, so is the sandbox; without one, the processes are ended first.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (confinement.closesOff)
    return closeOff(confinement);
  limitResources(confinement.secondsMax);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::write(kReadyDescriptor, "1", 1) != 1)
    return kNotStarted;
  ::close(kReadyDescriptor);
  return superviseProgram(confinement);
}

} // namespace shardc::tools
