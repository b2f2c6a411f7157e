#include "compiler/predict/Overheads.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compiler/predict/Scratch.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/SmallCollectives.h"
#include "runtime/plan/Execution.h"

namespace shardc::predict {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using Key = plan::AttrKey;

constexpr int64_t kMiB = int64_t{1} << 20;

/// A context of CUDA 13 with this program's kernels; and the memory that cuBLASLt and cuDNN keep.
constexpr int64_t kContext = 527 * kMiB, kLibraries = 2 * kMiB;
/// Arenas end at a multiple of the driver's allocation granularity.
constexpr int64_t kPage = 2 * kMiB;
/// Memory of a communicator, by what it does: transfers with one multiprocessor; gathers by copy
/// engines; reduce-scatters by kernels (486 and 670 MiB were observed); gathers and all-reductions
/// by kernels; sends and receives (1,118 MiB between two devices, 1,886 among four); transfers
/// between stages, for the first such communicator of a rank and for each further one, both
/// including the small one through which the ends of a transfer synchronise. More members, and
/// members on other nodes, were not measured.
constexpr int64_t kSmallCommunicator = 24 * kMiB, kCopyCommunicator = 428 * kMiB,
                  kScatterCommunicator = 600 * kMiB, kKernelCommunicator = 862 * kMiB,
                  kExchangeCommunicator = 734 * kMiB, kPeer = 384 * kMiB,
                  kFirstTransfers = 704 * kMiB, kFurtherTransfers = 268 * kMiB;
constexpr int32_t kSmallMultiprocessors = 1;
/// Transfers between stages overlap a whole pass, so few multiprocessors suffice. Chosen, not
/// measured.
constexpr int32_t kTransferMultiprocessors = 8;

struct Use {
  int64_t bytesMax = 0;
  int64_t peers = 0; ///< members in the node to which parts of sums are sent
  bool copyEngines = false, scattersAlone = true, transfersAlone = true;

  int32_t multiprocessors(plan::Transport transport) const {
    if (bytesMax == 0)
      return 0;
    if (bytesMax <= kSmallCollectiveBytes)
      return kSmallMultiprocessors;
    return transfersAlone ? kTransferMultiprocessors : kernelMultiprocessors(transport);
  }
};

/// The uses of each channel by the role, indexed by ChannelId.
std::vector<Use> usesOf(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  std::vector<Use> uses(plan.channels.size());
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops) {
      if (op.channel == plan::kNoChannel || plan.groupSize(op.group) < 2)
        continue;
      Use &use = uses[static_cast<size_t>(op.channel)];
      for (const std::vector<plan::ValueId> *values : {&op.operands, &op.results})
        if (!values->empty())
          use.bytesMax = std::max(use.bytesMax, segment.values[values->front()].type.bytes());
      CollectiveKind kind = plan::collectiveKindOf(op);
      use.copyEngines |=
          kind == CollectiveKind::AllGather && plan.transportOf(op) == plan::Transport::Ce;
      if (plan::isExchanged(plan, segment, op) || isBySends(kind))
        use.peers = teamOf(device, plan, op.group).inNode - 1;
      use.scattersAlone &= kind == CollectiveKind::ReduceScatter;
      use.transfersAlone &= isPointToPoint(kind);
    }
  return uses;
}

/// By ChannelId: bytes of the communicator.
std::vector<int64_t> communicatorBytes(const std::vector<Use> &uses) {
  std::vector<int64_t> bytes;
  bool hasTransfers = false;
  for (const Use &use : uses) {
    bool isLarge = use.bytesMax > kSmallCollectiveBytes;
    bool transfers = isLarge && use.transfersAlone && !use.copyEngines;
    bytes.push_back(use.bytesMax == 0   ? 0
                    : use.copyEngines   ? kCopyCommunicator
                    : !isLarge          ? kSmallCommunicator
                    : transfers         ? (hasTransfers ? kFurtherTransfers : kFirstTransfers)
                    : use.peers > 0     ? kExchangeCommunicator + use.peers * kPeer
                    : use.scattersAlone ? kScatterCommunicator
                                        : kKernelCommunicator);
    hasTransfers |= transfers;
  }
  return bytes;
}

