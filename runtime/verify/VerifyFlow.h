// The walk that all value analyses share. It follows the ops of each segment, the buffers (cells)
// that connect segments, and the transfers that connect stages, until no state changes. An analysis
// is a domain: it defines an abstract state of a value, a transfer function for each op, and a join
// of two states. All domains run in one walk (VerifyFlow.cpp).
//
// A Domain has
//   State                           what is known of a value; compared by ==
//   void State::join(const State&)  the state of a value that may be either of two
//   void follow(Values, i, op)      sets the states of op i's results from those of its operands,
//                                   if these are reachable; reports errors in the last walk
// and may have
//   State loaded(role, cell)        the state of a cell that a load or the host fills
//   void add(Values, i, tie)        the result accumulates into its buffer
//   State received(State, op)       the state of what a transfer delivers, from what was sent
//   State kept(scope, State)        the state that a segment stores to a cell
//   State found(scope, State)       the state that a segment reads from a cell
//   void finish(Values)             looks at all values of a segment, in the last walk
//   kFollowsAll                     follow() also runs on ops whose operands are unreachable, or
//                                   depend on a buffer that nothing stores to; these have State()
// The default state, State(), means that nothing special is known of the value.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// Whether a value is reachable from loads, the host, or ops without operands.
enum class Reach : uint8_t {
  None,
  Way,
  OfGiven, ///< depends on a buffer that nothing stores to: nothing is known of it
  Given,   ///< the value itself is the content of such a buffer
};

/// The states of the values of one segment, as a domain sees them.
template <typename State> struct SegmentValues {
  const Scope &scope;
  std::vector<State> &states;
  const std::vector<Reach> &reached; ///< of each value
  bool isReport = false;             ///< the states are final: errors may be reported

  State &operator[](ValueId value) const { return states[value]; }
  bool isReached(ValueId value) const { return reached[value] == Reach::Way; }
  bool hasBegin(ValueId value) const { return reached[value] != Reach::None; }
  bool isGiven(ValueId value) const { return reached[value] == Reach::Given; }
  const State &operand(const Op &op, size_t k) const { return states[op.operands[k]]; }
  void setAll(const Op &op, const State &state) const {
    for (ValueId result : op.results)
      states[result] = state;
  }
};

/// Operand indices of attention to a part of the keys: the keys and values with their positions and
/// documents, and the queries with theirs.
struct PartOperands {
  size_t k, v, positions, docs, q, queryPositions, queryDocs;
};
template <OpKind kind> constexpr PartOperands partOperandsOf() {
  return {operandIndex<kind>("k"),     operandIndex<kind>("v"), operandIndex<kind>("kpos"),
          operandIndex<kind>("kdocs"), operandIndex<kind>("q"), operandIndex<kind>("qpos"),
          operandIndex<kind>("qdocs")};
}
inline constexpr PartOperands kPartOperands = partOperandsOf<OpKind::AttentionPart>(),
                              kPartBwdOperands = partOperandsOf<OpKind::AttentionPartBwd>();

/// A cell or transfer through which a value passes to another segment or stage, by its number.
using Passage = uint32_t;

/// A domain with its state type erased, so that one walk can run all domains. The walk calls
/// begin(), then load(), take() or receive() for each value that enters the segment, then follow(),
/// add() and join() in order of ops, then leave() for each value that leaves it.
class ValueDomain {
public:
  ValueDomain() = default;
  ValueDomain(const ValueDomain &) = delete;
  ValueDomain &operator=(const ValueDomain &) = delete;
  virtual ~ValueDomain() = default;

