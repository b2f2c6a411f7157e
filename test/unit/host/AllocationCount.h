// Counts calls of operator new in the whole program while enabled.
#pragma once

#include <cstddef>

namespace shardc::test {

/// Starts counting from zero.
void startCountingAllocations();
/// Stops counting, and returns the number of calls in all threads.
size_t stopCountingAllocations();

} // namespace shardc::test
