#include "compiler/predict/StepTime.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "compiler/model/OpCost.h"
#include "compiler/predict/KernelTable.h"
#include "compiler/predict/Kernels.h"
#include "compiler/predict/MeasuredRates.h"
#include "compiler/predict/PipelineTime.h"
#include "compiler/predict/SaveTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Float8.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/Matrices.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Variants.h"

namespace shardc::predict {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using Key = plan::AttrKey;

/// Floating-point operations of one of Muon's ops on a matrix, on each rank that has rows of the
/// matrix. An iteration on an r × c matrix, r the shorter side, costs 2·r²·c for X·Xᵀ, 2·r³ for A²
/// and 2·r²·c for the product with X. If ranks divide the iterations, muon_sums has the product of
/// this rank's part with its transpose, and muon_step the rest; iteration 0 only normalises and
/// counts as 0.
double flopsOfMatrix(const Op &op, const plan::BlockMatrix &matrix) {
  auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
  if (op.kind == OpKind::Muon) {
    auto r = static_cast<double>(matrix.shortSide()), c = static_cast<double>(matrix.longSide());
    return op.getBool(Key::divided)
               ? 0
               : static_cast<double>(op.getInt(Key::ns_steps)) * (4 * r * r * c + 2 * r * r * r);
  }
  auto side = static_cast<double>(matrix.sharedSide());
  double ofPart = 2 * side * rows * columns / static_cast<double>(matrix.parts);
  if (op.getInt(Key::ns_step) == 0)
    return 0;
  return op.kind == OpKind::MuonSums ? ofPart : ofPart + 2 * side * side * side;
}

/// Time of a kernel with almost no work.
constexpr double kLeastSeconds = 1.5e-6;
/// Time until a product occupies all multiprocessors, plus the time while only its last tiles run.
constexpr double kRampSeconds = 2e-6;
/// Time of a copy between device and host in addition to that of its bytes.
constexpr double kCopySeconds = 5e-6;
/// Factor on the rate of a product whose epilogue reads a bias, or the operand of GELU's gradient.
constexpr double kBiasFactor = 0.92;
/// The epilogue of a tile of fp32 gradients reads and writes memory. From this length of the summed
/// dimension on, it overlaps the next tile's products; below, a part of it is exposed.
constexpr double kEpilogueDepth = 400;
/// Rate of products with blockwise scales, relative to products with one scale per operand: the 390
/// TFLOP of a step of llama3_8b with 4,096 channels take 78 ms more
/// (docs/benchmarks/cuda-multi-gpu.md).
constexpr double kBlockScalesFactor = 0.79;
/// Rate of 8-bit products, relative to the 16-bit rate scaled by the ratio of the peaks: from steps
/// of llama_1b and of layers of llama3_8b (docs/benchmarks/cuda-step-time.md).
constexpr double kFloat8Factor = 0.94;

/// Rate of grouped products that quantise their operands, relative to the 16-bit rate scaled by the
/// ratio of the peaks; and the bandwidth of quantising. Measured with Mixtral on an H200,
/// docs/benchmarks/experts.md.
constexpr double kQuantisedFactor = 0.8, kQuantisingGBs = 2500;
/// Like kQuantisedFactor, with blockwise scales: for forward products, and for gradients.
constexpr std::array<double, 2> kQuantisedBlocksFactor = {0.78, 0.49};

/// Memory bandwidth of ops in GB/s; 0 without a row, and then it is assumed.
constexpr std::array<double, plan::kOpCount> makeMemoryRates() {
  std::array<double, plan::kOpCount> rates{};
#define MEMORY(op, gbs) rates[static_cast<size_t>(OpKind::op)] = gbs;
#define ASSUMED(op, gbs) MEMORY(op, gbs)
#include "compiler/predict/KernelTable.def"
  return rates;
}
constexpr std::array<double, plan::kOpCount> kMemoryGBs = makeMemoryRates();
constexpr double kAssumedGBs = 2500;
#define FORM(producer, quantizer, ...)                                                             \
  static_assert(kMemoryGBs[static_cast<size_t>(OpKind::producer##quantizer)] > 0,                  \
                "op " #producer #quantizer " has a row in KernelTable.def");
#include "runtime/plan/Ops.def"

/// The time of a call, and lower bounds of the time for a row and for an element.
struct OpSeconds {
  double begin = 0, row = 0, element = 0;
};

constexpr std::array<OpSeconds, plan::kOpCount> makeSeconds() {
  std::array<OpSeconds, plan::kOpCount> seconds{};
#define BEGIN(op, us) seconds[static_cast<size_t>(OpKind::op)].begin = us * 1e-6;
#define ROW(op, ns) seconds[static_cast<size_t>(OpKind::op)].row = ns * 1e-9;
#define ELEMENT(op, ps) seconds[static_cast<size_t>(OpKind::op)].element = ps * 1e-12;
#include "compiler/predict/KernelTable.def"
  return seconds;
}
constexpr std::array<OpSeconds, plan::kOpCount> kSeconds = makeSeconds();

double memorySeconds(const Device &device, double bytes, double gbs) {
  double scale = device.sustained.memoryGBs / measured().sustained.memoryGBs;
  return bytes / (gbs * scale * 1e9);
}

/// The exposed time of the memory traffic for an fp32 weight gradient. A product over `depth` rows
/// writes the gradient, and also reads it if it accumulates.
double epilogueSeconds(const Device &device, const Segment &segment, const Op &op, size_t result,
                       double depth) {
  const plan::Type &out = segment.values[op.results[result]].type;
  if (out.dtype != DType::F32)
    return 0;
  bool accumulates = std::ranges::any_of(op.ties, [&](const plan::Tie &tie) {
    return tie.kind == plan::Tie::Acc && tie.result == result;
  });
  double bytes = static_cast<double>(out.bytes()) * (accumulates ? 2 : 1);
  return std::min(kEpilogueDepth / depth, 1.0) *
         memorySeconds(device, bytes, measured().sustained.memoryGBs);
}

/// The fraction of the dense products' rate that a grouped product reaches, by the average number
/// of rows per expert.
double groupedShare(const Segment &segment, const Op &op, double flops) {
  bool isGradient = segment.values[op.results[0]].type.rank == 3;
  constexpr size_t kWeights = plan::operandIndex<OpKind::GroupedMatMul>("b");
  static_assert(kWeights == plan::operandIndex<OpKind::GroupedMatMulScaled>("b"));
  const plan::Type &weights =
      segment.values[isGradient ? op.results[0] : op.operands[kWeights]].type; // of all experts
  return curve(kGroupedShares, flops / 2 / static_cast<double>(weights.numel()));
}

Fp8Factors fp8FactorsOf(const Op &op) {
  return static_cast<Fp8Factors>(op.getInt(Key::fp8_recipe));
}

/// Seconds to quantise both operands: each is read (twice, if groups of rows are scaled by their
/// current amax) and written in 8 bits. Weights stored in 8 bits are only transposed.
double quantisingSeconds(const Device &device, const Segment &segment, const Op &op) {
  double bytes = 0;
  for (size_t i = 0; i < 2; ++i) {
    const plan::Type &type = segment.values[op.operands[i]].type;
    bool isReadTwice = fp8FactorsOf(op) == Fp8Factors::Tensorwise && type.dtype != DType::F8E4M3;
    bytes += static_cast<double>(type.bytes() * (isReadTwice ? 2 : 1) + type.numel());
  }
  return memorySeconds(device, bytes, kQuantisingGBs);
}

double productSeconds(const Device &device, const Segment &segment, const Op &op, double flops) {
  const plan::Type &out = segment.values[op.results[0]].type;
  const plan::Type &in = segment.values[op.operands[0]].type;
  auto cols = static_cast<double>(std::max<int64_t>(out.shape[out.rank - 1], 1));
  auto rows = static_cast<double>(out.numel()) / cols;
  bool isCounted = segment.values[op.results[0]].counts != plan::kNone;
  double inner = isCounted ? static_cast<double>(in.numel()) / rows : flops / 2 / (rows * cols);
  double least = std::min({flops / 2 / (cols * inner), cols, inner});
  bool quantises = op.getInt(Key::fp8_recipe) != 0;
  DType type = quantises ? DType::F8E4M3 : in.dtype;
  std::optional<double> rated =
      device.rates ? device.rates->productTflops(type, least) : std::nullopt;
  double rate =
      rated ? ratedTflops(device, *rated) : productTflops(least) * matmulScale(device, type);
  bool isScaled = op.kind == OpKind::MatMulScaled; // the scales are negligible
  bool hasCounts = isGrouped(op);
  if (!hasCounts && op.operands.size() > (isScaled ? 4u : 2u))
    rate *= kBiasFactor;
  if (isScaled && !rated)
    rate *= kFloat8Factor;
  const KernelPath path = hasCounts ? pathOf(device, segment, op) : KernelPath::None;
  if (hasCounts)
    rate *=
        path == KernelPath::GroupedMma ? mmaGroupedShare(device) : groupedShare(segment, op, flops);
  if (isScaled && segment.values[op.operands[2]].type.numel() > 1)
    rate *= kBlockScalesFactor;
  if (info(path).isOnCudaCores())
    rate = plainGroupedTflops(device);
  else if (quantises)
    rate *= kQuantisedFactor * (isScaledWhole(fp8FactorsOf(op))
                                    ? 1.0
                                    : kQuantisedBlocksFactor[op.kind == OpKind::GroupedMatMulBwd]);
  return kRampSeconds + flops / (rate * 1e12) + epilogueSeconds(device, segment, op, 0, inner) +
         (quantises ? quantisingSeconds(device, segment, op) : 0);
}

/// Seconds of Muon's matrix products on the rank that computes most of them. A rank orthogonalises
/// each matrix of which its part of the block has a row.
double matricesSeconds(const Device &device, const plan::Plan &plan, const Op &op) {
  bool isNarrow = static_cast<NsProducts>(op.getInt(Key::products)) == NsProducts::Medium;
  double scale = matmulScale(device, isNarrow ? DType::BF16 : DType::F32);
  const auto block = static_cast<int32_t>(op.getInt(Key::block));
  const int64_t part = std::max<int64_t>(plan.blocks[static_cast<size_t>(block)].stateShard, 1);
  const bool isJoined = op.kind != OpKind::Muon || op.getInt(Key::tensor_parts) > 1;
  std::map<int64_t, double> seconds; // by index of the rank's part
  for (const plan::BlockMatrix &matrix : plan::matricesOf(plan, block, isJoined)) {
    auto side =
        static_cast<double>(op.kind == OpKind::Muon ? matrix.shortSide() : matrix.sharedSide());
    for (int64_t index = matrix.begin / part; index <= (matrix.end - 1) / part; ++index)
      seconds[index] += flopsOfMatrix(op, matrix) / (productTflops(side) * scale * 1e12);
  }
  double most = 0;
  for (const auto &[index, own] : seconds)
    most = std::max(most, own);
  return most;
}

/// Assumed number of rows in a tile of cuDNN's attention with a window. All rows of a tile compute
/// with every key that any of them attends to.
constexpr double kWindowTile = 128;

double attentionSeconds(const Device &device, const Segment &segment, const Op &op, double flops) {
  const plan::Type &q = queriesOf(segment, op);
  AttentionKind kind = attentionKindOf(segment, op);
  bool isBackward = isAttentionBwd(op.kind);
  auto positions = static_cast<double>(q.shape[1]);
  const KernelPath path = kernelPath(kind, traitsOf(device));
  const bool isPlain = info(path).isOnCudaCores();
  double seen = static_cast<double>(op.getInt(Key::window)) + 1; // 0 without a window
  if (!isPlain && seen > 0 && seen < positions) {
    flops *= (seen + kWindowTile) / seen;
    positions = std::min(positions, 2 * (seen + kWindowTile)); // a query attends to half of them
  }
  std::optional<double> rated;
  if (device.rates && (!isPlain || device.isHost() || q.dtype == DType::F32))
    rated = device.rates->attentionTflops(q.dtype, kind.channels, positions, isBackward);
  if (rated)
    return flops / (ratedTflops(device, *rated) * 1e12);
  if (isPlain)
    return flops / (plainAttentionTflops(device, isBackward) * 1e12);
  if (path == KernelPath::AttentionMma)
    return flops / (mmaAttentionTflops(device, std::max(kind.channels, kind.values), kind.drops,
                                       isBackward) *
                    1e12);
  double tflops =
      attentionTflops(kind.channels, positions, isBackward) * matmulScale(device, q.dtype);
  if (path == KernelPath::AttentionWgmma)
    tflops *= kTileAttention[isBackward];
  return kAttentionBegin[isBackward] + flops / (tflops * 1e12);
}

/// The members of the op's collective. For a transfer between a pair of ranks, assumes that both
/// are in one node if the group has two members per node.
Team membersOf(const Device &device, const plan::Plan &plan, const Op &op) {
  Team team = teamOf(device, plan, op.group);
  if (plan.membersOf(op) < team.members)
    team = {2, std::min<int64_t>(team.inNode, 2), std::min<int64_t>(team.inDomain, 2)};
  return team;
}

/// The bytes of all collectives that are issued together.
int64_t wholeBytesOf(const Segment &segment, const std::vector<uint32_t> &together) {
  int64_t bytes = 0;
  for (uint32_t op : together)
    bytes += segment.values[plan::wholeOf(segment.ops[op])].type.bytes();
  return bytes;
}

/// The bytes that a collective on a whole of `bytes` moves. Unused rows are not moved if ranks can
/// write into each other's memory.
int64_t bytesMoved(const Device &device, const plan::Plan &plan, const Op &op, const Team &team,
                   int64_t whole) {
  const bool arePeers = device.hasPeers || team.inDomain == team.members;
  if (!plan::leavesRowsOut(op) || team.inNode != team.members || !arePeers)
    return whole;
  return static_cast<int64_t>(static_cast<double>(whole) * model::busiestShareOfRows(plan));
}

/// The slowdown of concurrent kernels, as a fraction of the collective's time.
double contentionOf(const plan::Plan &plan, const Op &op) {
  bool isOfLayer = plan.streams[static_cast<size_t>(op.stream)].kind == plan::StreamKind::Layer;
  return isOfLayer && plan.job.model.tpCommOverlap ? kContentionOfPieces : kContention;
}

bool isCollective(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Collective; }

bool isCopyOfHost(const Op &op) { return op.kind == OpKind::ToHost || op.kind == OpKind::ToDevice; }

/// A transfer between stages ends when both stages have reached it; meetingsOf() handles these.
bool isBetweenStages(const Op &op) { return plan::isPointToPoint(op); }

bool takesNoTime(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Alias; }

/// A launch of a segment in a step.
struct Launch {
  uint32_t segment;
  plan::Variant variant;
  auto operator<=>(const Launch &) const = default;
};

/// Begin and end of each op of a launch, and the sums of the launch.
struct LaunchTime {
  std::vector<double> begins, ends; ///< by op, seconds in the launch; equal: no time
  StepTime sum;
};

/// The time of each op of a segment if it runs: of a kernel and the gap after it, or of all
/// collectives that are issued together; and the slowdown of kernels that overlap it.
struct OpTimes {
  std::vector<std::vector<uint32_t>> together; ///< by op; empty: issued with another op
  std::vector<double> took, contending;
};

/// Times of a role's ops, by segment; computed when a launch needs them.
class RoleTimes {
public:
  RoleTimes(const Device &device, const plan::Plan &plan, const plan::Role &role)
      : device_(device), plan_(plan), role_(role), segments_(role.segments.size()) {}

  const Device &device() const { return device_; }
  const plan::Plan &plan() const { return plan_; }
  const plan::Role &role() const { return role_; }

  const OpTimes &of(uint32_t segment) {
    std::optional<OpTimes> &times = segments_[segment];
    if (!times)
      times = timeOps(role_.segments[segment]);
    return *times;
  }

  /// From here on, uses another device's rates of products, head and attention.
  void setRates(const Device &device) {
    device_ = device;
    for (size_t s = 0; s < segments_.size(); ++s)
      if (segments_[s])
        timeKernels(role_.segments[s], *segments_[s], [](const Op &op) {
          return takesPower(op) || plan::opInfo(op).work.cost == plan::CostClass::Attention;
        });
  }

private:
  static bool isIssued(const OpTimes &times, const Op &op, size_t i) {
    return !times.together[i].empty() && !takesNoTime(op) && !isBetweenStages(op);
  }

  template <typename IsTimed>
  void timeKernels(const Segment &segment, OpTimes &times, IsTimed isTimed) const {
    for (size_t i = 0; i < segment.ops.size(); ++i)
      if (const Op &op = segment.ops[i]; isIssued(times, op, i) && isTimed(op))
        times.took[i] = timeOf(device_, plan_, segment, op) + kGapSeconds;
  }

  void timeTransfers(const Segment &segment, OpTimes &times) const {
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      if (!isIssued(times, op, i) || !isCollective(op))
        continue;
      Team team = membersOf(device_, plan_, op);
      CollectiveKind kind = plan::collectiveKindOf(op);
      plan::Transport transport = plan_.transportOf(op);
      int64_t bytes =
          bytesMoved(device_, plan_, op, team, wholeBytesOf(segment, times.together[i]));
      times.took[i] = collectiveSeconds(device_, kind, transport, bytes, team);
      times.contending[i] = contentionOf(plan_, op) *
                            contendingSeconds(kind, transport, bytes, team.members, times.took[i]);
    }
  }

  OpTimes timeOps(const Segment &segment) const {
    OpTimes times;
    times.together = plan::issuedTogether(plan_, segment);
    times.took.resize(segment.ops.size());
    times.contending.resize(segment.ops.size());
    timeKernels(segment, times, [](const Op &op) { return !isCollective(op); });
    timeTransfers(segment, times);
    return times;
  }

  Device device_;
  const plan::Plan &plan_;
  const plan::Role &role_;
  std::vector<std::optional<OpTimes>> segments_;
};

/// Times a launch: streams run concurrently, each in order, from a common start.
LaunchTime timeLaunch(RoleTimes &times, const Launch &launch) {
  const Segment &segment = times.role().segments[launch.segment];
  const OpTimes &ops = times.of(launch.segment);
  std::array<double, plan::kStreamsMax> clock{};
  LaunchTime out;
  out.begins.resize(segment.ops.size());
  out.ends.resize(segment.ops.size());
  StepTime &sum = out.sum;
  double contending = 0;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    double &now = clock[op.stream];
    for (uint32_t member : ops.together[i])
      for (uint32_t awaited : segment.ops[member].waits)
        now = std::max(now, out.ends[awaited]);
    out.begins[i] = now;
    if (plan::holds(op.pred, launch.variant)) {
      double took = ops.took[i];
      (isCollective(op) || isCopyOfHost(op) ? sum.transfers : sum.compute) += took;
      sum.products += takesPower(op) ? took : 0;
      contending += ops.contending[i];
      now += took;
    }
    out.ends[i] = now;
  }
  double longest = *std::max_element(clock.begin(), clock.end());
  // Only collectives that overlap kernels slow these down.
  double hidden = std::max(sum.transfers - std::max(longest - sum.compute, 0.0), 0.0);
  double lost = sum.transfers > 0 ? contending * hidden / sum.transfers : 0;
  sum.compute += lost;
  sum.step = longest + lost + kLaunchSeconds;
  sum.exposed = std::max(longest + lost - sum.compute, 0.0);
  return out;
}

double memoryOpSeconds(const Device &device, const Segment &segment, const Op &op, double bytes) {
  const OpSeconds &least = kSeconds[static_cast<size_t>(op.kind)];
  double rows = 0, elements = 0;
  for (plan::ValueId operand : op.operands)
    elements += static_cast<double>(segment.values[operand].type.numel());
  if (!op.operands.empty()) {
    const plan::Type &first = segment.values[op.operands[0]].type;
    rows = static_cast<double>(first.numel() / std::max<int64_t>(first.shape[first.rank - 1], 1));
  }
  double gbs = isDelta(op) && info(pathOf(device, segment, op)).isOnCudaCores()
                   ? kPlainDeltaGBs[op.results.size() > 1]
                   : kMemoryGBs[static_cast<size_t>(op.kind)];
  return std::max({least.begin + memorySeconds(device, bytes, gbs > 0 ? gbs : kAssumedGBs),
                   rows * least.row, elements * least.element});
}

/// Calls `run` with each launch of a step, its number of repetitions, and the microbatch of the
/// first repetition (-1 if it has none).
template <typename Run> void forEachLaunch(const plan::Role &role, const Run &run) {
  using plan::Variant;
  for (const plan::ProgramNode &top : role.program) {
    if (top.kind != plan::ProgramNode::Steps)
      continue;
    std::vector<int64_t> named = plan::namedMicrobatches(role, top.children);
    std::vector<plan::VariantTable> variants;
    for (const Segment &segment : role.segments)
      variants.emplace_back(segment);
    struct Known {
      const plan::ProgramNode *run = nullptr;
      int64_t until = 0; ///< the iteration before which the variant stays the same
      Variant variant;
    };
    std::vector<Known> known(role.segments.size());
    auto variantOf = [&](const plan::ProgramNode &node, int64_t iteration) {
      Known &last = known[node.segment];
      if (const plan::VariantTable &table = variants[node.segment];
          last.run != &node || iteration >= last.until || iteration == 0) {
        int64_t count = named[node.segment];
        last = {&node, iteration, table.of(node.microbatch->at(iteration), count)};
        // A launch outside of loops has a single iteration.
        last.until += std::min(table.iterationsAlike(*node.microbatch, iteration, count), count);
      }
      return last.variant;
    };
    auto runAll = [&](uint32_t s, int64_t count) {
      run(Launch{s, variants[s].of(0, count)}, 1, 0);
      if (count > 2)
        run(Launch{s, variants[s].of(1, count)}, count - 2, 1);
      run(Launch{s, variants[s].of(count - 1, count)}, 1, count - 1);
    };
    plan::forEachRun(top.children, [&](const plan::ProgramNode &node, int64_t iteration) {
      uint32_t s = node.segment;
      if (node.microbatch)
        run(Launch{s, variantOf(node, iteration)}, 1, node.microbatch->at(iteration));
      else if (!role.segments[s].body || node.count == 1)
        run(Launch{s, Variant::Only}, node.count, role.segments[s].body ? 0 : -1);
      else
        runAll(s, node.count);
      return true;
    });
  }
}

/// The transfers between this launch and other stages. If an op of the segment reads a received
/// value, the launch waits for that transfer.
std::vector<Meeting> meetingsOf(const Device &device, const plan::Plan &plan,
                                const Segment &segment, const Launch &launch,
                                const LaunchTime &time) {
  std::vector<uint8_t> isRead(segment.values.size());
  for (const Op &op : segment.ops)
    for (plan::ValueId operand : op.operands)
      isRead[operand] = 1;
  std::vector<Meeting> meetings;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    if (!isBetweenStages(op) || !plan::holds(op.pred, launch.variant))
      continue;
    bool isSend = op.kind == OpKind::Send;
    meetings.push_back({op.channel, isSend, time.begins[i], timeOf(device, plan, segment, op),
                        !isSend && isRead[op.results[0]] != 0, static_cast<uint32_t>(i)});
  }
  std::stable_partition(meetings.begin(), meetings.end(),
                        [](const Meeting &meeting) { return meeting.isFirst; });
  return meetings;
}

struct TimedLaunch {
  LaunchTime time;
  std::vector<Meeting> meetings; ///< shared by passes of this launch
};

/// The launches of a step of one role, one by one.
struct RoleLaunches {
  std::map<Launch, TimedLaunch> timed;
  std::vector<const std::pair<const Launch, TimedLaunch> *> launches;
  std::vector<int64_t> microbatches; ///< by launch
  std::vector<Pass> passes;          ///< by launch
};

RoleLaunches launchesOf(RoleTimes &times) {
  RoleLaunches result;
  std::vector<const std::pair<const Launch, TimedLaunch> *> last(times.role().segments.size());
  forEachLaunch(times.role(), [&](const Launch &launch, int64_t count, int64_t microbatch) {
    auto *&like = last[launch.segment];
    if (!like || like->first != launch) {
      auto [at, isNew] = result.timed.try_emplace(launch);
      TimedLaunch &timed = at->second;
      if (isNew) {
        timed.time = timeLaunch(times, launch);
        timed.meetings = meetingsOf(times.device(), times.plan(),
                                    times.role().segments[launch.segment], launch, timed.time);
      }
      like = &*at;
    }
    for (int64_t i = 0; i < count; ++i) {
      result.launches.push_back(like);
      result.microbatches.push_back(microbatch < 0 ? microbatch : microbatch + i);
      result.passes.push_back({like->second.time.sum.step, like->second.meetings});
    }
  });
  return result;
}

} // namespace

