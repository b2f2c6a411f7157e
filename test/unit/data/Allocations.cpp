// Counts what the program allocates, so that a test can see that filling a batch allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>

#include "test/unit/data/TestData.h"

namespace {
std::atomic<int64_t> count{0};
} // namespace

int64_t shardc::data::numAllocations() { return count; }

void *operator new(size_t size) {
  ++count;
  if (void *memory = std::malloc(size))
    return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }
