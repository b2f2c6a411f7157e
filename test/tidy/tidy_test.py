#!/usr/bin/env python3
"""Tests that each house rule finds a violation in a small tree, and reports nothing without one."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402
import words  # noqa: E402

HEADER = "// What it is for.\n#pragma once\n"


class TidyTest(unittest.TestCase):
    def findings(self, files, tracked=None, has_headers=True):
        if has_headers and tracked is None:  # so that no case needs a comment at its head
            headers = {path.rsplit(".", 1)[0] + ".h": HEADER for path, text in files.items()
                       if path.endswith((".cpp", ".cu")) and not text.startswith("//")}
            files = headers | files
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            tree = tidy.Tree(root, tracked)
            found = [finding for check in tidy.CHECKS for finding in check(tree)]
            nothing = {"wide_lines": {}, "file_lines": {}, "long_functions": {}}
            return found + list(tidy.check_ratchets(tree, nothing, tidy.measure(tree)))

    def expect(self, files, words):
        found = self.findings(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_counts_the_house(self):
        with unittest.mock.patch.object(tidy, "HOUSE_LINES_MAX", 3):
            self.expect({"compiler/basic/a.def": "a\nb\n", "runtime/base/b.def": "c\nd\n", "test/c.def": "e\n"},
                        "the house has 4 lines; it may have 3")
            self.assertEqual(self.findings({"compiler/basic/a.def": "a\nb\n"}), [])

    def test_keeps_still(self):
        self.assertEqual(self.findings({
            "compiler/passes/A.h": HEADER + '#include "runtime/plan/Plan.h"\n',
            "runtime/exec/B.cpp": '#include "kernels/api/Kernel.h"\n#include <fmt/format.h>\nint f() {\n  return 1;\n}\n',
            "docs/a.md": "[b](b.md), `compiler/passes/A.h`, `runtime/exec/B`\n",
            "docs/b.md": "    [not](a-link.md)\n",
        }), [])

    def test_arrows(self):
        self.expect({"runtime/exec/A.cpp": '#include "compiler/config/Config.h"\n'}, "does not see 'compiler/config'")
        self.expect({"compiler/passes/A.cpp": '#include "runtime/exec/Executable.h"\n'}, "does not see 'runtime/exec'")
        self.expect({"kernels/host/A.cpp": '#include "runtime/hal/Hal.h"\n'}, "does not see 'runtime/hal'")
        self.expect({"runtime/plan/A.cpp": '#include "runtime/hal/Hal.h"\n'}, "does not see 'runtime/hal'")
        self.expect({"compiler/new/A.cpp": '#include "runtime/plan/Plan.h"\n'}, "has no row")
        self.expect({"compiler/tools/A.cpp": '#include "test/unit/a.h"\n'}, "tests are not included")
        self.expect({"compiler/tools/A.cpp": '#include "Session.h"\n'}, "written from the root")

    def test_libraries(self):
        self.expect({"runtime/base/A.cpp": '#include "llvm/ADT/StringRef.h"\n'}, "LLVM is not seen here")
        self.expect({"compiler/config/A.cpp": '#include "antlr4-runtime.h"\n'}, "ANTLR is not seen here")
        self.expect({"runtime/exec/A.cpp": "#include <cuda_runtime.h>\n"}, "CUDA is not seen here")
        self.expect({"runtime/exec/A.cpp": "#include <nccl.h>\n"}, "CUDA is not seen here")
        self.expect({"compiler/tools/A.cpp": "#include <CLI/CLI.hpp>\n"}, "CLI11 is not seen here")
        self.expect({"runtime/base/A.h": HEADER + "#include <CLI/Version.hpp>\n"}, "CLI11 is not seen here")
        self.assertEqual(self.findings({"runtime/base/CommandLine.cpp": "#include <CLI/CLI.hpp>\n"}), [])

    def test_rooms(self):
        pages = {"docs/architecture.md": "| `compiler/passes` | passes over plans |\n",
                 "docs/testing.md": "| `e2e` | whole runs |\n", "compiler/passes/A.cpp": "", "test/e2e/a.test": ""}
        self.assertEqual(self.findings(pages), [])
        self.expect({**pages, "compiler/lower/A.cpp": ""}, "folder 'compiler/lower' is not named")
        self.expect({**pages, "runtime/plan/A.cpp": ""}, "folder 'runtime/plan' is not named")
        self.expect({**pages, "test/fuzz/A.py": ""}, "folder 'test/fuzz' is not named")

    def test_waits(self):
        launch = "void run() { launchKernel(f<2>, 1, 1, 0, stream, p); }\n"
        kernel = "template <int kN>\n__global__ void __launch_bounds__(256)\n    f(const __grid_constant__ P p) {\n"
        self.expect({"kernels/cuda/a.cu": kernel + "  int i = p.i[0];\n  awaitPrevious();\n}\n" + launch}, "'f' does not begin with")
        self.assertEqual(self.findings({"kernels/cuda/a.cu": kernel + "  awaitPrevious();\n}\n" + launch}), [])
        self.assertEqual(self.findings({"kernels/cuda/a.cu": kernel + "}\nvoid run() { f<2><<<1, 1>>>(p); }\n"}), [])

    def test_job_reads(self):
        words = "a field of the job is a member"
        self.expect({"runtime/exec/A.cpp": 'int64_t f(const plan::Plan &plan) { return plan.jobInt("rng.seed", 0); }\n'}, words)
        self.expect({"compiler/passes/A.cpp": 'void f(plan::Plan &plan) {\n  plan.job.put(\n      "rng.seed", 1);\n}\n'}, words)
        self.assertEqual(self.findings({
            "runtime/exec/A.cpp": "bool f(const plan::Plan &plan) { return plan.job.has(plan::JobField::rng_seed); }\n",
            "compiler/lower/A.cpp": 'void f() { plan.job.put("env." + name, text); plan.job.put(info.path.str(), value); }\n',
        }), [])

    def test_state(self):
        words = "is hidden state"
        for line in ("thread_local std::string kept;", "static std::atomic<int> count{0};", "std::vector<std::string> warnings;",
                     "std::atomic<int> received[2] = {0, 0};", "Tracer::Impl *Tracer::Impl::one = nullptr;",
                     "inline int64_t steps = 0;", "extern bool isQuiet;"):
            self.expect({"runtime/exec/A.cpp": f"namespace a {{\n{line}\n}}\n"}, words)
        for line in ("  static Library instance;", "  static std::array<char, 4> text = {};", "  static void *entry = [] {",
                     "  static Impl *instance;", "  thread_local int depth = 0;"):
            self.expect({"kernels/cuda/a.cu": f"void f() {{\n{line}\n}}\n"}, words)
        still = ["constexpr int kMost = 3;", "const BackendEntry hostBackend = {", "extern const Kernel kFill;", "int f(int a);",
                 "using std::move;", "Result<int> open(const std::string &path) {", "A &A::operator=(A &&) noexcept = default;"]
        inside = ["  static const bool isAsked = [] {", "  static constexpr int kMost = 3;", "  static Result<int> make(int a);",
                  "  static void *const entry = find();", "  int count = 0;", "  static_cast<void>(f());"]
        self.assertEqual(self.findings({"runtime/exec/A.cpp": "\n".join(still + ["void g() {"] + inside + ["}"]) + "\n",
                                        "compiler/lower/A.cpp": "int shared = 0;\n"}), [])
        self.expect({"runtime/tools/Signals.cpp": "std::atomic<int> requests{0};\nstd::atomic<bool> areHeld{false};\nstd::atomic<bool> areQuiet{false};\n"},
                    "has no variable 'received' any more")

    def test_kinds(self):
        words = "what this is, its kind says"
        for line in ('if (cell.name == "stop") {}', 'if ("stop" == cell.name) {}', 'return plan.units[unit].name.starts_with("layers.");',
                     'std::string_view(role_.cells[c].name).starts_with("grad.");', 'findCell(role, "w." + block.name);',
                     'auto cell = std::ranges::find(cells, "step", &plan::Cell::name);',
                     'plan.roles[0].segments[s].name != "init"', 'return name(role->cells[c].name.substr(2));'):
            self.expect({"compiler/passes/A.cpp": f"void f() {{\n  {line}\n}}\n"}, words)
            self.expect({"runtime/exec/A.cpp": f"void f() {{\n  {line}\n}}\n"}, words)
        self.assertEqual(self.findings({
            "runtime/exec/A.cpp": 'bool f(const Param &param) { return param.name == "a" || spec.matches(cell.name); }\n',
            "compiler/lower/A.cpp": 'void f() { cell.name = "grad." + name; text = fmt::format("{}", segment.name); }\n',
        }), [])

    def test_op_switches(self):
        def function(cases):
            return "int f(const Op &op) {\n  switch (op.kind) {\n" + cases + "  }\n  return 0;\n}\n"

        one, two = "  case OpKind::Add:\n    return 1;\n", "  case plan::SumRole::Passes: {\n    return '}';\n  }\n"
        rest = "  default:\n    return 0;\n"
        words = "a switch over ops has no default"
        self.expect({"compiler/passes/A.cpp": function(one + rest)}, words)
        self.expect({"test/unit/plan/A.cpp": function(two + rest)}, words)
        inner = "    switch (at) {\n    case 1:\n      return 2;\n    default:\n      return 3;\n    }\n"
        self.assertEqual(self.findings({
            "compiler/passes/A.cpp": function(one + "  case OpKind::Cast: {\n" + inner + "  }\n"),
            "compiler/parse/A.cpp": function("  case Token::End: // and no OpKind::Add:\n    return 1;\n" + rest),
        }), [])

    def test_directives(self):
        words = "reach the next files of a batch"
        self.expect({"compiler/tools/A.cpp": "namespace shardc::tools {\nusing namespace checkpoint;\n}\n"}, words)
        self.expect({"test/fuzz/plan/A.cpp": "using namespace shardc;\n"}, words)
        self.expect({"runtime/exec/A.h": HEADER + "using namespace shardc::plan;\n"}, words)
        self.assertEqual(self.findings({
            "compiler/tools/A.cpp": "using namespace std::string_literals;\nusing checkpoint::SaveTarget;\n"
                                    "int main() {\n  using namespace shardc;\n}\n",
        }), [])

    def test_subranges(self):
        words = "clang 14 cannot compile"
        for line in ("auto twice = std::ranges::unique(cuts);", "for (int i : std::views::iota(0, 3))"):
            self.expect({"runtime/exec/A.cpp": f"void f() {{\n  {line}\n}}\n"}, words)
        self.assertEqual(self.findings({
            "runtime/exec/A.cpp": "void f() {\n  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());\n"
                                  "  use(std::ranges::partition_point(cuts, isEarly));\n}\n",
        }), [])

    def test_data_parallel(self):
        words = "means data parallelism"
        self.expect({"runtime/exec/A.cpp": "int64_t at(int64_t dp) {\n"}, words)
        self.expect({"runtime/exec/A.cpp": "// place.coefDp * index\n"}, words)
        self.expect({"compiler/passes/A.cpp": "// dpSize(plan)\n"}, words)
        self.expect({"compiler/passes/A.cpp": 'if (axis.name == "dp")\n'}, words)
        self.expect({"kernels/host/A.cpp": "/// Elements from 4*dp on.\n"}, words)
        self.assertEqual(self.findings({
            "compiler/config/A.cpp": '// Degree{"dp", 4}\n',
            "compiler/lower/A.cpp": 'ask("ddp.outer_dp_sharding_strategy", Opt::DistUseTpPpDpMapping);\n',
            "runtime/checkpoint/A.cpp": "// dp_reshardable depth endpoint\n",
            "test/unit/exec/A.cpp": "// dp\n",
        }), [])

    def test_top_level(self):
        mine = {"scratch/a.cpp": "// TO" + "DO: later\n", "quickstart.plan": "x \n", "docs/a.md": "text\n"}
        self.assertEqual(self.findings(mine), [])
        self.assertEqual(self.findings(mine, tracked=["docs/a.md"]), [])
        found = self.findings(mine, tracked=["docs/a.md", "quickstart.plan"])
        self.assertEqual(found, ["quickstart.plan:1: the top level has fixed entries; this is none of them"])

    def test_words(self):
        """A replaced word is found in code and pages, but not where pages quote it."""
        files = {"runtime/base/A.h": "// Waits in vain.\n#pragma once\n", "docs/a.md": "It waits in vain.\n",
                 "docs/glossary.md": "in vain\n"}
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            found = list(words.check_words(tidy.Tree(root)))
        self.assertEqual([finding.split(":")[0] for finding in found], ["docs/a.md", "runtime/base/A.h"])
        self.assertIn("'in vain' was replaced by", found[0])
        self.assertTrue(all(instead for _, instead in words.replaced_words()))

    def test_tracked(self):
        if shutil.which("git") is None:
            self.skipTest("there is no git")
        with tempfile.TemporaryDirectory() as root:
            for name in ("README.md", "mine.plan", "gone.md"):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write("text\n")
            for words in (["init", "-q"], ["add", "README.md", "gone.md"]):
                subprocess.run(["git", "-C", root, *words], check=True)
            os.remove(os.path.join(root, "gone.md"))
            self.assertEqual(tidy.Tree(root).files, ["README.md"])

    def test_files(self):
        self.expect({"runtime/base/A.h": "#pragma once\n"}, "begins with a comment")
        self.expect({"runtime/base/A.h": "// What.\n"}, "#pragma once")
        found = self.findings({"runtime/base/A.cpp": "int f();\n"}, has_headers=False)
        self.assertEqual(len(found), 1, found)
        self.assertIn("without a header of its name", found[0])
        self.expect({"runtime/base/StringUtil.cpp": "// What.\n"}, "says nothing in a name")

    def test_text(self):
        self.expect({"docs/a.md": "[b](missing.md)\n"}, "there is no 'missing.md'")
        self.expect({"docs/a.md": "`compiler/passes/Missing.cpp`\n"}, "there is no file")
        self.expect({"docs/a.md": "see /wo" + "rk/tree\n"}, "a path of one machine")
        self.expect({"runtime/base/A.cpp": "// TO" + "DO: later\n"}, "names its owner")
        self.expect({"runtime/base/A.cpp": "int f(); \n"}, "blanks at the end")

    def test_architectures(self):
        self.expect({"kernels/cuda/a.cu": "#if __CUDA_ARCH__ >= 900\n#endif\n"}, "does not ask for the architecture")
        self.expect({"kernels/cuda/A.h": "// What.\n#pragma once\n// capability >= 90\n"}, "rows of KernelPaths.def")

    def test_sizes(self):
        self.expect({"runtime/base/A.cpp": "// " + "x" * 98 + "\n"}, "1 lines wider than 100")
        self.expect({"runtime/base/A.cpp": "\n" * 801}, "801 lines")
        body = "  g();\n" * 70
        self.expect({"runtime/base/A.cpp": "int f(int a,\n      int b) {\n" + body + "}\n"}, "73 lines in its longest")
        self.expect({"runtime/base/A.cpp": "class A {\n  int f() {\n" + body + "  }\n};\n"}, "72 lines in its longest")

    def test_ratchets(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "runtime/base"))
            with open(os.path.join(root, "runtime/base/A.cpp"), "w", encoding="utf-8") as file:
                file.write(("// " + "x" * 98 + "\n") * 2)
            tree = tidy.Tree(root)
            found = tidy.measure(tree)
            allowed = {"wide_lines": {"runtime/base/A.cpp": 2}, "file_lines": {}, "long_functions": {}}
            self.assertEqual(list(tidy.check_ratchets(tree, allowed, found)), [])
            allowed["wide_lines"]["runtime/base/A.cpp"] = 1
            self.assertEqual(len(list(tidy.check_ratchets(tree, allowed, found))), 1)
            allowed["wide_lines"] = {"runtime/base/A.cpp": 2, "runtime/base/Gone.cpp": 3}
            self.assertIn("take it off", next(iter(tidy.check_ratchets(tree, allowed, found))))


if __name__ == "__main__":
    unittest.main()