double timeOf(const Device &device, const plan::Plan &plan, const plan::Segment &segment,
              const plan::Op &op) {
  if (isCollective(op)) {
    Team team = membersOf(device, plan, op);
    int64_t bytes =
        bytesMoved(device, plan, op, team, segment.values[plan::wholeOf(op)].type.bytes());
    return collectiveSeconds(device, plan::collectiveKindOf(op), plan.transportOf(op), bytes, team);
  }
  if (isCopyOfHost(op))
    return hostCopySeconds(device, segment.values[op.results[0]].type.bytes()) + kCopySeconds;
  model::OpCost cost = model::costOnBusiestRank(plan, segment, op);
  double seconds = 0;
  switch (plan::opInfo(op).work.cost) {
  case plan::CostClass::Nothing:
  case plan::CostClass::Transfer:
    break;
  case plan::CostClass::Product:
    seconds = productSeconds(device, segment, op, cost.flops);
    break;
  case plan::CostClass::Attention:
    seconds = attentionSeconds(device, segment, op, cost.flops);
    break;
  case plan::CostClass::Head: {
    const plan::Type &x = segment.values[op.operands[0]].type;
    double hidden = static_cast<double>(x.shape[x.rank - 1]);
    seconds = cost.flops / (headRate(device, x.dtype, hidden) * 1e12);
    for (size_t r = 0; r < op.results.size(); ++r)
      if (segment.values[op.results[r]].purpose == plan::Purpose::Grads)
        seconds += epilogueSeconds(device, segment, op, r, static_cast<double>(x.numel()) / hidden);
    break;
  }
  case plan::CostClass::Memory:
    seconds = memoryOpSeconds(device, segment, op, cost.bytes);
    if (op.kind == OpKind::Muon || op.kind == OpKind::MuonSums || op.kind == OpKind::MuonStep)
      seconds += matricesSeconds(device, plan, op);
    break;
  }
  return std::max(seconds, kLeastSeconds);
}

