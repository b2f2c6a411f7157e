# Configuration of the lit tests: which files are tests, which tools they may call.
import os
import sys

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

path = os.pathsep.join([config.shardc_bin, config.llvm_bin, config.environment.get("PATH", "")])
config.environment["PATH"] = path
config.environment["SHARDC_LONG"] = os.environ.get("SHARDC_LONG", "0")
config.environment["SHARDC_SANITIZE"] = config.sanitize
config.substitutions.append(("%recipes", os.path.join(config.shardc_source, "recipes")))
config.substitutions.append(("%source", config.shardc_source))
config.substitutions.append(("%python", config.python))
config.substitutions.append(("%lit", config.lit))

# Tests that need GPUs say `REQUIRES: cuda`; they are skipped, not failed, where there is none.
if os.environ.get("SHARDC_GPU", "0") == "1":
    config.available_features.add("cuda")
