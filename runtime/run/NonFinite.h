// Finds the first op with a non-finite result, by inspecting every result after its op has ended.
#pragma once

#include <memory>

#include "runtime/exec/Executable.h"

namespace shardc::run {

/// Ends a run op by op with Numeric at the first non-finite result. Ignores the padding of blocks,
/// and invalid rows. Messages name `step`, which the caller may change between runs.
std::unique_ptr<exec::OpObserver> makeNonFiniteFinder(exec::Executable &executable,
                                                      const int64_t &step);

/// Whether ranks may send each other more rows than fit into slots.
bool mayExceedCapacity(const plan::Plan &plan);

} // namespace shardc::run
