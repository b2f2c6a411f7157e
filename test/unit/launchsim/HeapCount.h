// Counts memory of each simulated process: a program linked with HeapCount.cpp gets its operator
// new from here. For one thread.
#pragma once

#include <cstdint>

namespace shardc::launch {

inline constexpr int kProcessesMax = 1 << 17;

/// The most bytes that a process (FakeNetwork::process) had on the heap. Bytes that were sent but
/// not yet received count for the sender.
int64_t heapMost(int process);
/// From here on, heapMost counts from the present use.
void forgetHeap();

} // namespace shardc::launch
