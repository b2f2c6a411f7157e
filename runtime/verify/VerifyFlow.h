// The walk that analyses of values share. A domain says what is known of a value, what an op makes
// of what is known of its operands, and what two ways to a value have in common. The walk follows
// segments, what they leave in buffers, and what stages send each other, until nothing changes.
//
// A Domain has
//   State                          what is known of a value; default-constructed of a value to
//   which
//                                  no way leads yet, about which everything is true
//   bool State::join(const State&) adds another way; whether that changed anything
//   State loaded(role, cell)       of a cell that is no buffer: a load or the host fills it
//   void follow(Values, i, op)     sets the states of the results of an op, and, in the last walk,
//                                  reports what is wrong
//   void add(Values, i, tie)       adds to a result what is in its buffer
//   void finish(Values)            may look at all values of a segment
// and may have
//   State received(State, op)      what a transfer brings, of what was given to it
//   State kept(State)              of a value that a segment leaves in a buffer
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {

/// The states of the values of one segment.
template <typename State> struct SegmentValues {
  const Scope &scope;
  std::vector<State> &states;
  bool isReport = false; ///< all is known: this is the walk that reports

  State &operator[](ValueId value) const { return states[value]; }
  const State &operand(const Op &op, size_t k) const { return states[op.operands[k]]; }
  void setAll(const Op &op, const State &state) const {
    for (ValueId result : op.results)
      states[result] = state;
  }
};

/// Operands of attention to some keys: keys and values with their positions and documents, and
/// queries with theirs.
struct PartOperands {
  size_t k, v, positions, docs, q, queryPositions, queryDocs;
};
inline constexpr PartOperands kPartOperands = {1, 2, 4, 6, 0, 3, 5},
                              kPartBwdOperands = {2, 3, 7, 9, 1, 6, 8};

/// What a transfer moves: ops of both ends name its channel and have values of one type.
using TransferKey = std::tuple<int16_t, DType, int64_t>;
inline TransferKey transferKeyOf(const Segment &segment, const Op &op, ValueId value) {
  const Type &type = segment.values[value].type;
  return {op.channel, type.dtype, type.numel()};
}

template <typename Domain> class SegmentFlow {
public:
  using State = typename Domain::State;
  using Values = SegmentValues<State>;
  /// What was given to a transfer, by all that give to it.
  using Transfers = std::map<TransferKey, State>;

  /// `isReport` in the last walk.
  SegmentFlow(const Scope &scope, Domain &domain, Transfers &transfers, bool isReport)
      : scope_(scope), domain_(domain), transfers_(transfers),
        states_(scope.segment.values.size()), values_{scope_, states_, isReport} {}

  State &operator[](ValueId value) { return states_[value]; }
  /// Transfers to which the segment gives what was not known before.
  const std::vector<TransferKey> &sentMore() const { return sentMore_; }

  void walk() {
    for (uint32_t i = 0; i < scope_.segment.ops.size(); ++i)
      follow(i, scope_.segment.ops[i]);
    if constexpr (requires { domain_.finish(values_); })
      domain_.finish(values_);
  }

private:
  void follow(uint32_t i, const Op &op) {
    if (op.kind == OpKind::Recv)
      states_[op.results[0]] =
          received(op, transfers_[transferKeyOf(scope_.segment, op, op.results[0])]);
    else
      domain_.follow(values_, i, op);
    if (op.kind == OpKind::Send) {
      TransferKey key = transferKeyOf(scope_.segment, op, op.operands[0]);
      if (transfers_[key].join(states_[op.operands[0]]))
        sentMore_.push_back(key);
    }
    // In some microbatches a result is what it has in others added to its buffer, or what it keeps.
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc)
        domain_.add(values_, i, tie);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else)
        states_[op.results[tie.result]].join(states_[tie.value]);
  }

  State received(const Op &op, const State &given) const {
    if constexpr (requires { domain_.received(given, op); })
      return domain_.received(given, op);
    return given;
  }

  const Scope &scope_;
  Domain &domain_;
  Transfers &transfers_;
  std::vector<State> states_;
  Values values_;
  std::vector<TransferKey> sentMore_;
};

