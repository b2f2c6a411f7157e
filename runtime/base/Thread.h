// Starts threads, and returns an error if the system cannot start more.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc {

/// Starts `run` in `thread`, a std::thread or std::jthread. Returns Exhausted with the system's
/// reason if no thread can be started; std::thread itself would throw.
template <typename Thread, typename Run> Status startThread(Thread &thread, Run &&run) {
  try {
    thread = Thread(std::forward<Run>(run));
    return Status::ok();
  } catch (const std::system_error &error) {
    return makeStatus(StatusCode::Exhausted, "cannot start a thread: {}", error.code().message());
  }
}

/// Calls `run(i, thread)`, which returns a Status, for each i below `count` on at most `threads`
/// threads with numbers from 0 on, this one among them. The others do the work of a thread that
/// could not be started. Returns the first failure; no call begins after it.
template <typename Run> Status runOnThreads(size_t threads, size_t count, const Run &run) {
  std::atomic<size_t> next{0};
  std::atomic<bool> isFailed{false};
  std::mutex mutex; // guards the status
  Status first;
  auto take = [&](size_t thread) {
    for (size_t i = next++; i < count && !isFailed; i = next++)
      if (Status status = run(i, thread); !status.isOk()) {
        std::lock_guard lock(mutex);
        if (!isFailed.exchange(true))
          first = std::move(status);
      }
  };
  {
    std::vector<std::jthread> others(std::max<size_t>(std::min(threads, count), 1) - 1);
    for (size_t i = 0; i < others.size(); ++i)
      if (!startThread(others[i], [&take, i] { take(i + 1); }).isOk())
        break;
    take(0);
  }
  return first;
}

} // namespace shardc