namespace {

StepTime addLaunches(RoleTimes &role) {
  StepTime sum;
  forEachLaunch(role.role(), [&](const Launch &launch, int64_t count, int64_t) {
    StepTime one = timeLaunch(role, launch).sum;
    auto times = static_cast<double>(count);
    sum.step += times * one.step;
    sum.compute += times * one.compute;
    sum.products += times * one.products;
    sum.transfers += times * one.transfers;
    sum.exposed += times * one.exposed;
  });
  return sum;
}

/// The step time of each role, at the current rates of its device.
std::vector<StepTime> stepsOf(std::vector<RoleTimes> &roles) {
  if (roles.size() == 1)
    return {addLaunches(roles.front())};
  std::vector<StepTime> steps;
  std::vector<RoleLaunches> launches;
  std::vector<std::vector<Pass>> actors;
  for (RoleTimes &role : roles) {
    RoleLaunches &own = launches.emplace_back(launchesOf(role));
    StepTime sum;
    for (const auto *launch : own.launches) {
      const StepTime &one = launch->second.time.sum;
      sum.waiting -= one.step;
      sum.compute += one.compute;
      sum.products += one.products;
      sum.transfers += one.transfers;
      sum.exposed += one.exposed;
    }
    steps.push_back(sum);
    actors.push_back(std::move(own.passes));
  }
  double end = 0;
  if (std::optional<std::vector<ActorTimes>> times = timesOf(actors))
    for (const ActorTimes &own : *times)
      end = std::max(end, own.passes.empty() ? 0 : own.passes.back().end);
  for (StepTime &step : steps) {
    step.step = end;
    step.waiting = std::max(step.waiting + end, 0.0);
  }
  return steps;
}

/// Sets the rates of roles to those that the power limit allows in their step. Stages that wait
/// draw little power, but they wait for longer than the interval over which the limit averages, so
/// only the time in which a stage works counts (docs/benchmarks/four-gpus.md).
void settle(const Device &device, std::vector<RoleTimes> &roles) {
  double products = 0, all = 0;
  for (const StepTime &step : stepsOf(roles))
    products += step.products, all += step.step - step.waiting;
  const Device own = atPower(device, all > 0 ? powerFactor(products / all) : 1);
  for (RoleTimes &role : roles)
    role.setRates(own);
}

/// Predicts the times of all roles, at the rates that the power limit allows.
std::vector<RoleTimes> settledRoles(const Device &device, const plan::Plan &plan) {
  std::vector<RoleTimes> roles;
  for (const plan::Role &role : plan.roles)
    roles.emplace_back(device, plan, role);
  settle(device, roles);
  return roles;
}

} // namespace

StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  std::vector<RoleTimes> alone{{device, plan, role}};
  settle(device, alone);
  return addLaunches(alone.front());
}

std::vector<StepTime> predictSteps(const Device &device, const plan::Plan &plan) {
  std::vector<RoleTimes> roles = settledRoles(device, plan);
  return stepsOf(roles);
}

std::vector<std::vector<double>> opSeconds(const Device &device, const plan::Plan &plan,
                                           const plan::Role &role) {
  std::vector<RoleTimes> alone{{device, plan, role}};
  settle(device, alone);
  std::vector<std::vector<double>> seconds(role.segments.size());
  forEachLaunch(role, [&](const Launch &launch, int64_t count, int64_t) {
    const Segment &segment = role.segments[launch.segment];
    std::vector<double> &of = seconds[launch.segment];
    of.resize(segment.ops.size());
    for (size_t i = 0; i < segment.ops.size(); ++i)
      if (plan::holds(segment.ops[i].pred, launch.variant))
        of[i] += static_cast<double>(count) * alone.front().of(launch.segment).took[i];
  });
  return seconds;
}

StepTime slowestOf(const std::vector<StepTime> &times) {
  return *std::ranges::max_element(times, {}, &StepTime::compute);
}

namespace {

/// Spreads the slowdown of kernels by overlapping transfers evenly over the time in which kernels
/// run, so that exposed transfers take as long as in the sums.
void slowKernels(const Segment &segment, LaunchTime &time) {
  struct Edge {
    double *at, covered; ///< a begin or end, and how long kernels ran before it
    int kernels;
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    int isKernel = isCollective(segment.ops[i]) || isCopyOfHost(segment.ops[i]) ? 0 : 1;
    edges.push_back({&time.begins[i], 0, isKernel});
    edges.push_back({&time.ends[i], 0, -isKernel});
  }
  std::ranges::stable_sort(edges, {}, [](const Edge &edge) { return *edge.at; });
  double covered = 0, last = 0, longest = edges.empty() ? 0 : *edges.back().at;
  for (int running = 0; Edge & edge : edges) {
    covered += running > 0 ? *edge.at - last : 0;
    last = *edge.at;
    running += edge.kernels;
    edge.covered = covered;
  }
  const double lost = time.sum.step - kLaunchSeconds - longest;
  for (const Edge &edge : edges)
    *edge.at += covered > 0 ? lost * edge.covered / covered : 0;
}

/// Collects the intervals of a role's ops, launch by launch.
class Timeline {
public:
  Timeline(const plan::Role &role, RoleLaunches &of, size_t countMax)
      : role_(role), of_(of), countMax_(countMax) {}

