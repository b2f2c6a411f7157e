#include "test/unit/launchsim/HeapCount.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "test/unit/launchsim/FakeNetwork.h"

namespace shardc::launch {
namespace {

struct alignas(std::max_align_t) Head {
  int64_t bytes;
  int process;
};

int64_t live[kProcessesMax], most[kProcessesMax];

} // namespace

int64_t heapMost(int process) { return most[process]; }

void forgetHeap() { std::ranges::copy(live, most); }

} // namespace shardc::launch

using shardc::launch::Head;

void *operator new(size_t bytes) {
  auto *head = static_cast<Head *>(std::malloc(sizeof(Head) + bytes));
  if (!head)
    throw std::bad_alloc();
  *head = {static_cast<int64_t>(bytes), shardc::launch::FakeNetwork::process};
  int64_t &live = shardc::launch::live[head->process];
  int64_t &most = shardc::launch::most[head->process];
  most = std::max(most, live += head->bytes);
  return head + 1;
}

void operator delete(void *block) noexcept {
  if (!block)
    return;
  Head *head = static_cast<Head *>(block) - 1;
  shardc::launch::live[head->process] -= head->bytes;
  std::free(head);
}

void operator delete(void *block, size_t) noexcept { operator delete(block); }
