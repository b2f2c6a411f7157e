// The arithmetic of collectives over memory that every member can see. Member r's part of the work
// is independent of the others' parts, so that members can do theirs at the same time.
#pragma once

#include <span>

#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::host {

/// InvalidInput if these members cannot exchange: they disagree, or the types do not fit.
Status checkMembers(std::span<const hal::Collective *const> members);

/// Does part `part` of a collective: all_gather fills member `part`'s whole; reduce_scatter forms
/// member `part`'s shard and, on request, the sum of its squares; all_reduce and all_reduce_max
/// form chunk `part` and write it to all members; all_to_all and shift fill member `part`'s result.
///
/// All members have arrived before the first part begins; none continues before the last part has
/// ended.
void runPart(std::span<const hal::Collective *const> members, int part);

/// Bytes that the whole collective reads and writes, which decides whether its members share the
/// work.
int64_t bytesTouched(std::span<const hal::Collective *const> members);

} // namespace shardc::host
