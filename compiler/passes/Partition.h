// Internals of pass `partition`, which shards ops over tensor- and context-parallel ranks.
#pragma once

#include <functional>
#include <map>

#include "runtime/plan/Factors.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Number of pieces into which rows (batch · sequence) are split so that the transfer of one piece
/// overlaps the products of others; 1 if splitting does not pay or is not requested.
int64_t choosePieces(const plan::Plan &plan, int16_t group);

/// Whether the rows divide into `parts` equal parts that start at aligned addresses.
bool dividesRows(const plan::Type &type, int64_t parts);

/// Whether a result has the rows of an operand whose rows are sharded: both have the same factors
/// in their first dimension, or the result has grouped rows, whose number is proportional.
bool hasRowsOf(const plan::Op &op, const plan::OpFactors &factors, size_t result,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Aborts if the rows of an op that needs all rows are sharded and the op's row of Ops.def does not
/// declare that it uses the local rows (OWN_ROWS).
void checkRows(const plan::Op &op, const plan::OpFactors &factors,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Expert loads computed from a rank's own rows, where an op needs the loads of all ranks.
class OwnLoads {
public:
  explicit OwnLoads(const plan::Segment &segment);

  void add(plan::ValueId load) { sums_[load] = plan::kNone; }

  /// Makes the op read sums over ranks instead of local loads. `sum` appends the reduction of a
  /// load before its first use and returns the result. Ops that only accumulate what the optimizer
  /// step reduces over all ranks keep the local load.
  void take(plan::Op &op, const std::function<plan::ValueId(plan::ValueId)> &sum);

private:
  std::vector<bool> isRead_;                    ///< by value of the segment: some op reads it
  std::map<plan::ValueId, plan::ValueId> sums_; ///< by load; kNone before the first use
};

/// Divides the row capacity (attribute `bound`) of an op that groups rows by the number of ranks.
void divideBound(plan::Op &op, const plan::OpFactors &factors, int64_t ranks);

/// Gives each context-parallel rank two mirrored chunks of each sequence. Attention then reads the
/// rank's own keys only; attendToSlices() adds those of the other ranks. Returns false if the plan
/// has no context parallelism.
bool cutSequences(plan::Plan &plan);

/// Makes attention on sequence slices see all keys, as `model.cp_comm_type` says for each layer.
void attendToSlices(plan::Plan &plan);

} // namespace shardc::passes
