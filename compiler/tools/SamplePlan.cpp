#include "compiler/tools/SamplePlan.h"

#include "compiler/lower/Lower.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {

std::optional<std::string> sampleText(const config::Config &config, const CommonOptions &common,
                                      DiagEngine &diags) {
  using config::Opt;
  if (!config.has(Opt::ValidationSamples) || config.getInt(Opt::ValidationSamples) == 0 ||
      !config.has(Opt::ValidationEvalInterval))
    return "";
  config::LoadOptions load = common.load;
  load.oneRank.emplace();
  SourceManager sources;
  DiagEngine own(sources);
  std::optional<config::Config> one = config::loadConfig(sources, own, load);
  std::string why;
  for (const Diagnostic &diagnostic : own.pending())
    if (diagnostic.severity == Severity::Error && why.empty())
      why = diagnostic.text + " [" + diagnostic.id + "]";
  if (!one || !why.empty()) {
    diags.report(diag::SamplesNoPlan, config.range(Opt::ValidationSamples), why);
    return std::nullopt;
  }
  return plan::print(lower::lowerForward(*one, sources, 1));
}

} // namespace shardc::tools
