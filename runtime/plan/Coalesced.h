// Which gathers are issued as one: those of a unit that stand next to each other. Compiler and
// runtime share this, so predictions are of what runs.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// By op, the ops that are issued with it, in order: itself alone; all of several gathers at the
/// first of them, and none at the others. Such gathers have the same unit, channel, stream and
/// predicate, NCCL's kernels move them, and only aliases stand between them. Each of them waits for
/// all that one of them waits for, and has ended when all have; so in a placed plan none writes
/// bytes that another one reads or writes.
std::vector<std::vector<uint32_t>> issuedTogether(const Plan &plan, const Segment &segment);

} // namespace shardc::plan
