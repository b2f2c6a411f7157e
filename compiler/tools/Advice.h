// Advice for a plan, whether it fits or not: what another parallelism scheme, micro batch size or
// precision would need. All advice is given as remarks; every number comes from a plan compiled
// with that change.
#pragma once

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {

/// For a device with known memory, reports: whether data parallelism or the distributed optimizer
/// would fit too, with their memory and traffic; the largest micro batch that fits; what bf16 saves
/// over fp32; and tensor parallelism, if a single layer exceeds the device.
void reportAdvice(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
                  const CommonOptions &common);

} // namespace shardc::tools
