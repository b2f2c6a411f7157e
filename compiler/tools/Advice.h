// Advice for a plan, whether it fits or not: the needs of another parallelism scheme, micro batch
// size or precision. All advice is given as remarks; every number comes from a plan that is
// compiled with the change.
#pragma once

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {

/// For a device with known memory, reports: whether data parallelism or the distributed optimizer
/// would fit too, with their memory and traffic; the largest micro batch that fits; the savings of
/// bf16 over fp32; and, if a single layer exceeds the device, the tensor parallelism that it needs.
void reportAdvice(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
                  const CommonOptions &common);

} // namespace shardc::tools
