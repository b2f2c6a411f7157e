#include "compiler/passes/TransferOrder.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// Maximum number of ops that an op may overtake, since activations would otherwise live much
/// longer.
constexpr size_t kWindow = 64;

/// Orders ops so that transfers inside layers begin as early, and are waited for as late, as
/// possible. Simulates two queues with predicted times: compute and the link. Issues each op to its
/// queue in the order in which ops can begin: while the next compute op waits for a transfer,
/// another ready op runs.
class TransferOrder {
public:
  TransferOrder(const plan::Plan &plan, plan::Segment &segment)
      : plan_(plan), device_(predict::deviceOf(plan)), segment_(segment),
        needs_(segment.ops.size()), ends_(segment.ops.size(), 0), given_(segment.ops.size(), 0),
        feeds_(segment.ops.size(), 0) {}

  void run() {
    findNeeds();
    for (size_t begin = 0; begin < segment_.ops.size();) {
      size_t end = begin;
      while (end < segment_.ops.size() && !isFixed(end) &&
             segment_.ops[end].phase == segment_.ops[begin].phase)
        ++end;
      order(begin, end);
      for (; end < segment_.ops.size() && isFixed(end); ++end)
        give(end);
      begin = end;
    }
    replaceOps();
  }

  /// Interleaves the first `second` ops with the others; the order of each series stays, and views
  /// stay beside their readers, so that gathers may come late. Of two ops that can begin at once,
  /// that of the series which takes longer from there on comes first.
  void interleave(size_t second) {
    findNeeds();
    keepOrderOfFixed(second);
    std::array<size_t, 2> next = {0, second}, end = {second, segment_.ops.size()};
    std::vector<double> left(segment_.ops.size()); // seconds of the series from the op on
    for (size_t i = left.size(); i-- > 0;)
      left[i] = secondsOf(i) + (i + 1 == end[0] || i + 1 == end[1] ? 0 : left[i + 1]);
    auto readerOf = [&](size_t series) {
      size_t op = next[series];
      while (op + 1 < end[series] && isAlias(at(op)))
        ++op;
      return op;
    };
    auto rankOf = [&](size_t series) {
      double begin = 0;
      for (size_t op = next[series]; op < end[series] && op <= readerOf(series); ++op) {
        if (!isReady(op, next[series]))
          return std::tuple(true, 0.0, 0.0);
        begin = std::max({begin, readyAt(op), isAlias(at(op)) ? 0 : clockOf(op)});
      }
      bool isDone = next[series] == end[series];
      return std::tuple(isDone, begin, isDone ? 0 : -left[next[series]]);
    };
    while (order_.size() < segment_.ops.size()) {
      const size_t series = rankOf(1) < rankOf(0) ? 1 : 0;
      for (size_t last = readerOf(series); next[series] <= last;)
        give(next[series]++);
    }
    replaceOps();
  }

private:
  void replaceOps() {
    std::vector<Op> ops;
    for (size_t op : order_)
      ops.push_back(std::move(segment_.ops[op]));
    plan::replaceOps(segment_, std::move(ops));
  }

  const Op &at(size_t op) const { return segment_.ops[op]; }
  bool isTransfer(size_t op) const {
    return plan::opInfo(at(op)).traits == plan::OpTraits::Collective;
  }
  /// Ops that change state, and transfers between stages, keep their positions.
  bool isFixed(size_t op) const {
    const plan::OpInfo &info = plan::opInfo(at(op));
    return info.traits == plan::OpTraits::None || info.traits == plan::OpTraits::Copy ||
           plan::isPointToPoint(at(op));
  }

