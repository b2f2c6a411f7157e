#include "compiler/tools/ElasticPlans.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "compiler/basic/Utf8.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/ElasticSizes.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

using config::Opt;

/// Maximum number of sizes that are compiled in each direction to find the nearest one with a plan.
constexpr int64_t kTriedMax = 64;

/// The settings that adapt the recipe's mesh, and all that depends on it, to another number of
/// ranks.
std::vector<std::string> settingsFor(const config::Config &config, int64_t ranks) {
  const config::Derived &d = config.derived();
  int64_t perNode = std::clamp<int64_t>(d.gpusPerNode, 1, ranks);
  while (ranks % perNode != 0)
    --perNode;
  return {fmt::format("cluster.nodes={}", ranks / perNode),
          fmt::format("cluster.gpus_per_node={}", perNode),
          fmt::format("train.global_batch_size={}", d.globalBatch)};
}

/// The plan of a size, or the reason why there is none.
struct Try {
  std::optional<Compiled> compiled;
  std::string why;
};

Try tryRanks(const config::Config &config, const CommonOptions &common, int64_t ranks,
             const CompileOptions &options) {
  CommonOptions other = common;
  for (std::string &setting : settingsFor(config, ranks))
    other.load.sets.push_back(std::move(setting));
  SourceManager sources;
  DiagEngine diags(sources);
  Try result;
  if (std::optional<config::Config> smaller = config::loadConfig(sources, diags, other.load))
    result.compiled = compile(*smaller, sources, diags, other, options);
  for (const Diagnostic &diagnostic : diags.pending())
    if (diagnostic.severity == Severity::Error && result.why.empty())
      result.why = fmt::format("{} [{}]", diagnostic.text, diagnostic.id);
  return result;
}

/// The nearest sizes that have a plan, below and above a size that has none.
std::string nearest(const config::Config &config, const CommonOptions &common, int64_t ranks) {
  std::string text;
  auto look = [&](int64_t step) {
    int64_t most = config.derived().worldSize;
    for (int64_t tried = 1; tried <= kTriedMax; ++tried) {
      int64_t near = ranks + step * tried;
      if (near < 1 || near > most)
        return;
      if (near == most || tryRanks(config, common, near, {}).compiled) {
        text += fmt::format("{}{}", text.empty() ? "" : ", ", near);
        return;
      }
    }
  };
  look(-1);
  look(1);
  return text.empty() ? "none" : text;
}

} // namespace

void ElasticOption::addTo(cli::Command &command) {
  command.option("--elastic", text,
                 "numbers of ranks with which a run may continue, largest first, as 8,6,4; each "
                 "has its own plan");
}

ExitStatus ElasticOption::read() {
  if (text.empty())
    return kFine;
  Result<std::vector<int64_t>> parsed = parseElasticSizes(text);
  if (!parsed.isOk()) {
    llvm::errs() << "shardc: error: " << printable(parsed.status().message()) << "\n";
    return kUsage;
  }
  sizes = std::move(*parsed);
  return kFine;
}

std::optional<std::vector<Compiled>> compileSizes(const config::Config &config,
                                                  const std::vector<int64_t> &sizes,
                                                  const CommonOptions &common, DiagEngine &diags,
                                                  const CompileOptions &options) {
  std::vector<Compiled> all;
  if (sizes.empty())
    return all;
  if (int64_t own = config.derived().worldSize; sizes.front() != own) {
    diags.report(diag::ElasticFirstSize, SourceRange(), sizes.front(), own);
    return std::nullopt;
  }
  if (config.is(Opt::DatasetDataloaderType, config::DataloaderType::Cyclic)) {
    diags.report(diag::ElasticCyclic, config.range(Opt::DatasetDataloaderType));
    return std::nullopt;
  }
  for (int64_t ranks : std::span(sizes).subspan(1)) {
    Try each = tryRanks(config, common, ranks, options);
    if (!each.compiled) {
      diags.report(diag::ElasticNoPlan, SourceRange(), ranks, each.why,
                   nearest(config, common, ranks));
      return std::nullopt;
    }
    all.push_back(std::move(*each.compiled));
  }
  return all;
}

} // namespace shardc::tools
