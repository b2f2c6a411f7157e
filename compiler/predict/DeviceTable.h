// Properties of the devices that a recipe can name: memory, peak and sustained rates, links. Config
// checks recipes against them, passes use them for placement and scheduling, and predict/ for
// times. DeviceTable.def has the numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::predict {

/// The devices, in the order of DeviceTable.def.
enum class Gpu : uint8_t {
#define DEVICE(enumerator, ...) enumerator,
#include "compiler/predict/DeviceTable.def"
};

/// Rates of one device. 1 TFLOP/s is 1e12 operations per second; 1 GB/s is 1e9 bytes per second in
/// one direction.
struct DeviceRates {
  double bf16Tflops = 0; ///< dense matrix products; 0: not supported, or unknown
  double fp8Tflops = 0;
  double fp32Tflops = 0;
  double memoryGBs = 0;
  double nvlinkGBs = 0; ///< to a GPU of the same NVLink domain; 0: no NVLink
  double hostGBs = 0;   ///< to and from the host's memory, in one direction
};

class MeasuredRates; // MeasuredRates.h

/// One row of DeviceTable.def, possibly with measured rates.
struct Device {
  Gpu gpu;
  llvm::StringRef name;
  unsigned architecture; ///< compute capability times 10; 0 for the host
  int32_t multiprocessors;
  double watts;        ///< power limit
  int64_t memoryBytes; ///< memory that a program can allocate; 0: unlimited
  DeviceRates peak;
  DeviceRates sustained; ///< if not measured: the peak times the H200's ratio of sustained to peak
  unsigned nvlinkDomain; ///< GPUs in one NVLink domain
  bool hasPeers;         ///< kernels may access the memory of GPUs that NVLink does not connect
  double networkGBs;     ///< network bandwidth to other nodes, per GPU
  bool measured;         ///< whether `sustained` was measured; reports mark assumed rates
  llvm::StringRef doc;
  llvm::StringRef source; ///< source of peaks, memory and NVLink
  /// Rates that were measured on such devices, which predictions prefer. Null: none.
  std::shared_ptr<const MeasuredRates> rates = nullptr;
  /// Factor on the sustained rates of matrix products that accounts for the power limit.
  double power = 1;

  /// Whether times can be predicted: the host's rates in the table are nominal.
  bool isPredicted() const { return !isHost() || rates; }
  bool isHost() const { return architecture == 0; }
  bool hasFp8() const { return peak.fp8Tflops > 0; }
  /// Whether cuBLASLt multiplies 8-bit numbers with scales of 128, and with scales of 32.
  bool hasScalesOf128() const { return architecture == 90; }
  bool hasScalesOf32() const { return architecture >= 100; }
  /// Whether products have instructions that are faster than mma.sync.
  bool isFasterThanMma() const { return architecture >= 90 && architecture < 120; }
  /// Whether a multiprocessor has 64 cores for fp32 instead of 128.
  bool hasHalfTheCores() const { return architecture == 80; }
  /// Whether the device is older than Blackwell. There, tensor and context parallelism need one
  /// hardware queue, and sharded data parallelism needs several.
  bool isBeforeBlackwell() const { return architecture > 0 && architecture < 100; }
};

/// All devices, in the order of the table.
llvm::ArrayRef<Device> devices();

/// The device's row of the table. Its member `rates` is null.
const Device &device(Gpu gpu);

/// The device of this name; empty if there is none.
std::optional<Gpu> findDevice(llvm::StringRef name);

/// The figures of a device that are assumed: neither measured nor from a vendor. One line each.
std::vector<std::string> assumedFigures(const Device &device);

/// The names of all devices, for suggestions and lists.
llvm::ArrayRef<llvm::StringRef> deviceNames();

} // namespace shardc::predict
