"""The include rules of the architecture: which folder may include which, one row per folder.

A folder may not include folders that its row does not name, or folders without a row. A new folder needs a row here.
`test` may include everything.
"""

import re

# Folder: the folders of the project that it may include in addition to itself.
ARROWS = {
    # The compiler sees of the runtime the plan and the base, and nothing that executes.
    "compiler/basic": ["runtime/base"],
    "compiler/diag": ["compiler/basic", "runtime/base"],
    "compiler/ast": ["compiler/basic"],
    "compiler/parse": ["compiler/ast", "compiler/basic", "compiler/diag", "grammar", "runtime/base"],
    "compiler/predict": ["compiler/basic", "compiler/model", "runtime/base", "runtime/plan"],
    # Of plans the words of their job, which are those of options.
    "compiler/config": ["compiler/ast", "compiler/basic", "compiler/diag", "compiler/model", "compiler/parse",
                        "compiler/predict", "runtime/base", "runtime/plan"],
    "compiler/model": ["runtime/base", "runtime/plan"],
    "compiler/lower": ["compiler/basic", "compiler/config", "compiler/model", "compiler/predict", "runtime/base",
                       "runtime/plan"],
    # Passes read plans alone, so that each runs on plan text.
    "compiler/passes": ["compiler/model", "compiler/predict", "runtime/base", "runtime/plan"],
    "compiler/upstream": ["compiler/ast", "compiler/basic", "compiler/config", "compiler/diag", "compiler/parse",
                        "runtime/base"],
    "compiler/shrink": ["compiler/basic", "compiler/config", "compiler/diag", "compiler/model", "compiler/parse", "runtime/base"],
    # The language server compiles by a function that the tool hands in.
    "compiler/lsp": ["compiler/basic", "compiler/config", "compiler/diag", "compiler/parse", "runtime/base"],
    # Reports aggregate what plans, predictions and traces say; the settings of a recipe are explained as by `explain`.
    "compiler/page": ["compiler/basic", "compiler/config", "compiler/passes", "compiler/predict", "runtime/base", "runtime/plan",
                      "runtime/trace"],
    # Tools also link what `shardc data` and `shardc ckpt` work with, and the form of traces.
    "compiler/tools": ["compiler/ast", "compiler/basic", "compiler/config", "compiler/diag", "compiler/upstream",
                       "compiler/lower", "compiler/lsp", "compiler/model", "compiler/page", "compiler/parse",
                       "compiler/passes", "compiler/predict", "compiler/shrink", "runtime/base", "runtime/plan", "runtime/verify",
                       "runtime/data", "runtime/generate", "runtime/tokenize", "runtime/checkpoint", "runtime/trace"],
    "grammar": [],
    "runtime/base": [],
    "runtime/plan": ["runtime/base"],
    "runtime/verify": ["runtime/base", "runtime/plan"],
    "runtime/hal": ["runtime/base", "runtime/trace", "kernels/api"],
    "runtime/backend/host": ["runtime/base", "runtime/hal", "runtime/trace", "kernels/api", "kernels/host"],
    "runtime/backend/channels": ["runtime/base", "runtime/hal"],
    "runtime/backend/null": ["runtime/base", "runtime/hal", "kernels/api", "runtime/backend/channels"],
    "runtime/backend/cuda": ["runtime/base", "runtime/hal", "runtime/backend/channels", "runtime/trace", "kernels/api", "kernels/cuda"],
    "runtime/measure": ["runtime/base", "runtime/hal", "kernels/api"],
    "runtime/data": ["runtime/base"],
    "runtime/tokenize": ["runtime/base", "runtime/data", "runtime/checkpoint"],
    "runtime/generate": ["runtime/base", "runtime/plan", "runtime/hal", "runtime/exec", "runtime/backend/host", "kernels/api", "kernels/host"],
    "runtime/checkpoint": ["runtime/base", "runtime/plan"],
    "runtime/launch": ["runtime/base", "runtime/hal"],
    "runtime/trace": ["runtime/base", "runtime/plan"],
    "runtime/exec": ["runtime/base", "runtime/plan", "runtime/hal", "runtime/trace", "kernels/api"],
    "runtime/run": ["runtime/base", "runtime/plan", "runtime/hal", "runtime/exec", "runtime/data", "runtime/trace",
                    "kernels/api"],
    "runtime/save": ["runtime/base", "runtime/plan", "runtime/hal", "runtime/exec", "runtime/run", "runtime/checkpoint"],
    "runtime/tools": ["runtime/base", "runtime/plan", "runtime/verify", "runtime/hal", "runtime/exec", "runtime/run",
                      "runtime/save", "runtime/data", "runtime/generate", "runtime/tokenize", "runtime/checkpoint", "runtime/launch", "runtime/measure", "runtime/trace",
                      "runtime/backend/channels", "runtime/backend/host", "runtime/backend/null", "runtime/backend/cuda", "kernels", "kernels/api",
                      "kernels/host", "kernels/cuda"],
    "runtime/cmake": [],
    # Kernels see plain structs.
    "kernels": ["runtime/base"],
    "kernels/api": ["runtime/base"],
    # The kernels of steps read the table of ops.
    "kernels/host": ["kernels", "kernels/api", "runtime/base", "runtime/plan"],
    "kernels/cuda": ["kernels", "kernels/api", "kernels/host", "runtime/base"],
}

# Libraries that only some folders or files may see: (name, pattern of the include, folders and files).
LIBRARIES = [
    ("ANTLR", r"antlr4", ["compiler/parse", "grammar"]),
    ("LLVM", r"(llvm|clang)/", ["compiler"]),
    ("CUDA", r"(cuda|cublas|cudnn|nccl|cub/|cooperative_groups|nvtx|mma\.h)", ["runtime/backend/cuda", "kernels/cuda"]),
    ("GoogleTest", r"(gtest|gmock)/", []),
    ("Google Benchmark", r"benchmark/", []),
    # Its headers take seconds to compile: one source wraps them for all programs.
    ("CLI11", r"CLI/", ["runtime/base/CommandLine.cpp"]),
]

# Tables of other folders that a source reads for their rows. They bring no code with them.
TABLES = {
    "compiler/config/ForeignNames.cpp": ["runtime/checkpoint/HfFields.def", "compiler/upstream/UpstreamFlags.def"],
}


def folder_of(path):
    """The row of ARROWS that a file or an include belongs to."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ARROWS:
            return name
    return "/".join(parts)


def refuse(path, include, is_system):
    """What is wrong with an include of a file, or nothing."""
    if path.split("/")[0] == "test":
        return None
    folder = folder_of(path)
    if folder not in ARROWS:
        return f"folder '{folder}' has no row in test/tidy/layers.py"
    for name, pattern, folders in LIBRARIES:
        if re.match(pattern, include) and not any(path == f or path.startswith(f + "/") for f in folders):
            return f"{name} is not seen here; found <{include}>"
    if include in TABLES.get(path, ()):
        return None
    top = include.split("/")[0]
    if top == "test":
        return f"tests are not included; found \"{include}\""
    if is_system or top not in ("compiler", "runtime", "kernels", "grammar"):
        if not is_system and "/" not in include and folder != "grammar":
            return f"includes are written from the root of the repository; found \"{include}\""
        return None
    target = folder_of(include)
    if target != folder and target not in ARROWS[folder]:
        return f"'{folder}' does not see '{target}'; found \"{include}\""
    return None
