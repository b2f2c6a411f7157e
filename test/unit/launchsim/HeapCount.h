// Memory of each simulated process: the program that has HeapCount.cpp gets its operator new from
// here. One thread.
#pragma once

#include <cstdint>

namespace shardc::launch {

inline constexpr int kProcessesMax = 1 << 17;

/// Bytes on the heap that a process (FakeNetwork::process) had at most; what was sent and not yet
/// taken is the sender's.
int64_t heapMost(int process);
/// From here on the most of what is there now.
void forgetHeap();

} // namespace shardc::launch
