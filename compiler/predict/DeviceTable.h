// Properties of the devices that a recipe can name: memory, peak and sustained rates, links. Config
// checks recipes against them, passes use them for placement and scheduling, and predict for times.
// The figures are in DeviceTable.def.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::predict {

enum class Gpu : uint8_t {
#define DEVICE(enumerator, ...) enumerator,
#include "compiler/predict/DeviceTable.def"
};

/// Rates of one device. TFLOP/s are 1e12 operations a second, GB/s 1e9 bytes a second in one
/// direction.
struct DeviceRates {
  double bf16Tflops = 0; ///< dense products; 0: no such units, or unknown
  double fp8Tflops = 0;
  double fp32Tflops = 0;
  double memoryGBs = 0;
  double nvlinkGBs = 0; ///< to a peer of the same domain; 0: none
};

class MeasuredRates; // MeasuredRates.h

struct Device {
  Gpu gpu;
  llvm::StringRef name;
  unsigned architecture; ///< compute capability times 10; 0 for the host
  int32_t multiprocessors;
  int64_t memoryBytes; ///< that a program can allocate; 0: unlimited
  DeviceRates peak;
  DeviceRates sustained; ///< if not measured: the share of the peak of H200
  unsigned nvlinkDomain; ///< GPUs that one NVLink domain spans
  double pcieGBs;
  double networkGBs; ///< to other nodes, per GPU
  bool measured;     ///< whether `sustained` was measured; reports mark assumed rates
  llvm::StringRef doc;
  llvm::StringRef source; ///< of peaks, memory and NVLink
  /// What was measured on such devices, which predictions use where it has something; null:
  /// nothing.
  std::shared_ptr<const MeasuredRates> rates = nullptr;
  /// What power leaves of the sustained rates of products in a step, which they contain.
  double power = 1;

  /// Whether times are predicted: the table's figures of the host are nominal.
  bool isPredicted() const { return !isHost() || rates; }
  bool isHost() const { return architecture == 0; }
  bool isHopper() const { return architecture == 90; }
  bool hasFp8() const { return peak.fp8Tflops > 0; }
  /// Whether the device is older than Blackwell. There, tensor and context parallelism need one
  /// hardware queue, and sharded data parallelism needs several.
  bool isBeforeBlackwell() const { return architecture > 0 && architecture < 100; }
};

/// All devices, in the order of the table.
llvm::ArrayRef<Device> devices();

const Device &device(Gpu gpu);

/// The device of this name, or nothing.
std::optional<Gpu> findDevice(llvm::StringRef name);

/// Figures of the table that are assumed, not of a vendor or measured: a line each.
std::vector<std::string> assumedFigures(const Device &device);

/// The names of all devices, for suggestions and lists.
llvm::ArrayRef<llvm::StringRef> deviceNames();

} // namespace shardc::predict
