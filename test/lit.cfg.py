# Configuration of the lit tests: which files are tests, which tools they may call.
import os
import sys
import tempfile

import lit.formats
import lit.main
import lit.TestRunner

sys.path.insert(0, os.path.join(config.shardc_source, "test", "tools"))
sys.dont_write_bytecode = True
import blanks

lit.TestRunner.applySubstitutions = blanks.keep_paths_whole(lit.TestRunner.applySubstitutions)
# ctest runs several lits side by side. They would share a file of times, which lit reads while another writes it.
lit.main.record_test_times = lambda tests, lit_config: None

config.name = "shardc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".recipe", ".plan", ".test"]
config.excludes = ["Inputs", "golden", "unit", "fuzz", "conformance", "kernels", "bench", "tidy", "interop", "gpu"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.shardc_build, "test")

# The interpreter that runs lit, and not a script that looks for it: hundreds of tests start one.
path = os.pathsep.join([config.shardc_bin, config.llvm_bin, os.path.dirname(sys.executable), config.environment.get("PATH", "")])
config.environment["PATH"] = path
config.environment["SHARDC_JOB_SECRET"] = "the secret of the tests"
config.environment["SHARDC_LONG"] = os.environ.get("SHARDC_LONG", "0")
config.environment["SHARDC_SANITIZE"] = config.sanitize
config.substitutions.append(("%recipes", os.path.join(config.shardc_source, "recipes")))
config.substitutions.append(("%source", config.shardc_source))
config.substitutions.append(("%python", sys.executable))
config.substitutions.append(("%lit", config.lit))

# Folders of scripts lie in memory where there is enough: to make files durable takes most of the time of runs that save. What
# save-*.test and ckpt write stays on the disk, and with SHARDC_LONG=1 all does.
MEMORY = "/dev/shm"
if os.environ.get("SHARDC_LONG", "0") != "1" and os.access(MEMORY, os.W_OK):
    memory = os.statvfs(MEMORY)
    if memory.f_bavail * memory.f_frsize >= 2 << 30 and not memory.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = MEMORY  # lit makes a folder there, which is TMPDIR of its tests, and removes it

# Tests that look at what a terminal shows, or at a folder of devices, say `REQUIRES: terminals`.
def has_terminals():
    try:
        ends = os.openpty()
    except OSError:
        return False
    for end in ends:
        os.close(end)
    return os.path.ismount("/dev/pts")


if has_terminals():
    config.available_features.add("terminals")

# Tests that need GPUs say `REQUIRES: cuda`; they are skipped, not failed, where there is none.
if os.environ.get("SHARDC_GPU", "0") == "1":
    config.available_features.add("cuda")
