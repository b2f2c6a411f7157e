// Sizes of what ranks have by their index in a group.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Whether what all members of the op's group have makes a whole.
bool membersFit(const Plan &plan, const Segment &segment, const Op &op);

} // namespace shardc::plan::oracle
