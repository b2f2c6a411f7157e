// Optimizers as the rows of Optimizers.def say them: ops, what they keep of each element, and what
// they take from the job.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Whether the parameter is of a class that is trained. What is in no block yet is.
inline bool isTrained(const Plan &plan, const Param &param) {
  return param.block < 0 || plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).isTrained;
}

/// Whether the class of the parameter names an optimizer in place of the job's.
inline bool isOfRest(const Plan &plan, const Param &param) {
  return param.block >= 0 &&
         plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).optimizer.has_value();
}

/// A value that an optimizer keeps of each element of a block.
struct Moment {
  CellKind cell;
  std::string_view prefix; ///< of its cell's name
  std::string_view name;   ///< in checkpoints, as upstream calls it
  DType (*type)(const Job::Optimizer &job);
};

struct OptimizerInfo {
  std::string_view word;
  OpKind op;
  std::span<const Moment> moments; ///< in the order of the op's operands
};
const OptimizerInfo &optimizerInfo(Optimizer optimizer);

/// The row with this word; nothing if there is none.
std::optional<Optimizer> findOptimizer(std::string_view word);
/// The optimizer that the job asks for; nothing if no row has it.
std::optional<Optimizer> optimizerOf(const Job &job);
/// The optimizer of the block's class: that of the job unless the class names one.
std::optional<Optimizer> optimizerOf(const Plan &plan, const Block &block);

/// Whether the optimizer updates whole matrices, so that shards are cut between them.
inline bool needsMatrices(Optimizer optimizer) { return optimizer == Optimizer::Muon; }

/// Elements of the smallest piece of the parameter that its optimizer updates by itself, and that
/// no shard may cut: a row, or a matrix, of a stack one of its matrices.
int64_t granuleOf(const Param &param, std::optional<Optimizer> optimizer);

/// An attribute of an optimizer's op.
struct Scalar {
  AttrKey key;
  double value;
};
/// Sets it in the type of its row.
void set(Op &op, const Scalar &scalar);
std::vector<Scalar> scalarsOf(Optimizer optimizer, const Job &job);

} // namespace shardc::plan
