// Fuzzes all of `shardc check`: any text is loaded as a recipe, and accepted recipes are lowered,
// compiled and verified. Nothing may crash, and the form that `shardc explain` prints of an
// accepted recipe must be accepted again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/config/Steps.h"
#include "compiler/diag/Consumers.h"
#include "compiler/diag/Engine.h"
#include "compiler/tools/Session.h"
#include "runtime/base/Status.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {
namespace {

/// The pretended path of the text, so that it can extend recipes of the repository.
constexpr const char *kPath = SHARDC_RECIPES "/debug/fuzz.recipe";
/// Compile time grows with layers and ranks: recipes with more layers are checked, but not
/// compiled.
constexpr int64_t kLayersMax = 64;

/// Detects whether verification refuses a compiled plan.
struct RefusedPlan : DiagConsumer {
  void handle(const Diagnostic &diagnostic) override { isMet |= diagnostic.id == "plan-refused"; }
  bool isMet = false;
};

/// The accepted configuration as a recipe; empty after an error. Messages are added to `shown`.
std::string check(const std::string &text, std::string &shown) {
  SourceManager sources;
  DiagEngine diags(sources);
  llvm::raw_string_ostream out(shown);
  auto consumer = makeTextConsumer(sources, out, {.color = ColorMode::Never});
  RefusedPlan refused;
  diags.addConsumer(*consumer);
  diags.addConsumer(refused);
  tools::CommonOptions common;
  common.load.path = kPath;
  std::optional<config::Config> config =
      config::loadConfig(sources, diags, sources.addBuffer(kPath, text), common.load);
  std::string printed;
  if (config) {
    printed = config::printRecipe(*config);
    tools::CompileOptions options;
    options.mustExecute = false;
    options.advise = true;
    if (config->getInt(config::Opt::ModelNumLayers) <= kLayersMax)
      tools::compile(*config, sources, diags, common, options);
  }
  diags.finish();
  SHARDC_CHECK(!refused.isMet, "a compiled plan is refused:\n{}\n{}", text, shown);
  return printed;
}

} // namespace
} // namespace shardc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string text(reinterpret_cast<const char *>(data), size);
  std::string shown;
  std::string printed = shardc::check(text, shown);
  if (printed.empty())
    return 0;
  std::string again;
  SHARDC_CHECK(!shardc::check(printed, again).empty(), "refused once printed:\n{}\n{}\n{}", text,
               printed, again);
  return 0;
}
