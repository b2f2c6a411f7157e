// Translates a Config into the first plan: parameter table, units, one forward body for training
// and one for evaluation, without sharding and fusion. Lowering only translates; passes
// optimise.
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

/// Parts of the configuration without an op; empty if `lower` can translate all of it.
std::vector<Missing> findMissing(const config::Config &config);

/// Options that only give details of missing features, or that rules refuse: paths, and
/// beginnings of paths, which end with an underscore.
llvm::ArrayRef<llvm::StringLiteral> plannedPaths();

/// Translates a configuration for which findMissing is empty.
plan::Plan lower(const config::Config &config, const SourceManager &sources);

/// What every plan of the configuration has to compute: one microbatch on one rank, with all
/// experts there, before anything is divided or fused.
plan::Plan lowerSpecification(const config::Config &config, const SourceManager &sources);

/// A plan with nothing but a forward body, of `rows` tokens that follow others of one sample: for
/// generating. Only of a configuration of one rank.
plan::Plan lowerForward(const config::Config &config, const SourceManager &sources, int64_t rows);

} // namespace shardc::lower
