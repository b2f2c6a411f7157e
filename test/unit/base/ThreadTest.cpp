#include "runtime/base/Thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

namespace shardc {
namespace {

TEST(Thread, RunsWhatItIsGiven) {
  bool hasRun = false;
  std::thread thread;
  ASSERT_TRUE(startThread(thread, [&] { hasRun = true; }).isOk());
  thread.join();
  EXPECT_TRUE(hasRun);
}

TEST(Thread, SeveralCallEachNumberOnce) {
  for (size_t threads : {0, 1, 3, 20}) {
    std::vector<std::atomic<int>> calls(10);
    Status status = runOnThreads(threads, calls.size(), [&](size_t i, size_t thread) {
      EXPECT_LT(thread, std::max<size_t>(threads, 1));
      ++calls[i];
      return Status::ok();
    });
    EXPECT_TRUE(status.isOk());
    for (const std::atomic<int> &each : calls)
      EXPECT_EQ(each, 1) << threads;
  }
}

TEST(Thread, NoCallBeginsAfterAFailure) {
  size_t calls = 0;
  Status status = runOnThreads(1, 10, [&](size_t i, size_t) {
    ++calls;
    return i < 4 ? Status::ok() : makeStatus(StatusCode::InvalidInput, "number {}", i);
  });
  EXPECT_EQ(status.message(), "number 4");
  EXPECT_EQ(calls, 5U);
}

TEST(Thread, ThatCannotBeStartedIsAnError) {
  pthread_attr_t before, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
  // The stack is larger than any address space.
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  std::thread thread;
  Status status = startThread(thread, [] {});
  ::pthread_setattr_default_np(&before);
  ::pthread_attr_destroy(&before);
  ::pthread_attr_destroy(&huge);
  EXPECT_EQ(status.code(), StatusCode::Exhausted);
  EXPECT_NE(status.message().find("cannot start a thread: "), std::string::npos);
  EXPECT_EQ(status.report().id, "resources-exhausted");
  EXPECT_FALSE(thread.joinable());
}

} // namespace
} // namespace shardc
