// Times for which users wait while they write a recipe: `shardc check` of the largest recipe, and
// an editor's diagnostics after a keystroke. Results are recorded in docs/benchmarks/rule-book.md.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>

#include "compiler/lsp/Server.h"
#include "compiler/tools/Session.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"

namespace shardc {
namespace {

/// The repository's recipe with the largest plan.
constexpr const char *kLargest = SHARDC_RECIPES "/llama3/llama31_405b_fsdp.recipe";

[[noreturn]] void fail(const char *what) {
  std::fprintf(stderr, "bench_check: %s: %s\n", kLargest, what);
  std::exit(1);
}

/// All steps from the text to the sorted messages, as in `check`.
void checkLargest(benchmark::State &state, bool advise) {
  for (auto _ : state) {
    tools::CommonOptions common;
    common.load.path = kLargest;
    SourceManager sources;
    DiagEngine diags(sources);
    config::registerGroups(diags);
    std::optional<config::Config> config = config::loadConfig(sources, diags, common.load);
    tools::CompileOptions options;
    options.mustExecute = false;
    options.advise = advise;
    if (!config || !tools::compile(*config, sources, diags, common, options))
      fail("the recipe does not compile");
    diags.finish();
  }
}

std::string message(const char *method, const nlohmann::json &params) {
  return nlohmann::json({{"jsonrpc", "2.0"}, {"method", method}, {"params", params}}).dump();
}

/// Inserts a character, or removes it again; then parses, checks rules, compiles and publishes.
void keystroke(benchmark::State &state, bool compiles) {
  Result<std::string> text = readFile(kLargest);
  std::FILE *nowhere = std::fopen("/dev/null", "w");
  if (!text.isOk() || !nowhere)
    fail("cannot read the recipe, or write nowhere");
  lsp::Transport transport(stdin, nowhere);
  lsp::CompileStep further;
  if (compiles)
    further = [](const config::Config &config, SourceManager &sources, DiagEngine &diags) {
      tools::CompileOptions options;
      options.mustExecute = false;
      tools::compile(config, sources, diags, {}, options);
    };
  lsp::Server server(transport, further);
  std::string uri = std::string("file://") + kLargest;
  server.handle(R"({"jsonrpc":"2.0","id":1,"method":"initialize","params":{}})");
  server.handle(
      message("textDocument/didOpen", {{"textDocument", {{"uri", uri}, {"text", *text}}}}));
  bool isTyped = false;
  for (auto _ : state) {
    isTyped = !isTyped;
    nlohmann::json change = {{"text", *text + (isTyped ? " " : "")}};
    server.handle(
        message("textDocument/didChange", {{"textDocument", {{"uri", uri}, {"version", 2}}},
                                           {"contentChanges", nlohmann::json::array({change})}}));
  }
  std::fclose(nowhere);
}

BENCHMARK_CAPTURE(checkLargest, with_advice, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(checkLargest, alone, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(keystroke, compiled, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(keystroke, rules_only, false)->Unit(benchmark::kMillisecond);

} // namespace
} // namespace shardc

BENCHMARK_MAIN();
