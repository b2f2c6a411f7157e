// Advice for a plan, whether it fits or not: what another scheme, micro batch or precision would
// need. Only remarks; every figure is from a plan compiled with the change.
#pragma once

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {

/// Says, where a device with a known memory is named: whether plain data parallelism or the
/// distributed optimizer fits too, with the bytes that each holds and sends; the largest micro
/// batch that fits; what bf16 saves where fp32 is on; and tensor parallelism where one layer alone
/// exceeds the device.
void reportAdvice(const config::Config &config, const plan::Plan &plan, DiagEngine &diags,
                  const CommonOptions &common);

} // namespace shardc::tools
