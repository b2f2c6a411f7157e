// What an op needs in order to be executed at all, whatever the order: sizes that fit each other,
// places that are aligned, inside their arena, and shared where the op works in place; and what the
// host needs of a plan.
#pragma once

#include <string>

#include "Facts.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// The first thing that is wrong, or nothing.
std::string findContractBreak(const Plan &plan);

/// True if the op updates a block from its gradient.
bool isUpdate(const Op &op);

/// True for a cell that the host writes when it likes.
bool isOfHost(const Cell &cell);

} // namespace shardc::plan::oracle
