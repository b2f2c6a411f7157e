// What ops need in order to execute, whatever the order: sizes that fit each other, and places that
// are aligned, inside their arena, and shared by ops in place; and what the host needs of a plan.
#pragma once

#include <string>

#include "Facts.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes the first violation; empty if there is none.
std::string findContractBreak(const Plan &plan);

/// Whether the host may write the cell at any time.
bool isOfHost(const Cell &cell);

} // namespace shardc::plan::oracle
