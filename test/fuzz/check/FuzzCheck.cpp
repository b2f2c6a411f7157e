// Fuzzes all of `shardc check`: any text as a recipe through inheritance, defaults, adjustments and
// rules, and accepted ones through lowering, passes and verification. Nothing may crash, and an
// accepted recipe must be accepted again in the form that `shardc explain` prints.
#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "compiler/diag/TextConsumer.h"
#include "compiler/tools/Session.h"
#include "runtime/base/Status.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {
namespace {

/// Where the text pretends to lie, so that it can extend recipes of the repository.
constexpr const char *kPath = SHARDC_RECIPES "/debug/fuzz.recipe";
/// Compiling takes time by the layer and the rank; what is larger is judged, but not compiled.
constexpr int64_t kLayersMax = 64;

/// Sees whether verification refuses what was compiled.
struct RefusedPlan : DiagConsumer {
  void handle(const Diagnostic &diagnostic) override { isMet |= diagnostic.id == "plan-refused"; }
  bool isMet = false;
};

/// The accepted configuration as a recipe; empty after an error.
std::string check(const std::string &text, std::string &shown) {
  SourceManager sources;
  DiagEngine diags(sources);
  llvm::raw_string_ostream out(shown);
  TextConsumer consumer(sources, out, {.color = ColorMode::Never});
  RefusedPlan refused;
  diags.addConsumer(consumer);
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
