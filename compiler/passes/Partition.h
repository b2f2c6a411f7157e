// The parts of the pass `partition`.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// In how many pieces tensor-parallel ranks divide rows of batch × sequence, so that each moves
/// beside products of others; 1 if pieces do not pay, or are not asked for.
int64_t choosePieces(const plan::Plan &plan, int16_t group);

/// Whether the rows of a matrix divide into so many parts, and each begins where values may.
bool dividesRows(const plan::Type &type, int64_t parts);

/// Gives each context-parallel rank two mirrored chunks of each sequence. Attention is left as it
/// is, of what a rank has: no op before `attendToSlices`. False if ranks have whole sequences.
bool cutSequences(plan::Plan &plan);

/// Lets attention of slices see all keys, by what `model.cp_comm_type` says of each layer.
void attendToSlices(plan::Plan &plan);

} // namespace shardc::passes
