// What a device is linked by: NVLink and PCIe as the driver's NVML says, and the machine's network
// adapters as the kernel does.
#pragma once

#include <string>

namespace shardc::cuda {

/// One line, for example "18 NVLinks, PCIe 5 x16; mlx5_0 400 Gb/sec". What cannot be found out is
/// said to be unknown.
std::string linksOf(int device);

/// The adapters of this machine: `classFolder` is /sys/class.
std::string networkOf(const std::string &classFolder);

} // namespace shardc::cuda
