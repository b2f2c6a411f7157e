// The model that a configuration describes, as lists of modules with settings.
#pragma once

#include <optional>

#include "compiler/config/Config.h"
#include "compiler/model/Decoder.h"
#include "compiler/model/Freeze.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::lower {

/// The model's modules. Also works for models that findMissing refuses, so that their parameters
/// can be counted. Layers depend only on the options: a family has no code, only rows of
/// Families.def.
model::Decoder decoderOf(const config::Config &config);
/// The parts of the model that are not trained.
model::Frozen frozenOf(const config::Config &config);

/// The op of the feed-forward layer's activation, including its gate if it has one; empty if there
/// is no such op.
std::optional<plan::OpKind> activationOp(const config::Config &config);

/// The router of layers with experts; empty if there are no such layers.
std::optional<model::RouterSettings> routerOf(const config::Config &config);
int64_t countLayersWithExperts(const config::Config &config);

/// The number of elements of all parameters on all ranks, including padding rows of the vocabulary.
/// A tied weight counts once. If the configuration compiles, this is the sum over Plan::params.
int64_t countParameters(const config::Config &config);

} // namespace shardc::lower