  /// Begins a segment. The caller keeps `scope` and `reached` alive until the next begin().
  virtual void begin(const Scope &scope, const std::vector<Reach> &reached, bool isReport) = 0;
  /// Sets the state of a value that enters the segment: from a load or the host, from a cell, or
  /// from a transfer.
  virtual void load(ValueId value, const Cell &cell) = 0;
  virtual void take(ValueId value, Passage from) = 0;
  virtual void receive(const Op &recv, Passage from) = 0;
  virtual void follow(uint32_t i, const Op &op) = 0;
  virtual void add(uint32_t i, const Tie &tie) = 0;
  /// The result is its own value or `other`, depending on a predicate; `isFirst`: only `other` is
  /// reachable so far.
  virtual void join(ValueId result, ValueId other, bool isFirst) = 0;
  /// Stores a value to a cell (`isKept`) or sends it by a transfer. Returns true if this changes
  /// the state there, so that the walk must continue.
  virtual bool leave(ValueId value, Passage at, bool isKept, bool isFirst) = 0;
  virtual void finish() = 0;
  virtual bool followsAll() const = 0;
};

template <typename Domain> class DomainOf final : public ValueDomain {
public:
  using State = typename Domain::State;
  using Values = SegmentValues<State>;

  explicit DomainOf(Domain domain) : domain_(std::move(domain)) {}

  void begin(const Scope &scope, const std::vector<Reach> &reached, bool isReport) override {
    states_.assign(scope.segment.values.size(), State());
    values_ = std::make_unique<Values>(Values{scope, states_, reached, isReport});
  }
  void load(ValueId value, const Cell &cell) override {
    if constexpr (requires { domain_.loaded(values_->scope.role, cell); })
      states_[value] = domain_.loaded(values_->scope.role, cell);
  }
  void take(ValueId value, Passage from) override {
    State &state = states_[value] = at(from);
    if constexpr (requires { domain_.found(values_->scope, state); })
      state = domain_.found(values_->scope, state);
  }
  void receive(const Op &recv, Passage from) override {
    State &state = states_[recv.results.front()] = at(from);
    if constexpr (requires { domain_.received(state, recv); })
      state = domain_.received(state, recv);
  }
  void follow(uint32_t i, const Op &op) override { domain_.follow(*values_, i, op); }
  void add(uint32_t i, const Tie &tie) override {
    if constexpr (requires { domain_.add(*values_, i, tie); })
      domain_.add(*values_, i, tie);
  }
  void join(ValueId result, ValueId other, bool isFirst) override {
    joinTo(states_[result], states_[other], isFirst);
  }
  bool leave(ValueId value, Passage at, bool isKept, bool isFirst) override {
    State state = states_[value];
    if constexpr (requires { domain_.kept(values_->scope, state); })
      state = isKept ? domain_.kept(values_->scope, state) : state;
    return joinTo(this->at(at), state, isFirst);
  }
  void finish() override {
    if constexpr (requires { domain_.finish(*values_); })
      domain_.finish(*values_);
  }

  bool followsAll() const override {
    return requires { Domain::kFollowsAll; };
  }

private:
  State &at(Passage passage) {
    passed_.resize(std::max<size_t>(passed_.size(), passage + 1));
    return passed_[passage];
  }
  static bool joinTo(State &own, const State &more, bool isFirst) {
    if (!isFirst && own == more)
      return false;
    State before = std::exchange(own, isFirst ? more : own);
    if (!isFirst)
      own.join(more);
    return isFirst || !(own == before);
  }

  Domain domain_;
  std::vector<State> states_; ///< of the values of the current segment
  std::unique_ptr<Values> values_;
  std::vector<State> passed_; ///< of each passage
};

template <typename Domain> std::unique_ptr<ValueDomain> asValueDomain(Domain domain) {
  return std::make_unique<DomainOf<Domain>>(std::move(domain));
}

// The domains. Each returns null if the plan has nothing that it would check, such as counts in a
// plan without experts.
std::unique_ptr<ValueDomain> makeCounts(Inspection &inspection); ///< VerifyCounts.cpp
std::unique_ptr<ValueDomain> makeSlices(Inspection &inspection); ///< VerifyOrigins.cpp
std::unique_ptr<ValueDomain> makeParts(Inspection &inspection);  ///< VerifyPartialSums.cpp
std::unique_ptr<ValueDomain> makeRows(Inspection &inspection);   ///< VerifyRows.cpp
std::unique_ptr<ValueDomain> makeTokens(Inspection &inspection); ///< VerifyTokens.cpp

} // namespace shardc::plan::verifier
