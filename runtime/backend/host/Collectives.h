// Computes collectives in memory that all members can access. The part of the work of each member
// is independent of the other parts, so members can work at the same time.
#pragma once

#include <span>

#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::host {

/// InvalidInput if these members cannot execute a collective together: their descriptions differ,
/// or types do not fit.
Status checkMembers(std::span<const hal::Collective *const> members);

/// Executes part `part` of a collective: all_gather fills member `part`'s whole; reduce_scatter
/// computes member `part`'s shard and, on request, the sum of its squares; all_reduce and
/// all_reduce_max compute chunk `part` and write it to all members; all_to_all and shift fill
/// member `part`'s result.
///
/// All members must have arrived before the first part begins, and must wait until the last part
/// has ended.
void runPart(std::span<const hal::Collective *const> members, int part);

/// Bytes that the whole collective reads and writes. They decide whether members share the work.
int64_t bytesTouched(std::span<const hal::Collective *const> members);

} // namespace shardc::host
