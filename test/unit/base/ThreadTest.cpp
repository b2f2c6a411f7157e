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
