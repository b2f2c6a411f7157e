"""Runs tests of the sandbox, the secret, temporary files, folders of others and the environment as another user, as the root
of a namespace of users, and where no namespaces can be made.

    forms.py FORM FOLDER PROGRAM:FILTER...

FORM is user, root, closed or closed_user; FOLDER has the programs. Ends with status 77, and the reason, where the machine
does not allow the form.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

NOBODY = 65534
SKIPPED = 77
USER = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
ROOT = ["unshare", "--user", "--map-root-user"]
CLOSED = [*ROOT, "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
FORMS = {"user": USER, "root": ROOT, "closed": CLOSED, "closed_user": [*USER, *CLOSED]}


def skip(why):
    print(why)
    sys.exit(SKIPPED)


def main():
    form, folder, tests = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    if os.geteuid() != 0 and "user" in form:
        skip("only root can become another user; all tests run as this one")
    words = FORMS[form]
    if shutil.which(words[0]) is None or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip(f"this machine does not allow {' '.join(words[:3])}")
    status = 0
    with tempfile.TemporaryDirectory() as place:
        if "user" in form:
            os.chown(place, NOBODY, NOBODY)
        environment = {**os.environ, "TMPDIR": place, "HOME": place}
        for program, names in (test.split(":", 1) for test in tests):
            if subprocess.run([*words, "test", "-x", folder / program], env=environment).returncode != 0:
                skip(f"this user cannot start '{folder / program}'")
            status |= subprocess.run([*words, folder / program, f"--gtest_filter={names}", "--gtest_brief=1"], env=environment, cwd=place).returncode
    sys.exit(status != 0)


main()
