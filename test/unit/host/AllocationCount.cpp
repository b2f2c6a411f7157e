#include "test/unit/host/AllocationCount.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<size_t> count{0};

void *allocateOrNull(size_t bytes) {
  if (counting.load(std::memory_order_relaxed))
    count.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes ? bytes : 1);
}

void *allocate(size_t bytes) {
  if (void *memory = allocateOrNull(bytes))
    return memory;
  throw std::bad_alloc();
}

} // namespace

void *operator new(size_t bytes) { return allocate(bytes); }
void *operator new[](size_t bytes) { return allocate(bytes); }
// Without these, a sanitizer's own versions would allocate what the operators below free.
void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return allocateOrNull(bytes); }
void *operator new[](size_t bytes, const std::nothrow_t &) noexcept {
  return allocateOrNull(bytes);
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, size_t) noexcept { std::free(memory); }

namespace shardc::test {

void startCountingAllocations() {
  count = 0;
  counting = true;
}

size_t stopCountingAllocations() {
  counting = false;
  return count;
}

} // namespace shardc::test
