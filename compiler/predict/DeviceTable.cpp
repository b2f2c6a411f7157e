#include "compiler/predict/DeviceTable.h"

#include <algorithm>

namespace shardc::predict {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
enum : bool { Datasheet = false, Measured = true };
enum : bool { NoPeers = false, Peers = true };

/// The columns of a row DEVICE in DeviceTable.def.
struct Row {
  Gpu gpu;
  llvm::StringRef name;
  unsigned architecture;
  int32_t multiprocessors;
  double watts;
  int64_t memoryBytes;
  DeviceRates peak;
  unsigned nvlinkDomain;
  bool hasPeers;
  double networkGBs;
  bool measured;
  llvm::StringRef doc, source;

  Device device() const {
    return {gpu,  name,         architecture, multiprocessors, watts,    memoryBytes, peak,
            peak, nvlinkDomain, hasPeers,     networkGBs,      measured, doc,         source};
  }
};

constexpr Row kRows[] = {
#define DEVICE(enumerator, name, architecture, multiprocessors, watts, memory, bf16, fp8, fp32,    \
               hbm, nvlink, domain, peers, pcie, network, measured, doc, source)                   \
  {Gpu::enumerator,                                                                                \
   name,                                                                                           \
   architecture,                                                                                   \
   multiprocessors,                                                                                \
   watts,                                                                                          \
   (memory)*kMiB,                                                                                  \
   {bf16, fp8, fp32, hbm, nvlink, pcie},                                                           \
   domain,                                                                                         \
   peers,                                                                                          \
   network,                                                                                        \
   measured,                                                                                       \
   doc,                                                                                            \
   source},
#include "compiler/predict/DeviceTable.def"
};

/// Replaces peak rates by sustained rates; a measured rate of 0 means not measured.
void applySustained(Device &device, const DeviceRates &measured) {
  auto take = [](double &rate, double value) { rate = value > 0 ? value : rate; };
  take(device.sustained.bf16Tflops, measured.bf16Tflops);
  take(device.sustained.fp8Tflops, measured.fp8Tflops);
  take(device.sustained.fp32Tflops, measured.fp32Tflops);
  take(device.sustained.memoryGBs, measured.memoryGBs);
  take(device.sustained.nvlinkGBs, measured.nvlinkGBs);
  take(device.sustained.hostGBs, measured.hostGBs);
}

/// Assumes that a device that was not measured sustains the same fractions of its peaks as `like`.
void takeShares(Device &device, const Device &like) {
  auto take = [](double &rate, double sustained, double peak) { rate *= sustained / peak; };
  take(device.sustained.bf16Tflops, like.sustained.bf16Tflops, like.peak.bf16Tflops);
  take(device.sustained.fp8Tflops, like.sustained.fp8Tflops, like.peak.fp8Tflops);
  take(device.sustained.fp32Tflops, like.sustained.fp32Tflops, like.peak.fp32Tflops);
  take(device.sustained.memoryGBs, like.sustained.memoryGBs, like.peak.memoryGBs);
  take(device.sustained.nvlinkGBs, like.sustained.nvlinkGBs, like.peak.nvlinkGBs);
  if (device.sustained.hostGBs == device.peak.hostGBs) // otherwise it was measured
    take(device.sustained.hostGBs, like.sustained.hostGBs, like.peak.hostGBs);
#define PER_WATT(from, to, tflops)                                                                 \
  if (device.architecture >= (from) && device.architecture <= (to)) {                              \
    double share = std::min(device.watts * (tflops) / device.sustained.bf16Tflops, 1.0);           \
    device.sustained.bf16Tflops *= share, device.sustained.fp8Tflops *= share;                     \
  }
#include "compiler/predict/DeviceTable.def"
}

/// All devices. Devices that nobody measured get the shares of peak rates that the H200 reached.
struct Table {
  std::vector<Device> devices;
  std::vector<llvm::StringRef> names;

  Table() {
    for (const Row &row : kRows) {
      devices.push_back(row.device());
      names.push_back(row.name);
    }
#define SUSTAINED(enumerator, bf16, fp8, fp32, hbm, nvlink, host)                                  \
  applySustained(devices[static_cast<size_t>(Gpu::enumerator)],                                    \
                 {bf16, fp8, fp32, hbm, nvlink, host});
#include "compiler/predict/DeviceTable.def"
    for (Device &device : devices)
      if (!device.measured && !device.isHost())
        takeShares(device, devices[static_cast<size_t>(Gpu::H200)]);
  }
};

const Table &table() {
  static const Table kTable;
  return kTable;
}

} // namespace

llvm::ArrayRef<Device> devices() { return table().devices; }

const Device &device(Gpu gpu) { return table().devices[static_cast<size_t>(gpu)]; }

std::vector<std::string> assumedFigures(const Device &device) {
  if (device.isHost())
    return {"all: they are nominal, and no time is predicted by them"};
  std::vector<std::string> lines;
  if (!device.measured)
    lines.emplace_back("sustained rates of products, memory, NVLink and the link to the host: the "
                       "share of the peaks that h200 sustains, as far as the power limit allows");
  lines.emplace_back("the rate to other nodes: it depends on the machine's adapters");
  return lines;
}

std::optional<Gpu> findDevice(llvm::StringRef name) {
  for (const Device &device : devices())
    if (device.name == name)
      return device.gpu;
  return std::nullopt;
}

llvm::ArrayRef<llvm::StringRef> deviceNames() { return table().names; }

} // namespace shardc::predict
