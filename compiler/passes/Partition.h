// Internals of pass `partition`, which shards ops over expert-, tensor- and context-parallel ranks.
#pragma once

#include <functional>
#include <map>

#include "runtime/plan/Factors.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The parameter that each value of the segment holds; null if it holds none.
std::vector<const plan::Param *> paramsIn(const plan::Plan &plan, const plan::Role &role,
                                          const plan::Segment &segment);

/// Sets the parameters that are still whole, either stacks of experts' tensors or the others, to
/// the types of a rank's shard, and blocks to their new size. Returns for each parameter whether it
/// was sharded.
std::vector<bool> cutParams(plan::Plan &plan, bool areStacked);

/// Shards stacks of experts' tensors. Ranks exchange rows of tokens, so that each computes those of
/// its experts.
void divideExperts(plan::Plan &plan);

/// The number of pieces into which rows (batch · sequence) are split so that the transfer of one
/// piece overlaps products of other pieces; 1 if splitting is not requested or not faster.
int64_t choosePieces(const plan::Plan &plan, int16_t group);

/// Whether the rows divide into `parts` equal parts that start at aligned addresses.
bool dividesRows(const plan::Type &type, int64_t parts);

/// Whether a result's rows are sharded like an operand's: both have the same factors in their first
/// dimension, or the result has grouped rows, whose number is proportional to the operand's.
bool hasRowsOf(const plan::Op &op, const plan::OpFactors &factors, size_t result,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Aborts if rows of the op are sharded although it needs all rows, unless its row of Ops.def
/// declares that it works on local rows (OWN_ROWS).
void checkRows(const plan::Op &op, const plan::OpFactors &factors,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Expert loads that were computed from a rank's own rows only, and their sums for ops that need
/// the loads of all ranks.
class OwnLoads {
public:
  /// Records which values the ops of the segment read.
  explicit OwnLoads(const plan::Segment &segment);

  /// Records that `load` counts only the rank's own rows.
  void add(plan::ValueId load) { sums_[load] = plan::kNone; }

  /// Makes the op read sums over ranks instead of local loads. `sum` appends the reduction of a
  /// load, before the first op that needs it, and returns the result. Ops that only accumulate a
  /// load keep the local one, because the optimizer step reduces their result over all ranks.
  void take(plan::Op &op, const std::function<plan::ValueId(plan::ValueId)> &sum);

private:
  std::vector<bool> isRead_;                    ///< by value of the segment: whether an op reads it
  std::map<plan::ValueId, plan::ValueId> sums_; ///< by load: its sum; kNone before the first use
};

/// Divides the row capacity (attribute `bound`) of an op that groups rows by `ranks`.
void divideBound(plan::Op &op, const plan::OpFactors &factors, int64_t ranks);

/// Gives each context-parallel rank two mirrored chunks of each sequence. Afterwards, attention
/// reads only the rank's own keys; attendToSlices() adds those of the other ranks. Returns false if
/// the plan has no context parallelism.
bool cutSequences(plan::Plan &plan);

/// Lets attention on sequence slices read all keys, for each layer as `model.cp_comm_type` says.
void attendToSlices(plan::Plan &plan);

} // namespace shardc::passes
