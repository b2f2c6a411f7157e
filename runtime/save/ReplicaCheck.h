// Compares weights that several ranks replicate
// (train.check_weight_hash_across_dp_replicas_interval).
#pragma once

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::save {

/// Compares checksums of all parameters with which layers compute and that ranks hold whole.
/// Numeric (replicas-differ), the same on all ranks, if ranks with the same part of a parameter
/// have different values. All ranks call it together, and nothing may be queued. `peers` are the
/// ranks in other processes, or null.
Status compareReplicas(exec::Executable &executable, hal::Peers *peers, int64_t step);

/// Changes the first byte of a rank's first weights, for a test of the comparison.
Status corruptWeights(exec::Executable &executable, size_t rank);

} // namespace shardc::save
