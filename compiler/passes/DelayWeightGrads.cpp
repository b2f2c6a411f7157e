// Moves weight gradients of the backward pass after exchanges between the ranks of a layer, so that
// they overlap: other ops of the pass do not read them. The chain of a layer is product, sum over
// ranks, norm, gather, product; weight gradients overlap the sum and the gather. Sums of weight
// gradients follow the exchange that other ops wait for, so that they do not delay it.
#include <algorithm>
#include <deque>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

class Delayer {
public:
  explicit Delayer(plan::Segment &segment) : segment_(segment), users_(segment) {}

  /// Holds weight gradients back and emits some of them after each transfer. The transfers up to
  /// the next gradient product share the gradients that are waiting equally.
  void run() {
    findRoles();
    if (std::ranges::find(roles_, Role::Transfer) == roles_.end())
      return;
    std::vector<size_t> ahead = countAhead();
    std::vector<Op> ops;
    ops.reserve(segment_.ops.size());
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      Op &op = segment_.ops[i];
      if (roles_[i] == Role::Gradient) {
        gradients_.push_back({std::move(op), {}});
      } else if (roles_[i] == Role::Sum) {
        sumsBehind(op).push_back(std::move(op));
      } else {
        ops.push_back(std::move(op));
        if (roles_[i] == Role::Transfer)
          emit(ops, (gradients_.size() + ahead[i] - 1) / ahead[i]);
      }
    }
    emit(ops, gradients_.size());
    plan::replaceOps(segment_, std::move(ops));
  }

private:
  enum class Role : uint8_t {
    Other,
    Transfer, ///< an exchange that other ops wait for
    Gradient, ///< a product whose result is a weight gradient that only sums read
    Sum,      ///< a sum of a gradient over ranks
  };

  struct Delayed {
    Op product;
    std::vector<Op> sums; ///< sums of the product's result
  };

  void findRoles() {
    roles_.assign(segment_.ops.size(), Role::Other);
    for (size_t i = segment_.ops.size(); i-- > 0;) {
      const Op &op = segment_.ops[i];
      if (op.phase != plan::Phase::Backward)
        continue;
      const plan::OpInfo &info = plan::opInfo(op);
      bool isTransfer = info.collective && !isPointToPoint(info.collective->kind) && op.group >= 0;
      if (isTransfer)
        roles_[i] = isAwaited(op) ? Role::Transfer : isLeaf(op) ? Role::Sum : Role::Other;
      else if (info.work.cost == plan::CostClass::Product && isLeaf(op))
        roles_[i] = Role::Gradient;
    }
  }

  /// Whether the op computes weight gradients that only sums read in this segment. No op may
  /// overwrite its operands or results.
  bool isLeaf(const Op &op) const {
    auto isFinal = [&](ValueId result) {
      return segment_.values[result].purpose == plan::Purpose::Grads &&
             std::all_of(users_.begin(result), users_.end(result),
                         [&](uint32_t user) { return roles_[user] == Role::Sum; });
    };
    return op.ties.empty() && std::ranges::all_of(op.results, isFinal) &&
           std::ranges::none_of(op.operands, [&](ValueId value) {
             return std::any_of(users_.begin(value), users_.end(value), [&](uint32_t user) {
               const Op &other = segment_.ops[user];
               return &other != &op && overwrites(other, value);
             });
           });
  }

  static bool overwrites(const Op &op, ValueId value) {
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = plan::inPlaceOperand(op, r);
          operand >= 0 && op.operands[static_cast<size_t>(operand)] == value)
        return true;
    return std::ranges::any_of(op.ties, [&](const plan::Tie &tie) { return tie.value == value; });
  }

  /// Whether an op that is not delayed reads a result.
  bool isAwaited(const Op &op) const {
    return std::ranges::any_of(op.results, [&](ValueId result) {
      return std::any_of(users_.begin(result), users_.end(result),
                         [&](uint32_t user) { return roles_[user] == Role::Other; });
    });
  }

  /// For each exchange, the number of exchanges from this one up to the next gradient product. They
  /// share the gradients that were computed before.
  std::vector<size_t> countAhead() const {
    std::vector<size_t> ahead(segment_.ops.size(), 0);
    size_t count = 0;
    for (size_t i = segment_.ops.size(); i-- > 0;)
      if (roles_[i] == Role::Gradient)
        count = 0;
      else if (roles_[i] == Role::Transfer)
        ahead[i] = ++count;
    return ahead;
  }

  /// The list to which a sum over ranks belongs: that of the delayed product whose result it reads,
  /// otherwise the common list.
  std::vector<Op> &sumsBehind(const Op &sum) {
    for (Delayed &delayed : gradients_)
      for (ValueId result : delayed.product.results)
        if (std::ranges::find(sum.operands, result) != sum.operands.end())
          return delayed.sums;
    return sums_;
  }

  void emit(std::vector<Op> &ops, size_t count) {
    for (; count > 0; --count) {
      Delayed &first = gradients_.front();
      ops.push_back(std::move(first.product));
      std::ranges::move(first.sums, std::back_inserter(sums_));
      gradients_.pop_front();
    }
    std::ranges::move(sums_, std::back_inserter(ops));
    sums_.clear();
  }

  plan::Segment &segment_;
  plan::Users users_;
  std::vector<Role> roles_; ///< by op
  std::deque<Delayed> gradients_;
  std::vector<Op> sums_;
};

} // namespace

void runDelayWeightGrads(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        Delayer(segment).run();
}

} // namespace shardc::passes
