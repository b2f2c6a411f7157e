// The model that a configuration describes, as lists of modules with settings.
#pragma once

#include <optional>

#include "compiler/config/Config.h"
#include "compiler/model/Decoder.h"
#include "compiler/model/Freeze.h"
#include "compiler/model/MoeMlp.h"

namespace shardc::lower {

/// The model's modules. Works also for models that findMissing refuses, whose parameters are
/// counted. Layers follow from the options alone, so a family has no code of its own: its values
/// are rows of Families.def.
model::Decoder decoderOf(const config::Config &config);
/// What of it is not trained.
model::Frozen frozenOf(const config::Config &config);

/// The op of the feed-forward layer's activation, with its gate if it has one; none if there is no
/// such op.
std::optional<plan::OpKind> activationOp(const config::Config &config);

/// The router of layers with experts; nothing if there are no such layers.
std::optional<model::RouterSettings> routerOf(const config::Config &config);
int64_t countLayersWithExperts(const config::Config &config);

/// Elements of all parameters on all ranks, rows of the padded vocabulary included, each tied
/// weight once. Equal to the sum over Plan::params where the configuration compiles.
int64_t countParameters(const config::Config &config);

} // namespace shardc::lower
