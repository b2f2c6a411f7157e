// Orders the ops of a segment, and checks its collectives: those of one channel are ordered, and
// kernels of channels that may run at once fit the device together.
#include "runtime/verify/VerifyShadow.h"

#include <algorithm>
#include <map>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

HappensBefore::HappensBefore(const Segment &segment)
    : before_(segment.ops.size()), position_(segment.ops.size()), stream_(segment.ops.size()) {
  std::array<Clock, kStreamsMax> done{}; // for each stream: what has ended when its last op ends
  std::vector<Clock> after(segment.ops.size());
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    auto s = static_cast<size_t>(op.stream);
    Clock clock = done[s];
    for (uint32_t wait : op.waits)
      for (size_t k = 0; k < clock.size(); ++k)
        clock[k] = std::max(clock[k], after[wait][k]);
    before_[i] = clock;
    stream_[i] = static_cast<uint8_t>(s);
    position_[i] = done[s][s];
    clock[s] = position_[i] + 1;
    after[i] = done[s] = clock;
  }
}

namespace {

/// NCCL matches the collectives of a channel by their order of issue, so every rank needs the same
/// order. A microbatch skips the same collectives on all ranks.
void checkCollectiveOrder(const Scope &scope, const HappensBefore &order, Variant variant) {
  if (scope.plan().level < Level::Scheduled)
    return;
  std::map<ChannelId, uint32_t> latest;
  for (uint32_t i = 0; i < scope.segment.ops.size(); ++i) {
    const Op &op = scope.segment.ops[i];
    if (opInfo(op).traits != OpTraits::Collective || !executes(op, variant))
      continue;
    auto [at, isFirst] = latest.try_emplace(op.channel, i);
    uint32_t earlier = at->second;
    at->second = i;
    if (isFirst || order.ends(earlier, i))
      continue;
    Finding &f =
        scope.add(finding::CollectivesUnordered, i, channelAt(scope.plan(), op.channel).name);
    f.variant = variant;
    note(f, "the other collective is here", scope.spot(earlier));
  }
}

bool hasKernelsOfChannels(const Plan &plan) {
  return plan.level >= Level::Scheduled &&
         (plan.multiprocessors > 0 || plan.needsBackend == "cuda");
}

/// Checks that kernels of communicators fit the device together. Such a kernel waits for its peers
/// on other ranks. If ranks start kernels of several communicators in different orders, all of
/// these kernels must be resident at once.
class RoomCheck {
public:
  RoomCheck(const Scope &scope, const HappensBefore &order, Variant variant)
      : scope_(scope), order_(order), variant_(variant) {}

  void run() {
    for (uint32_t i = 0; i < scope_.segment.ops.size(); ++i)
      add(i);
    for (const auto &[channel, latest] : latest_)
      check(channel);
  }

private:
  /// Ops of a channel are ordered, so if the latest one has ended, all have.
  void add(uint32_t i) {
    const Op &op = scope_.segment.ops[i];
    if (op.channel == kNoChannel || !executes(op, variant_) || scope_.plan().membersOf(op) < 2 ||
        !scope_.inspection.spend(latest_.size() + 1))
      return;
    for (const auto &[channel, earlier] : latest_)
      if (channel != op.channel && !order_.ends(earlier, i)) {
        beside_[channel].try_emplace(op.channel, earlier, i);
        beside_[op.channel].try_emplace(channel, i, earlier);
      }
    latest_[op.channel] = i;
    if (collectiveKindOf(op) != CollectiveKind::AllGather ||
        channelOf(op.channel).transport != Transport::Ce)
      kernels_.try_emplace(op.channel, i);
  }

  const Channel &channelOf(ChannelId id) const { return channelAt(scope_.plan(), id); }

  void check(ChannelId channel) {
    int64_t sum = channelOf(channel).multiprocessors;
    std::string names = channelOf(channel).name;
    std::pair<uint32_t, uint32_t> ops{latest_[channel], kNone};
    for (const auto &[other, pair] : beside_[channel]) {
      if (channelOf(other).multiprocessors == 0)
        continue;
      sum += channelOf(other).multiprocessors;
      names += fmt::format(", {}", channelOf(other).name);
      ops = pair;
    }
    if (channelOf(channel).multiprocessors == 0)
      return checkNeedsNone(channel);
    if (sum <= scope_.plan().multiprocessors)
      return;
    Finding &f = scope_.add(finding::TooManyMultiprocessors, ops.first, names, sum,
                            scope_.plan().multiprocessors);
    if (ops.second == kNone)
      return;
    f.variant = variant_;
    note(f, "nothing orders the op and this one", scope_.spot(ops.second));
  }

  void checkNeedsNone(ChannelId channel) {
    if (auto kernel = kernels_.find(channel); kernel != kernels_.end())
      scope_.add(finding::NoMultiprocessors, kernel->second, channelOf(channel).name);
  }

  const Scope &scope_;
  const HappensBefore &order_;
  Variant variant_;
  std::map<ChannelId, uint32_t> latest_;  ///< op of each channel
  std::map<ChannelId, uint32_t> kernels_; ///< first op that copy engines cannot serve
  /// For each channel, the channels that may run at the same time, with a pair of ops that are not
  /// ordered.
  std::map<ChannelId, std::map<ChannelId, std::pair<uint32_t, uint32_t>>> beside_;
};

} // namespace

const HappensBefore &Inspection::orderOf(uint32_t role, uint32_t segment) {
  std::shared_ptr<const HappensBefore> &order = orders_[{role, segment}];
  if (!order)
    order = std::make_shared<HappensBefore>(plan_.roles[role].segments[segment]);
  return *order;
}

void checkOrder(const Scope &scope) {
  const HappensBefore &order = scope.inspection.orderOf(scope.roleIndex, scope.segmentIndex);
  for (const auto &[variant, standing] :
       scope.inspection.representativesOf(scope.roleIndex, scope.segmentIndex)) {
    if (variant != standing)
      continue;
    checkCollectiveOrder(scope, order, variant);
    if (hasKernelsOfChannels(scope.plan()))
      RoomCheck(scope, order, variant).run();
  }
}

} // namespace shardc::plan::verifier