/// All roles. Segments that no program runs are left out.
template <typename Domain> class ProgramFlow {
public:
  using State = typename Domain::State;

  ProgramFlow(Inspection &inspection, Domain &domain)
      : inspection_(inspection), plan_(inspection.plan()), domain_(domain) {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
      const Role &role = plan_.roles[r];
      cells_.emplace_back(role.cells.size());
      std::vector<bool> &isDue = isDue_.emplace_back(role.segments.size());
      for (uint32_t s = 0; s < role.segments.size(); ++s)
        isDue[s] = !inspection.variantsOf(r, s).empty();
    }
    isRun_ = isDue_;
  }

  void run() {
    while (walkDue(false)) {
    }
    isDue_ = isRun_;
    isBackward_ = true; // findings in the order of roles
    walkDue(true);
  }

private:
  /// Whether a segment is due again, since it takes what others leave. Stages hand activations on
  /// in their order and gradients against it, so that the order changes each time.
  bool walkDue(bool isReport) {
    isBackward_ = !isBackward_;
    bool isAnyDue = false;
    auto count = static_cast<uint32_t>(plan_.roles.size());
    for (uint32_t k = 0; k < count; ++k) {
      uint32_t r = isBackward_ ? count - 1 - k : k;
      for (uint32_t s = 0; s < isRun_[r].size(); ++s)
        if (isDue_[r][s]) {
          isDue_[r][s] = false;
          isAnyDue = true;
          walk(r, s, isReport);
        }
    }
    return isAnyDue;
  }

  void walk(uint32_t r, uint32_t s, bool isReport) {
    const Role &role = plan_.roles[r];
    const Segment &segment = role.segments[s];
    if (!inspection_.spend(segment.values.size() + segment.ops.size()))
      return;
    Scope scope = {inspection_, role, segment, r, s};
    SegmentFlow<Domain> flow(scope, domain_, transfers_, isReport);
    for (const Segment::Boundary &in : segment.ins)
      flow[in.value] = contentOf(r, in.cell);
    flow.walk();
    if (isReport)
      return;
    for (const Segment::Boundary &out : segment.outs)
      if (isFollowed(r, out.cell) && cells_[r][placeOf(r, out.cell)].join(kept(flow[out.value])))
        markReaders(r, placeOf(r, out.cell));
    for (const TransferKey &key : flow.sentMore())
      markReceivers(key);
  }

  State kept(const State &state) const {
    if constexpr (requires { domain_.kept(state); })
      return domain_.kept(state);
    return state;
  }
  bool isFollowed(uint32_t r, uint32_t cell) const {
    return plan_.roles[r].cells[cell].kind == CellKind::Buffer;
  }
  /// Slots of a ring change places: they have one state.
  uint32_t placeOf(uint32_t r, uint32_t cell) const {
    const RoleRings &rings = inspection_.ringsOf(r);
    return rings.isSlot(cell) ? rings.slotsOf(cell).front() : cell;
  }
  State contentOf(uint32_t r, uint32_t cell) {
    return isFollowed(r, cell) ? cells_[r][placeOf(r, cell)]
                               : domain_.loaded(plan_.roles[r], plan_.roles[r].cells[cell]);
  }

  void markReaders(uint32_t r, uint32_t place) {
    for (uint32_t s = 0; s < isRun_[r].size(); ++s)
      for (const Segment::Boundary &in : plan_.roles[r].segments[s].ins)
        if (isRun_[r][s] && isFollowed(r, in.cell) && placeOf(r, in.cell) == place)
          isDue_[r][s] = true;
  }
  void markReceivers(const TransferKey &key) {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r)
      for (uint32_t s = 0; s < isRun_[r].size(); ++s)
        if (isRun_[r][s] && receives(plan_.roles[r].segments[s], key))
          isDue_[r][s] = true;
  }
  static bool receives(const Segment &segment, const TransferKey &key) {
    return std::ranges::any_of(segment.ops, [&](const Op &op) {
      return op.kind == OpKind::Recv && transferKeyOf(segment, op, op.results[0]) == key;
    });
  }

  Inspection &inspection_;
  const Plan &plan_;
  Domain &domain_;
  std::vector<std::vector<State>> cells_; ///< by role and cell
  typename SegmentFlow<Domain>::Transfers transfers_;
  std::vector<std::vector<bool>> isDue_, isRun_; ///< by role and segment
  bool isBackward_ = true;                       ///< the walk under way, from the last role on
};

/// Follows the domain through the whole plan.
template <typename Domain> void followProgram(Inspection &inspection, Domain &domain) {
  ProgramFlow<Domain>(inspection, domain).run();
}

} // namespace shardc::plan::verifier