  /// Finds the dependences of each op: the producers of its operands, and the readers of what it
  /// overwrites.
  void findNeeds() {
    std::vector<std::vector<uint32_t>> readers(segment_.values.size());
    auto needProducer = [&](size_t op, ValueId value) {
      if (uint32_t def = segment_.values[value].def; def != kNone)
        needs_[op].push_back(def);
    };
    auto overwrite = [&](size_t op, ValueId value) {
      needProducer(op, value);
      needs_[op].insert(needs_[op].end(), readers[value].begin(), readers[value].end());
    };
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      for (ValueId operand : at(i).operands)
        needProducer(i, operand);
      for (const plan::Tie &tie : at(i).ties)
        overwrite(i, tie.value);
      for (size_t r = 0; r < at(i).results.size(); ++r)
        if (int operand = plan::inPlaceOperand(at(i), r); operand >= 0)
          overwrite(i, at(i).operands[static_cast<size_t>(operand)]);
      for (ValueId operand : at(i).operands)
        readers[operand].push_back(static_cast<uint32_t>(i));
      for (uint32_t need : needs_[i])
        feeds_[need] |= isTransfer(i) ? 1 : 0;
    }
  }

  /// Lets ops of the second series that change state, or move data between stages, follow those of
  /// the first one on the same stream.
  void keepOrderOfFixed(size_t second) {
    auto keyOf = [&](size_t op) {
      return std::pair(at(op).stream, plan::isPointToPoint(at(op)) ? OpKind{} : at(op).kind);
    };
    std::map<std::pair<plan::StreamId, OpKind>, uint32_t> last;
    for (size_t i = 0; i < segment_.ops.size(); ++i)
      if (auto found = last.find(keyOf(i)); isFixed(i) && i < second)
        last[keyOf(i)] = static_cast<uint32_t>(i);
      else if (isFixed(i) && found != last.end())
        needs_[i].push_back(found->second);
  }

  /// Whether all that the op needs was issued, apart from ops from `next` on.
  bool isReady(size_t op, size_t next = SIZE_MAX) const {
    return std::ranges::all_of(
        needs_[op], [&](uint32_t need) { return given_[need] != 0 || need >= next; });
  }
  /// The time at which all dependences of the op have completed.
  double readyAt(size_t op) const {
    double at = 0;
    for (uint32_t need : needs_[op])
      at = std::max(at, ends_[need]);
    return at;
  }

  void give(size_t op) {
    double begin = readyAt(op);
    given_[op] = 1;
    order_.push_back(op);
    ends_[op] = begin;
    if (isAlias(at(op)))
      return;
    double &clock = isTransfer(op) ? link_ : compute_;
    clock = std::max(clock, begin) + secondsOf(op);
    ends_[op] = clock;
  }
  double clockOf(size_t op) const { return isTransfer(op) ? link_ : compute_; }
  double secondsOf(size_t op) const {
    return isAlias(at(op)) ? 0 : predict::timeOf(device_, plan_, segment_, at(op));
  }

  void order(size_t begin, size_t end) {
    for (size_t first = begin; first < end;) {
      if (given_[first] != 0) {
        ++first;
        continue;
      }
      size_t last = std::min(end, first + kWindow);
      giveTransfers(first, last);
      if (size_t next = nextOf(first, last); next < last)
        give(next);
    }
  }

  /// Issues ready ops that cost no time, and ready transfers: those of new values at once, those of
  /// older values when the link is idle.
  void giveTransfers(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      if (given_[i] != 0 || !isReady(i))
        continue;
      bool isDue = isAlias(at(i)) || (isTransfer(i) && (readyAt(i) >= made_ || link_ <= compute_));
      if (isDue)
        give(i);
    }
    made_ = compute_;
  }

  /// The next op to issue. Among ops that can begin now, prefers a light one that feeds a transfer,
  /// then the first. If none can begin now, returns the one that can begin first. Returns a
  /// transfer only if no other op is ready.
  size_t nextOf(size_t first, size_t last) const {
    size_t best = last;
    std::tuple<bool, double, bool> bestRank;
    for (size_t i = first; i < last; ++i) {
      if (given_[i] != 0 || !isReady(i))
        continue;
      bool isLight = plan::opInfo(at(i)).work.cost == plan::CostClass::Memory;
      std::tuple rank{isTransfer(i), std::max(readyAt(i) - compute_, 0.0),
                      !(isLight && feeds_[i] != 0)};
      if (best == last || rank < bestRank)
        best = i, bestRank = rank;
    }
    return best;
  }

  const plan::Plan &plan_;
  const predict::Device device_;
  plan::Segment &segment_;
  std::vector<std::vector<uint32_t>> needs_; ///< by op
  std::vector<double> ends_;                 ///< by op, predicted
  std::vector<uint8_t> given_;               ///< by op: whether it was issued
  std::vector<uint8_t> feeds_;               ///< by op: whether a transfer reads its result
  double compute_ = 0, link_ = 0;            ///< seconds at which each has completed its issued ops
  double made_ = 0;                          ///< compute's time when transfers were last issued
  std::vector<size_t> order_;
};

} // namespace

void orderTransfers(const plan::Plan &plan, plan::Segment &segment) {
  TransferOrder(plan, segment).run();
}

void interleave(const plan::Plan &plan, plan::Segment &segment, size_t second) {
  TransferOrder(plan, segment).interleave(second);
}

} // namespace shardc::passes
