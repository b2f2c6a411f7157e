// What is said at the start of the links that a run will use.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// The links that were found, and the bandwidth of all-gathers beside what the plan was predicted
/// with. Empty where neither is known.
std::string linkText(const plan::Plan &plan, const std::string &links, double gatherGBs);

/// A warning where gathers are slower than the plan was predicted with, by more than measurements
/// vary; else empty.
std::string linkWarning(const plan::Plan &plan, double gatherGBs);

} // namespace shardc::exec
