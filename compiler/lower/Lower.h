// Translates a Config to the first plan: parameter table, units, one forward body for training and
// one for evaluation, without sharding and fusion. Lowering does not optimise; passes do.
#pragma once

#include <string>
#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// A part of the model or the job that no op of the plan can express.
struct Missing {
  std::string what;   ///< name of the missing op or feature
  config::Opt option; ///< the option that requests it
};

/// The parts of the configuration that have no op. If this is empty, `lower` can translate all of
/// it.
std::vector<Missing> findMissing(const config::Config &config);

/// Translates a configuration for which findMissing is empty.
plan::Plan lower(const config::Config &config, const SourceManager &sources);

/// A plan with only a forward body, for generation: `rows` consecutive tokens of each sample. The
/// configuration must have a single rank.
plan::Plan lowerForward(const config::Config &config, const SourceManager &sources, int64_t rows,
                        int64_t samples = 1);

} // namespace shardc::lower