/// The bandwidth of the largest gather of the role; 0 if there is none.
double largestGatherGBs(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  int64_t bytes = 0;
  double gbs = 0;
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops)
      if (op.kind == OpKind::AllGather && op.group >= 0) {
        int64_t whole = segment.values[op.results[0]].type.bytes();
        if (whole <= bytes)
          continue;
        bytes = whole;
        gbs = gatherGBs(device, plan.transportOf(op), whole, teamOf(device, plan, op.group));
      }
  return gbs;
}

/// The maximum number of multiprocessors per channel with which all channels of a role fit on the
/// device at once.
int32_t limitFor(const Device &device, const std::vector<int32_t> &taken) {
  auto sum = [&](int32_t limit) {
    int64_t all = 0;
    for (int32_t each : taken)
      all += std::min(each, limit);
    return all;
  };
  int32_t limit = device.multiprocessors;
  while (limit > 1 && sum(limit) > device.multiprocessors)
    --limit;
  return limit;
}

} // namespace

int64_t leastOverheadBytes() { return kContext + kLibraries; }

int64_t deviceBytesOf(const plan::Plan &plan, const plan::Role &role) {
  std::optional<Gpu> gpu = findDevice(plan.needsGpu);
  bool isHost = !gpu || device(*gpu).isHost();
  int64_t bytes = isHost ? role.arenaBytes[static_cast<size_t>(plan::Arena::Host)] : 0;
  for (plan::Arena arena : {plan::Arena::State, plan::Arena::Work, plan::Arena::Sym})
    bytes += role.arenaBytes[static_cast<size_t>(arena)];
  return bytes + (gpu ? overheadsOf(device(*gpu), plan, role).total() : 0);
}

const plan::Role &largestRole(const plan::Plan &plan) {
  return *std::ranges::max_element(
      plan.roles, {}, [&](const plan::Role &role) { return deviceBytesOf(plan, role); });
}

Overheads overheadsOf(const Device &device, const plan::Plan &plan) {
  return plan.roles.empty() ? Overheads{} : overheadsOf(device, plan, largestRole(plan));
}

Overheads overheadsOf(const Device &device, const plan::Plan &plan, const plan::Role &role) {
  if (device.isHost())
    return {};
  Overheads overheads;
  overheads.context = kContext;
  overheads.channels = communicatorBytes(usesOf(device, plan, role));
  overheads.communicators =
      std::accumulate(overheads.channels.begin(), overheads.channels.end(), int64_t{0});
  bool isDeterministic = plan.job.model.deterministicMode;
  overheads.workspaces = (workspacesOf(device, role, isDeterministic) + kPage - 1) / kPage * kPage;
  overheads.receiveBuffers = (plan::receiveBufferBytes(plan, role) + kPage - 1) / kPage * kPage;
  overheads.libraries = kLibraries;
  return overheads;
}

std::vector<int32_t> multiprocessorsOf(const Device &device, const plan::Plan &plan) {
  std::vector<int32_t> most(plan.channels.size());
  if (device.isHost())
    return most;
  int32_t limit = device.multiprocessors;
  for (const plan::Role &role : plan.roles) {
    std::vector<Use> uses = usesOf(device, plan, role);
    std::vector<int32_t> taken;
    for (size_t channel = 0; channel < uses.size(); ++channel) {
      taken.push_back(uses[channel].multiprocessors(plan.channels[channel].transport));
      most[channel] = std::max(most[channel], taken.back());
    }
    limit = std::min(limit, limitFor(device, taken));
  }
  for (int32_t &each : most)
    each = std::min(each, limit);
  return most;
}

void notePredictions(const Device &device, plan::Plan &plan) {
  using plan::JobField;
  if (device.isHost() || plan.roles.empty())
    return;
  for (plan::Role &role : plan.roles) {
    Overheads memory = overheadsOf(device, plan, role);
    role.besideBytes = {memory.communicators, memory.receiveBuffers, memory.workspaces};
  }
  plan.job.put(JobField::derived_memoryContextBytes, kContext);
  plan.job.put(JobField::derived_memoryLibrariesBytes, kLibraries);
  const plan::Role &role = plan.roles.front();
  // Rounded, so that plans are equal byte for byte on machines whose logarithm functions differ.
  auto rounded = [](double value) { return std::round(value * 100) / 100; };
  plan.job.put(JobField::derived_predictedGatherGBs, rounded(largestGatherGBs(device, plan, role)));
  plan.job.put(JobField::derived_predictedStepMs,
               rounded(predictSteps(device, plan).front().step * 1e3));
}

} // namespace shardc::predict
