// Selects the CUDA device of a rank.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Devices that this process sees. Unavailable, with the driver's reason, if none can be used.
Result<int> deviceCount();

/// The device of a rank whose launcher numbers it `localRank` on its node: the only one that this
/// process sees (a launcher may show each rank its own), or the one of that number. Unavailable
/// without one.
Result<int> deviceOf(int64_t localRank);

/// The unique id of a device, in the form of nvidia-smi: GPU-<32 digits with dashes>. Empty if the
/// driver does not say.
std::string uuidOf(int device);

/// A device's name, as the driver has it; empty if it does not say.
std::string nameOf(int device);

} // namespace shardc::cuda
