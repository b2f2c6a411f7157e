// Compares the weights that several ranks have
// (train.check_weight_hash_across_dp_replicas_interval).
#pragma once

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::save {

/// Compares checksums of all parameters that layers compute with and that ranks have whole; nothing
/// is queued. Numeric (replicas-differ), alike on all ranks, if ranks that have the same part of a
/// parameter have other numbers. All ranks call it together; `peers` are those in other processes,
/// or null.
Status compareReplicas(exec::Executable &executable, hal::Peers *peers, int64_t step);

/// Changes the first byte of a rank's first weights, for a test of the comparison.
Status corruptWeights(exec::Executable &executable, size_t rank);

} // namespace shardc::save
