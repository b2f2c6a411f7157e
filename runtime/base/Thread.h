// Starts threads, and returns an error if the system cannot start more.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

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

} // namespace shardc
