// The parts of the pass `partition`.
#pragma once

#include <functional>
#include <map>

#include "runtime/plan/Factors.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// In how many pieces tensor-parallel ranks divide rows of batch × sequence, so that each moves
/// beside products of others; 1 if pieces do not pay, or are not asked for.
int64_t choosePieces(const plan::Plan &plan, int16_t group);

/// Whether the rows of a matrix divide into so many parts, and each begins where values may.
bool dividesRows(const plan::Type &type, int64_t parts);

/// Whether a result's rows are those of an operand that ranks have a part of the rows of: both have
/// the same factors in their first dimension, or the result has rows in runs, whose number is in
/// proportion.
bool hasRowsOf(const plan::Op &op, const plan::OpFactors &factors, size_t result,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Ends the process if ranks divide rows of which the op needs all, and its row of the op table
/// does not say that it takes those of its rank for all.
void checkRows(const plan::Op &op, const plan::OpFactors &factors,
               const std::function<bool(plan::ValueId)> &isDivided);

/// Loads of a rank's own rows: what rows are held against is that of all ranks.
class OwnLoads {
public:
  explicit OwnLoads(const plan::Segment &segment);

  void add(plan::ValueId load) { sums_[load] = plan::kNone; }

  /// Lets the op read sums over ranks in place of loads. `sum` appends that of a load, before the
  /// first op that reads it, and returns it. What only adds up what the update adds up over all
  /// ranks keeps the rank's own.
  void take(plan::Op &op, const std::function<plan::ValueId(plan::ValueId)> &sum);

private:
  std::vector<bool> isRead_;                    ///< of the segment's values, whether an op takes it
  std::map<plan::ValueId, plan::ValueId> sums_; ///< by load; kNone before somebody takes it
};

/// Lets an op that puts rows into runs have room for those of one of so many equal parts.
void divideBound(plan::Op &op, const plan::OpFactors &factors, int64_t ranks);

/// Gives each context-parallel rank two mirrored chunks of each sequence. Attention is left as it
/// is, of what a rank has: no op before `attendToSlices`. False if ranks have whole sequences.
bool cutSequences(plan::Plan &plan);

/// Lets attention of slices see all keys, by what `model.cp_comm_type` says of each layer.
void attendToSlices(plan::Plan &plan);

} // namespace shardc::passes
