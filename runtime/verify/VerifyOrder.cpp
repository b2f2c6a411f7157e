// Checks the order of ops by the values that they use: a definition ends before its readers start,
// readers end before an op takes over the buffer, and collectives of one channel are ordered. Needs
// no places, so it applies at every level.
#include "runtime/verify/VerifyShadow.h"

#include <algorithm>
#include <map>

#include "runtime/verify/VerifyContents.h"
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

class OrderCheck {
public:
  OrderCheck(const Scope &scope, const HappensBefore &order, Variant variant)
      : scope_(scope), order_(order), variant_(variant),
        contents_(scope.inspection.contentsOf(scope.roleIndex, scope.segmentIndex, variant)),
        readers_(scope.segment.values.size(), noOps()),
        takenOver_(scope.segment.values.size(), kNone) {}

  void run() {
    for (uint32_t i = 0; i < scope_.segment.ops.size() && !scope_.inspection.isFull(); ++i) {
      const Op &op = scope_.segment.ops[i];
      if (!executes(op, variant_))
        continue;
      for (ValueId operand : op.operands)
        read(i, operand);
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
          read(i, tie.value);
      takeOver(i);
    }
    // A corrupted cell is an error only if something reads it afterwards. For a placed plan,
    // VerifyBytes.cpp checks that.
    if (scope_.plan().level == Level::Placed)
      return;
    auto end = static_cast<uint32_t>(scope_.segment.ops.size());
    for (const Segment::Boundary &out : scope_.segment.outs)
      if (contents_.isDefined(out.value))
        contents_.forEachSource(out.value,
                                [&](ValueId source) { checkNotTaken(end, out.value, source); });
  }

private:
  void read(uint32_t i, ValueId operand) {
    if (!contents_.isDefined(operand)) {
      Finding &f = scope_.addValue(finding::ReadsUndefined, i, operand);
      annotate(f, scope_.value(operand).def,
               "the value is defined here, only if the predicate holds");
      return;
    }
    contents_.forEachSource(operand, [&](ValueId source) {
      checkDefined(i, operand, source);
      checkNotTaken(i, operand, source);
      readers_[source][order_.stream(i)] = i;
    });
  }

  void checkDefined(uint32_t i, ValueId operand, ValueId source) {
    uint32_t def = scope_.value(source).def;
    if (def == kNone || order_.ends(def, i))
      return;
    Finding &f = scope_.addValue(finding::ReadsTooEarly, i, operand, streamOf(def), streamOf(i));
    annotate(f, def, fmt::format("'%{}' is defined here", scope_.nameOf(source)));
  }

  const std::string &streamOf(uint32_t op) const {
    return scope_.plan().streams[scope_.segment.ops[op].stream].name;
  }

  void checkNotTaken(uint32_t i, ValueId operand, ValueId source) {
    if (takenOver_[source] == kNone)
      return;
    bool isEnd = i == scope_.segment.ops.size();
    Finding &f =
        scope_.addValue(finding::ReadsTakenOver, isEnd ? scope_.opOf(operand) : i, operand);
    annotate(f, takenOver_[source],
             fmt::format("the buffer of '%{}' is taken over here", scope_.nameOf(source)));
  }

  /// A result that an op writes into the buffer of an operand or tied value ends that value.
  void takeOver(uint32_t i) {
    const Op &op = scope_.segment.ops[i];
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = inPlaceOperand(op, r); operand >= 0)
        take(i, op.operands[static_cast<size_t>(operand)]);
    // A gather in place keeps this rank's part of the old content; VerifyBytes.cpp checks that
    // part.
    if (gathersInPlace(scope_.plan(), scope_.role, scope_.segment, op))
      return;
    for (const Tie &tie : op.ties)
      if (contents_.isDefined(tie.value) && inPlaceOperand(op, tie.result) < 0)
        take(i, tie.value);
  }

  void take(uint32_t i, ValueId value) {
    if (contents_.isNarrow(value))
      return; // a part of its sources: VerifyBytes.cpp checks it
    contents_.forEachSource(value, [&](ValueId source) {
      for (uint32_t reader : readers_[source])
        if (reader != kNone && reader != i && !order_.ends(reader, i)) {
          Finding &f = scope_.addValue(finding::TakesOverTooEarly, i, value);
          annotate(f, reader, fmt::format("'%{}' is read here", scope_.nameOf(source)));
        }
      takenOver_[source] = i;
    });
  }

  void annotate(Finding &finding, uint32_t other, std::string text) {
    finding.variant = variant_;
    note(finding, std::move(text), scope_.spot(other));
  }

  const Scope &scope_;
  const HappensBefore &order_;
  Variant variant_;
  const Contents &contents_;
  std::vector<OpOfStreams> readers_; ///< last reader of each value on each stream
  std::vector<uint32_t> takenOver_;  ///< op that ended the value's content
};

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
  for (Variant variant : distinctVariants(scope.inspection, scope.roleIndex, scope.segmentIndex)) {
    checkCollectiveOrder(scope, order, variant);
    if (hasKernelsOfChannels(scope.plan()))
      RoomCheck(scope, order, variant).run();
    OrderCheck(scope, order, variant).run();
  }
}

} // namespace shardc::plan::verifier
