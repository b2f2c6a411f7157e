# A team's tests of its own recipes: lit runs the lines that begin with RUN, FileCheck compares output.
import os
import shutil

import lit.formats

config.name = "recipes"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".test"]
config.test_source_root = os.path.dirname(__file__)
# Results go elsewhere if LIT_OUTPUT says so, so that a read-only checkout can be tested.
config.test_exec_root = os.environ.get("LIT_OUTPUT", config.test_source_root)
config.environment["PATH"] = os.environ["PATH"]  # shardc and FileCheck
config.substitutions.append(("%recipes", os.path.join(config.test_source_root, "recipes")))
if not shutil.which("FileCheck"):  # the name in LLVM; PyPI's package calls it otherwise
    config.substitutions.append((r"\bFileCheck\b", "filecheck"))
