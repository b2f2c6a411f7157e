// The time that counts as the host's work, and how much it queues before it waits.
#include <deque>
#include <string>

#include <gtest/gtest.h>

#include "runtime/exec/LaunchQueue.h"
#include "runtime/run/HostTimer.h"

namespace shardc::test {
namespace {

run::HostTimer::Clock::time_point now{};

void pass(int ms) { now += std::chrono::milliseconds(ms); }

TEST(HostTimer, WaitsAreNoWork) {
  run::HostTimer timer([] { return now; });
  timer.beginStep();
  pass(3);
  EXPECT_TRUE(timer
                  .wait([] {
                    pass(500);
                    return Status::ok();
                  })
                  .isOk());
  pass(4);
  EXPECT_EQ(timer
                .wait([] {
                  pass(20);
                  return Status(StatusCode::Aborted, "a rank is gone");
                })
                .code(),
            StatusCode::Aborted);
  EXPECT_NEAR(timer.step().work, 0.007, 1e-9);
  EXPECT_NEAR(timer.step().waited, 0.520, 1e-9);
  timer.beginStep();
  pass(1);
  EXPECT_NEAR(timer.step().work, 0.001, 1e-9) << "each step begins anew";
  EXPECT_DOUBLE_EQ(timer.step().waited, 0);
}

/// The device's side: records complete when the test says so.
struct FakeDevice;

struct FakeEvent final : hal::Event {
  FakeEvent(FakeDevice &device, std::string name) : device(device), name(std::move(name)) {}
  bool isDone() override { return done; }
  Status synchronize() override;
  FakeDevice &device;
  std::string name;
  bool done = true;
};

struct FakeDevice final : hal::Device {
  int rank() const override { return 0; }
  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind, int64_t,
                                                std::string_view) override {
    return Status(StatusCode::Unavailable, "no memory here");
  }
  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view, hal::StreamUse) override {
    return Status(StatusCode::Unavailable, "no stream here");
  }
  Result<std::unique_ptr<hal::Event>> createEvent() override {
    return std::unique_ptr<hal::Event>(
        std::make_unique<FakeEvent>(*this, "end " + std::to_string(events++)));
  }
  int64_t bytesFree(hal::MemoryKind) const override { return 0; }
  int64_t allocationCount() const override { return 0; }

  int events = 0;
  std::deque<std::string> waits; ///< names of events that somebody waited for
};

Status FakeEvent::synchronize() {
  device.waits.push_back(name);
  done = true;
  return Status::ok();
}

struct FakeMark final : hal::Mark {
  explicit FakeMark(FakeDevice &device) : device(device) {}
  bool isPassed(int64_t launches) override { return passed >= launches; }
  Status await(int64_t launches) override;
  FakeDevice &device;
  int64_t passed = 0, launched = 0;
};

Status FakeMark::await(int64_t launches) {
  if (passed < launches) {
    device.waits.push_back("mark " + std::to_string(launches));
    passed = launches;
  }
  return Status::ok();
}

struct FakeStream final : hal::Stream {
  Status launch(kernels::KernelFn, kernels::Call &, const char *) override { return Status::ok(); }
  Status copy(void *, const void *, int64_t, const char *) override { return Status::ok(); }
  Status fill(void *, uint8_t, int64_t, const char *) override { return Status::ok(); }
  Status collective(hal::Channel &, const hal::Collective &, const char *) override {
    return Status::ok();
  }
  Status record(hal::Event &event) override {
    static_cast<FakeEvent &>(event).done = false;
    return Status::ok();
  }
  Status wait(hal::Event &) override { return Status::ok(); }
  Status beginCapture() override { return Status::ok(); }
  Result<std::unique_ptr<hal::Graph>> endCapture() override {
    return Status(StatusCode::Unavailable, "no capture here");
  }
  void abandonCapture() override {}
  Status launch(hal::Graph &, const hal::LaunchParams &) override { return Status::ok(); }
};

struct FakeGraph final : hal::Graph {
  explicit FakeGraph(int64_t nodes) { setNodes(nodes); }
};

/// A queue, and launches through it as an executable makes them.
class Launches : public testing::Test {
protected:
  void open(int64_t nodesMax) { queue_ = std::move(*exec::LaunchQueue::create(device_, nodesMax)); }
  void launch(const FakeGraph &graph, FakeMark *nearEnd = nullptr) {
    EXPECT_TRUE(queue_.makeRoom(graph.nodes()).isOk());
    int64_t number = nearEnd ? ++nearEnd->launched : 1;
    EXPECT_TRUE(queue_.launched(stream_, graph, nearEnd, number).isOk());
  }
  std::deque<std::string> waits() { return std::exchange(device_.waits, {}); }

  FakeDevice device_;
  FakeStream stream_;
  exec::LaunchQueue queue_;
  FakeGraph micro_{900}, update_{50};
};

using Names = std::deque<std::string>;

TEST_F(Launches, WhatFitsIsNotWaitedFor) {
  open(2000);
  for (int i = 0; i < 2; ++i) {
    launch(micro_);
    launch(update_);
  }
  EXPECT_EQ(waits(), Names{});
  launch(micro_);
  EXPECT_EQ(waits(), Names{"end 0"}) << "the oldest makes room for 900 more";
  launch(update_);
  EXPECT_EQ(waits(), Names{}) << "950 + 950 + 50";
}

TEST_F(Launches, TheLastOneIsNotWaitedFor) {
  open(1000);
  launch(micro_);
  launch(micro_);
  EXPECT_EQ(waits(), Names{}) << "the device would run dry";
  launch(micro_);
  EXPECT_EQ(waits(), Names{"end 0"});
}

TEST_F(Launches, ALargeGraphTellsThatItsEndIsNear) {
  open(1000);
  FakeMark nearEnd(device_);
  launch(micro_, &nearEnd);
  launch(update_);
  launch(micro_, &nearEnd);
  EXPECT_EQ(waits(), Names{"mark 1"}) << "update and micro fit";
  launch(micro_, &nearEnd);
  EXPECT_EQ(waits(), (Names{"end 1", "mark 2"}));
}

TEST_F(Launches, LaunchesOfOneGraphAreTold) {
  open(2000);
  FakeMark nearEnd(device_);
  launch(micro_, &nearEnd);
  launch(micro_, &nearEnd);
  EXPECT_EQ(waits(), Names{});
  launch(micro_, &nearEnd);
  EXPECT_EQ(waits(), Names{"mark 1"}) << "the second is under way";
  nearEnd.passed = 3;
  launch(micro_, &nearEnd);
  EXPECT_EQ(waits(), Names{}) << "all before have passed";
}

TEST_F(Launches, AFullRingIsWaitedFor) {
  open(1 << 20);
  for (int i = 0; i < 64; ++i)
    launch(update_);
  EXPECT_EQ(waits(), Names{});
  launch(update_);
  EXPECT_EQ(waits(), Names{"end 0"});
}

TEST_F(Launches, WithoutALimitNothingIsWaitedFor) {
  open(0);
  for (int i = 0; i < 200; ++i)
    launch(micro_);
  EXPECT_EQ(waits(), Names{});
  EXPECT_EQ(device_.events, 0);
}

} // namespace
} // namespace shardc::test
