// File operations that fail, or end the process, from a chosen one on.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>

#include <unistd.h>

#include "runtime/checkpoint/FileOps.h"

namespace shardc::checkpoint {

/// The fault that occurs from an operation on; operations are counted from 0.
struct FileFault {
  enum class Kind : uint8_t { None, DiskFull, Denied, Crash };
  Kind kind = Kind::None;
  int64_t operation = std::numeric_limits<int64_t>::max();
};

/// Counts operations; without a fault it only does that.
class InjectedFileFaults final : public FileFaults {
public:
  explicit InjectedFileFaults(FileFault fault = {}) : fault_(fault) {}

  int beforeOperation() override {
    int64_t number = operations_.fetch_add(1, std::memory_order_relaxed);
    if (fault_.kind == FileFault::Kind::None || number < fault_.operation)
      return 0;
    if (fault_.kind == FileFault::Kind::Crash)
      ::_exit(137);
    return fault_.kind == FileFault::Kind::DiskFull ? ENOSPC : EACCES;
  }
  int64_t operationsDone() const { return operations_; }

private:
  FileFault fault_;
  std::atomic<int64_t> operations_{0};
};

} // namespace shardc::checkpoint
