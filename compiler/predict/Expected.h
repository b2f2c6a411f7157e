// The rates that the device table leads one to expect of work that `shardc doctor` measures.
#pragma once

#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Rates.h"

namespace shardc::predict {

/// The work of a doctor's grid that the tables know of, with the seconds that it should take: large
/// products and copies, and collectives of groups inside a node, and between nodes, of up to
/// `ranksMax` members. The device is none of the host.
std::vector<Rate> expectedRates(const Device &device, int64_t ranksMax);

} // namespace shardc::predict
