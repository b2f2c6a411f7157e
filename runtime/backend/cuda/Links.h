// The links of a device: NVLink and PCIe as reported by the driver's NVML, and the machine's
// network adapters as reported by the kernel.
#pragma once

#include <string>

namespace shardc::cuda {

/// One line, for example "18 NVLinks, PCIe 5 x16; mlx5_0 400 Gb/sec". Facts that cannot be
/// determined are reported as unknown.
std::string linksOf(int device);

/// The network adapters of this machine; `classFolder` is /sys/class.
std::string networkOf(const std::string &classFolder);

} // namespace shardc::cuda
