// The walk that all analyses of values share: segments, what they leave in buffers, and what stages
// send each other, until nothing changes. What an analysis knows of a value is its state; a domain
// says what an op makes of the states of its operands, and what two ways to a value have in common.
// All domains are followed on one walk (VerifyFlow.cpp).
//
// A Domain has
//   State                           what is known of a value; compared by ==
//   void State::join(const State&)  adds another way to the value, of which something else is known
//   void follow(Values, i, op)      sets the states of the results of an op, to whose operands ways
//                                   lead, and, in the last walk, reports what is wrong
// and may have
//   State loaded(role, cell)        of a cell that is no buffer: a load or the host fills it
//   void add(Values, i, tie)        adds to a result what is in its buffer
//   State received(State, op)       what a transfer brings, of what was given to it
//   State kept(scope, State)        of a value that a segment leaves in a buffer
//   State found(scope, State)       of what a segment takes from one
//   void finish(Values)             may look at all values of a segment, in the last walk
//   kFollowsAll                     follows ops also of values to which no way leads, or one from
//                                   what nobody leaves in a buffer, as State()
// A state that is not set is State(): nothing special is known of the value.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// Whether a way leads to a value.
enum class Reach : uint8_t {
  None,
  Way,
  OfGiven, ///< from what nobody leaves in a buffer, of which nothing is known
  Given,   ///< the value itself is what nobody leaves in a buffer
};

/// The states of the values of one segment.
template <typename State> struct SegmentValues {
  const Scope &scope;
  std::vector<State> &states;
  const std::vector<Reach> &reached; ///< of each value
  bool isReport = false;             ///< all is known: this is the walk that reports

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

/// Operands of attention to some keys: keys and values with their positions and documents, and
/// queries with theirs.
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

/// Where a value is left for another segment, or given to another stage: a buffer, or a transfer.
using Passage = uint32_t;

/// A domain, as the walk sees it.
class ValueDomain {
public:
  ValueDomain() = default;
  ValueDomain(const ValueDomain &) = delete;
  ValueDomain &operator=(const ValueDomain &) = delete;
  virtual ~ValueDomain() = default;

  /// Begins a segment, which has to outlive the calls up to the next one.
  virtual void begin(const Scope &scope, const std::vector<Reach> &reached, bool isReport) = 0;
  /// What a value begins with: that of a load or of the host, or what was left.
  virtual void load(ValueId value, const Cell &cell) = 0;
  virtual void take(ValueId value, Passage from) = 0;
  virtual void receive(const Op &recv, Passage from) = 0;
  virtual void follow(uint32_t i, const Op &op) = 0;
  virtual void add(uint32_t i, const Tie &tie) = 0;
  /// Makes the result one or the other, by the way that the program took; `isFirst` leads there.
  virtual void join(ValueId result, ValueId other, bool isFirst) = 0;
  /// Leaves a value in a buffer (`isKept`), or gives it to a transfer; whether that is new.
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
  std::vector<State> states_; ///< of the values of the segment under way
  std::unique_ptr<Values> values_;
  std::vector<State> passed_; ///< of each passage
};

template <typename Domain> std::unique_ptr<ValueDomain> asValueDomain(Domain domain) {
  return std::make_unique<DomainOf<Domain>>(std::move(domain));
}

// The domains; null where the plan has nothing of it.
std::unique_ptr<ValueDomain> makeCounts(Inspection &inspection); ///< VerifyCounts.cpp
std::unique_ptr<ValueDomain> makeSlices(Inspection &inspection); ///< VerifyOrigins.cpp
std::unique_ptr<ValueDomain> makeParts(Inspection &inspection);  ///< VerifyPartialSums.cpp
std::unique_ptr<ValueDomain> makeRows(Inspection &inspection);   ///< VerifyRows.cpp
std::unique_ptr<ValueDomain> makeTokens(Inspection &inspection); ///< VerifyTokens.cpp

} // namespace shardc::plan::verifier
