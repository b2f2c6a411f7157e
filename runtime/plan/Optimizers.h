// Optimizers, from the rows of Optimizers.def: the op of each, the moments that it keeps per
// element, and the job's options that it uses.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Whether the parameter is trained. A parameter that is in no block yet counts as trained.
inline bool isTrained(const Plan &plan, const Param &param) {
  return param.block < 0 || plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).isTrained;
}

/// Whether the class of the parameter names an optimizer in place of the job's.
inline bool isOfRest(const Plan &plan, const Param &param) {
  return param.block >= 0 &&
         plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).optimizer.has_value();
}

/// A per-element state of an optimizer, such as Adam's exp_avg.
struct Moment {
  CellKind cell;
  std::string_view prefix; ///< prefix of the cell's name
  std::string_view name;   ///< upstream's name in checkpoints
  /// The element type in memory, for moments whose type the job chooses.
  DType (*type)(const Job::Optimizer &job);
};

/// One OPTIMIZER row of Optimizers.def with its moments.
struct OptimizerInfo {
  /// Its value of `optimizer.optimizer`, except for `sgd_momentum`: that is `sgd` with a momentum.
  std::string_view word;
  /// The op that updates a shard. Its operands are the gradient, the master weights, the moments
  /// and the step state.
  OpKind op;
  std::span<const Moment> moments; ///< in the order of the op's operands
};
/// The row of an optimizer; it lives as long as the program.
const OptimizerInfo &optimizerInfo(Optimizer optimizer);

/// The optimizer with this name; nothing if there is none.
std::optional<Optimizer> findOptimizer(std::string_view word);
/// The optimizer that the job's options select; nothing if there is no such optimizer.
std::optional<Optimizer> optimizerOf(const Job &job);
/// The optimizer of the block's class: that of the job unless the class names one.
std::optional<Optimizer> optimizerOf(const Plan &plan, const Block &block);

/// Whether the optimizer updates whole matrices, so that shards must not split a matrix.
inline bool needsMatrices(Optimizer optimizer) { return optimizer == Optimizer::Muon; }

/// Elements of the smallest unit that no shard may split: a row, or for Muon a matrix (of a stack,
/// one of its matrices).
int64_t granuleOf(const Param &param, std::optional<Optimizer> optimizer);

/// An attribute of an optimizer's op.
struct Scalar {
  AttrKey key;
  double value;
};
/// Sets the attribute with the type of its row.
void set(Op &op, const Scalar &scalar);
/// The scalars of the optimizer's op that follow from the job, such as betas and epsilon.
std::vector<Scalar> scalarsOf(Optimizer optimizer, const Job &job);

} // namespace shardc::plan