  void add(size_t i, const ActorTimes &times) {
    const PassTime &pass = times.passes[i];
    const auto &[launch, timed] = *of_.launches[i];
    const LaunchTime &time = timed.time;
    std::span<const Meeting> meetings = of_.passes[i].meetings;
    double held = pass.end - pass.begin - time.sum.step; // by another stage
    bool isHeldFirst = !meetings.empty() && meetings[0].isFirst;
    double begin = pass.begin + kLaunchSeconds + (isHeldFirst ? held : 0);
    for (uint32_t op = 0; op < time.ends.size(); ++op)
      if (time.ends[op] > time.begins[op])
        add({launch.segment, op, begin + time.begins[op], begin + time.ends[op],
             microbatchOf(i, op)});
    for (size_t m = 0; m < meetings.size(); ++m) {
      double end = times.meetingEnds[pass.firstMeeting + m];
      add({launch.segment, meetings[m].op, end - meetings[m].seconds, end,
           microbatchOf(i, meetings[m].op)});
    }
  }

  std::vector<Interval> take() { return std::move(intervals_); }

private:
  int64_t microbatchOf(size_t launch, uint32_t op) const {
    const Segment &segment = role_.segments[of_.launches[launch]->first.segment];
    return of_.microbatches[launch] +
           (segment.ops[op].phase == plan::Phase::Backward ? segment.shift : 0);
  }

  void add(const Interval &interval) {
    if (intervals_.size() < countMax_)
      intervals_.push_back(interval);
  }

  const plan::Role &role_;
  RoleLaunches &of_;
  size_t countMax_;
  std::vector<Interval> intervals_;
};

} // namespace

std::vector<std::vector<Interval>> timelinesOf(const Device &device, const plan::Plan &plan,
                                               size_t countMax) {
  std::vector<RoleLaunches> roles;
  std::vector<std::vector<Pass>> actors;
  for (RoleTimes &role : settledRoles(device, plan)) {
    roles.push_back(launchesOf(role));
    actors.push_back(roles.back().passes);
    for (auto &[launch, timed] : roles.back().timed)
      slowKernels(role.role().segments[launch.segment], timed.time);
  }
  std::optional<std::vector<ActorTimes>> times = timesOf(actors);
  std::vector<std::vector<Interval>> timelines;
  for (size_t r = 0; r < roles.size(); ++r) {
    Timeline timeline(plan.roles[r], roles[r], countMax / roles.size());
    for (size_t i = 0; times && i < roles[r].launches.size(); ++i)
      timeline.add(i, (*times)[r]);
    timelines.push_back(timeline.take());
  }
  return timelines;
}

} // namespace shardc::predict
