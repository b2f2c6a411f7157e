// Sizes of values that depend on a rank's index in a group.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Whether the parts of all members of the op's group make up the whole.
bool membersFit(const Plan &plan, const Segment &segment, const Op &op);

} // namespace shardc::plan::oracle
