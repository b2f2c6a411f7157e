// Selects the CUDA device of a rank.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Number of devices that this process sees. Unavailable, with the driver's reason, if none can be
/// used.
Result<int> deviceCount();

/// The device for the rank with number `localRank` on its node: the only device that this process
/// sees (a launcher may show each rank only its own), otherwise the device with this number.
/// Unavailable if there is none.
Result<int> deviceOf(int64_t localRank);

/// The unique id of a device in the form of nvidia-smi: GPU-<32 digits with dashes>. Empty if the
/// driver does not report it.
std::string uuidOf(int device);

/// A device's name as the driver reports it; empty if it does not.
std::string nameOf(int device);

} // namespace shardc::cuda
