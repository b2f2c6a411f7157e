#include "compiler/predict/Expected.h"

#include <algorithm>

#include "compiler/predict/Transfers.h"

namespace shardc::predict {
namespace {

/// Smaller products and collectives would measure latency rather than the rate of the device.
constexpr int64_t kExtentMin = 4096, kBytesMin = int64_t{64} << 20;
constexpr int64_t kNodeGpusMax = 8;

/// FLOP/s of a product or bytes/s of a copy; 0 if the tables have no such rate.
double perSecond(const Device &device, const Rate &rate) {
  switch (rate.kind) {
  case RateKind::Product:
    return rate.size("k") < kExtentMin   ? 0
           : dtypeBytes(rate.dtype) == 2 ? device.sustained.bf16Tflops * 1e12
           : rate.dtype == DType::F8E4M3 ? device.sustained.fp8Tflops * 1e12
                                         : 0;
  case RateKind::Memory:
    return rate.size("bytes") < kBytesMin ? 0
           : rate.op == "copy"            ? device.sustained.memoryGBs * 1e9
                                          : 0;
  case RateKind::Attention:
  case RateKind::Collective:
    return 0;
  }
  return 0;
}

void addCollectives(const Device &device, int64_t members, int64_t inNode,
                    std::vector<Rate> &expected) {
  for (Rate rate : collectiveGrid(members, inNode, /*isQuick=*/true)) {
    auto kind = CollectiveKind::Send;
    for (size_t k = 0; k < kCollectiveKindCount; ++k)
      if (toString(static_cast<CollectiveKind>(k)) == rate.op)
        kind = static_cast<CollectiveKind>(k);
    Team team = {members, inNode, inNode == members ? members : 1};
    if (rate.size("bytes") < kBytesMin)
      continue;
    rate.seconds = collectiveSeconds(device, kind, plan::Transport::Nccl, rate.size("bytes"), team);
    expected.push_back(rate);
  }
}

} // namespace

std::vector<Rate> expectedRates(const Device &device, int64_t ranksMax) {
  std::vector<Rate> expected;
  for (Rate rate : computeGrid(/*isQuick=*/true))
    if (double speed = perSecond(device, rate); speed > 0) {
      rate.seconds = rate.work() / speed;
      expected.push_back(rate);
    }
  for (int64_t members = 2; members <= std::min(ranksMax, kNodeGpusMax); members *= 2)
    addCollectives(device, members, members, expected);
  for (int64_t nodes = 2; nodes <= ranksMax; nodes *= 2)
    addCollectives(device, nodes, 1, expected);
  return expected;
}

} // namespace shardc::predict
