#!/usr/bin/env python3
"""Tests ./dev: what it refuses, what it lists, and what it prints for a user who may not install packages.

    dev_test.py DEV
"""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

DEV = None
# A dpkg-query that reports one package of each kind as missing.
QUERY = """#!/bin/sh
case $3 in cmake | libgtest-dev | munge | clang) exit 1 ;; *) printf 'install ok installed' ;; esac
"""
NEEDED = ("bash", "sh", "dirname", "cat", "awk", "sort", "comm", "find", "cut", "env", "grep", "mktemp", "rm", "mkdir", "tail")


class DevTest(unittest.TestCase):
    def setUp(self):
        """Prepares a PATH with little more than a shell, a user who is not root, and no sudo."""
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        for name in NEEDED:
            (self.path / name).symlink_to(shutil.which(name))
        self.script("dpkg-query", QUERY)
        self.script("id", "#!/bin/sh\necho 1000\n")
        self.script("apt-get", "#!/bin/sh\necho apt-get was called\n")

    def script(self, name, text):
        (self.path / name).write_text(text)
        (self.path / name).chmod(stat.S_IRWXU)

    def dev(self, *words, path=None):
        own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDC_")}  # what ./dev reads
        return subprocess.run([DEV, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                              env={**own, "PATH": path or self.folder.name})

    def copy_that_configures(self):
        """./dev in a folder of its own, where nothing is missing, and CMake says how it was called and fails."""
        self.script("dpkg-query", "#!/bin/sh\nprintf 'install ok installed'\n")
        self.script("nvcc", "#!/bin/sh\n")
        self.script("cmake", '#!/bin/sh\necho "cmake was called with $*"\nexit 1\n')
        (self.path / "sed").symlink_to(shutil.which("sed"))
        copy = self.path / "copy"
        (copy / "runtime/cmake").mkdir(parents=True)
        (copy / "runtime/cmake/Shardc.cmake").write_text("set(SHARDC_VERSION 1.2)\n")
        shutil.copy(DEV, copy / "dev")
        return copy

    def expect(self, status, err, *words):
        done = self.dev(*words)
        self.assertEqual((done.returncode, err in done.stderr), (status, True), done.stdout + done.stderr)
        return done

    def test_usage(self):
        self.assertEqual(self.dev("help").returncode, 0)
        self.expect(2, "usage: ./dev COMMAND")
        self.expect(2, "there is no command 'tset'", "tset")
        self.expect(2, "-R needs a regular expression", "test", "-R")
        self.expect(2, "has no option '--longer'", "test", "--longer")
        self.expect(2, "--asan and --tsan are two builds", "test", "--asan", "--tsan")
        self.expect(2, "there is no group 'cuda' of packages", "packages", "cuda")
        self.expect(2, "needs a target", "fuzz")
        self.expect(2, "./dev package has no option '--cuda'", "package", "--cuda")

    def test_packages(self):
        done = self.dev("packages", "test")
        self.assertIn("apt-get install --no-install-recommends python3 llvm-14-tools", done.stdout)
        self.assertNotIn("munge", done.stdout)
        for line in self.dev("packages").stdout.splitlines():
            if not line.startswith(("#", "apt-get")):
                self.assertGreater(len(line.split()), 1, f"a package without its reason: {line}")

    def test_missing_without_root(self):
        """One message lists the packages that are missing for this command, and none that only other commands need."""
        said = "only an administrator can install:\n    apt-get install --no-install-recommends cmake\n"
        done = self.expect(1, said, "quickstart")
        self.assertNotIn("apt-get was called", done.stdout)
        self.expect(1, "cmake libgtest-dev\n", "test")
        self.expect(1, "cmake libgtest-dev clang\n", "fuzz", "fuzz_plan")

    def test_missing_without_apt(self):
        (self.path / "apt-get").unlink()
        self.expect(1, "This system has no apt; these are Debian's names", "quickstart")
        (self.path / "dpkg-query").unlink()
        self.expect(1, "apt-get install --no-install-recommends g++ cmake", "quickstart")

    def test_other_system(self):
        """A system whose sources lack a package learns it before anything is installed."""
        self.script("id", "#!/bin/sh\necho 0\n")
        self.script("apt-cache", '#!/bin/sh\n[ "$2" != cmake ]\n')
        done = self.expect(1, "this system has no packages cmake; shardc is built on Debian 12", "quickstart")
        self.assertIn("install the wheel", done.stderr)
        self.script("id", "#!/bin/sh\necho 1000\n")  # a user without root learns the same
        self.expect(1, "this system has no packages cmake; shardc is built on Debian 12", "quickstart")
        self.script("dpkg-query", "#!/bin/sh\nexit 1\n")
        # The runtime reads the tables of a parser that antlr4 writes: those of Debian 12 do, Ubuntu 24.04's do not.
        for antlr, runtime, status in (("4.9.2-3", "4.10+dfsg-1", 1), ("4.9.2-3", "4.9+dfsg-3", 0), ("4.7.2-5", "4.9+dfsg-3", 0)):
            self.script("apt-cache", f'#!/bin/sh\ncase "$*" in *runtime*) echo "Version: {runtime}" ;; *) echo "Version: {antlr}" ;; esac\n')
            done = self.dev("quickstart")
            self.assertEqual("no packages antlr4 and libantlr4-runtime-dev that fit each other" in done.stderr, status == 1, done.stderr)
        self.script("dpkg-query", QUERY)
        self.script("apt-cache", "#!/bin/sh\nexit 100\n")  # apt has no lists yet
        self.expect(1, "only an administrator can install:", "quickstart")

    def test_quickstart_builds_the_host_backend(self):
        """Without an earlier build of CUDA code, CMake must be told to leave it out."""
        copy = self.copy_that_configures()
        for cache, wanted in ((None, True), ("SHARDC_WITH_CUDA:BOOL=OFF\n", True), ("SHARDC_WITH_CUDA:BOOL=ON\n", False)):
            if cache:
                (copy / "build" / "release").mkdir(parents=True, exist_ok=True)
                (copy / "build" / "release" / "CMakeCache.txt").write_text(cache)
            done = subprocess.run([copy / "dev", "quickstart"], capture_output=True, text=True, check=False,
                                  env={"PATH": self.folder.name, "TMPDIR": self.folder.name})
            self.assertIn("cmake was called with --preset release", done.stdout, done.stderr)
            self.assertEqual("-DSHARDC_WITH_CUDA=OFF" in done.stdout, wanted, done.stdout)

    def test_cuda_objects_are_for_the_gpus_that_are_there(self):
        """CMake finds out which; packages are for all GPUs, and --long needs PTX."""
        copy = self.copy_that_configures()
        for words, wanted in ((["build"], "native"), (["test"], "native"), (["test", "--long"], "80-virtual;90a-real"), (["package"], "all"),
                              (["package", "-DSHARDC_CUDA_ARCHITECTURES=90a-real"], "all -DSHARDC_CUDA_QUICK=OFF -DSHARDC_CUDA_ARCHITECTURES=90a-real")):
            done = subprocess.run([copy / "dev", *words], capture_output=True, text=True, check=False,
                                  env={"PATH": self.folder.name, "TMPDIR": self.folder.name})
            self.assertIn(f"-DSHARDC_CUDA_ARCHITECTURES={wanted}", done.stdout, f"{words}: {done.stderr}")

    def test_kernels_are_compiled_quickly_where_none_runs(self):
        """Only for tests of continuous integration without a GPU, not for packages or builds that are used."""
        copy = self.copy_that_configures()
        for ci, smi, words, wanted in (("1", None, ["test"], "ON"), ("", None, ["test"], "OFF"), ("1", None, ["build"], "OFF"),
                                       ("1", None, ["package"], "OFF"), ("1", None, ["test", "--long"], "OFF"), ("1", "9.0", ["test"], "OFF")):
            if smi:
                self.script("nvidia-smi", f"#!/bin/sh\necho '{smi}'\n")
            done = subprocess.run([copy / "dev", *words], capture_output=True, text=True, check=False,
                                  env={"PATH": self.folder.name, "TMPDIR": self.folder.name, "CI": ci})
            self.assertIn(f"-DSHARDC_CUDA_QUICK={wanted}", done.stdout, f"{ci}, {smi}, {words}: {done.stderr}")

    def test_launch_packages_are_optional(self):
        done = self.dev("install", "launch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("these tests are skipped: munge", done.stdout)


if __name__ == "__main__":
    DEV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
