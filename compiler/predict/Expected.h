// Expected times of the benchmarks of `shardc doctor`, from the device table.
#pragma once

#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Rates.h"

namespace shardc::predict {

/// The benchmarks of the doctor's grid for which the tables have rates, with their expected
/// seconds: large products and copies, and collectives of up to `ranksMax` ranks, within a node and
/// between nodes. The device must be a GPU.
std::vector<Rate> expectedRates(const Device &device, int64_t ranksMax);

} // namespace shardc::predict
