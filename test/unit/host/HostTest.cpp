// The host backend's behavior beyond the conformance suite: faults are detected and named.
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/host/Options.h"
#include "test/unit/base/Told.h"
#include "test/unit/host/AllocationCount.h"

namespace shardc::host {
namespace {

using ::testing::HasSubstr;

void addOne(const kernels::Call &call) {
  for (int64_t i = 0; i < call.out[0].numel(); ++i)
    static_cast<float *>(call.out[0].data)[i] += 1.0f;
}

void throwing(const kernels::Call &) { throw std::runtime_error("no luck"); }

/// A backend with the same streams on every rank, and one channel of all ranks.
struct Fixture {
  explicit Fixture(Options options) {
    backend = std::move(*makeBackend(options));
    hal::ChannelDesc desc{"dp misc", {}};
    for (int rank = 0; rank < options.ranks; ++rank) {
      hal::Device &device = *backend->devices()[rank];
      compute.push_back(std::move(*device.createStream("compute", hal::StreamUse::Compute)));
      reduce.push_back(std::move(*device.createStream("reduce", hal::StreamUse::Transfer)));
      buffers.push_back(std::move(*device.allocate(hal::MemoryKind::Work, 4096, "work")));
      desc.members.push_back(rank);
    }
    channel = std::move(*backend->createChannel(desc));
  }
  float *data(int rank) { return reinterpret_cast<float *>(buffers[rank]->data()); }
  kernels::Call call(int rank, int64_t count = 4) {
    kernels::Call call;
    call.outCount = 1;
    call.out[0] = {data(rank), DType::F32, 1, false, {count}};
    return call;
  }
  Status sum(int rank, hal::Stream &stream, int64_t count, const char *label) {
    return stream.collective(
        *channel, {hal::CollectiveKind::AllReduce, data(rank), data(rank), count}, label);
  }

  std::unique_ptr<hal::Backend> backend;
  std::vector<std::unique_ptr<hal::Stream>> compute, reduce;
  std::vector<std::unique_ptr<hal::Buffer>> buffers;
  std::unique_ptr<hal::Channel> channel;
};

TEST(HostBackend, RefusesCountsOutOfRange) {
  EXPECT_EQ(makeBackend({.ranks = 0}).status().code(), StatusCode::InvalidInput);
  EXPECT_EQ(makeBackend({.ranks = 1 << 20}).status().code(), StatusCode::InvalidInput);
  EXPECT_EQ(makeBackend({.workers = -1}).status().code(), StatusCode::InvalidInput);
}

TEST(HostBackend, RefusesChannelsWithoutSense) {
  Fixture f({.ranks = 2});
  EXPECT_FALSE(f.backend->createChannel({"none", {}}).isOk());
  EXPECT_FALSE(f.backend->createChannel({"beyond", {0, 2}}).isOk());
  EXPECT_FALSE(f.backend->createChannel({"twice", {1, 1}}).isOk());
}

TEST(HostBackend, DeadlockNamesTheHeadOfEveryQueue) {
  Fixture f({.ranks = 2});
  auto event = std::move(*f.backend->devices()[0]->createEvent());
  ASSERT_TRUE(f.sum(0, *f.reduce[0], 4, "all_reduce %g (a.recipe:7)").isOk());
  ASSERT_TRUE(f.reduce[0]->record(*event).isOk());
  ASSERT_TRUE(f.compute[0]->wait(*event).isOk());
  kernels::Call call = f.call(0);
  ASSERT_TRUE(f.compute[0]->launch(addOne, call, "add %x").isOk());
  Status status = f.backend->synchronize();
  EXPECT_EQ(status.code(), StatusCode::Deadlock);
  EXPECT_EQ(status.report().id, "deadlocked");
  EXPECT_EQ(
      status.message(),
      "deadlock: the remaining work cannot run"
      "\n  rank 0 compute: 'add %x' waits for an event"
      "\n  rank 0 reduce: 'all_reduce %g (a.recipe:7)' waits on channel 'dp misc' for rank 1");
  EXPECT_EQ(f.sum(1, *f.reduce[1], 4, "too late").code(), StatusCode::Deadlock);
}

TEST(HostBackend, DeadlockInsideGraphsIsNamed) {
  Fixture f({.ranks = 2});
  ASSERT_TRUE(f.compute[1]->beginCapture().isOk());
  ASSERT_TRUE(f.sum(1, *f.compute[1], 4, "all_reduce %n").isOk());
  auto graph = f.compute[1]->endCapture();
  ASSERT_TRUE(graph.isOk());
  ASSERT_TRUE(f.compute[1]->launch(**graph, {}).isOk());
  Status status = f.backend->synchronize();
  EXPECT_THAT(status.message(),
              HasSubstr("rank 1 compute: 'all_reduce %n' waits on channel 'dp misc' for rank 0"));
}

/// A lane may wait because the host has not woken up yet, although its event is complete. This is
/// not a deadlock.
TEST(HostBackend, AHostThatIsAboutToQueueMoreIsNoDeadlock) {
  Fixture f({.ranks = 2, .workers = 1});
  auto event = std::move(*f.backend->devices()[0]->createEvent());
  kernels::Call call = f.call(0);
  for (int turn = 0; turn < 2000; ++turn) {
    ASSERT_TRUE(f.compute[0]->launch(addOne, call, "add").isOk());
    ASSERT_TRUE(f.compute[0]->record(*event).isOk());
    ASSERT_TRUE(f.sum(0, *f.compute[0], 4, "sum").isOk());
    Status reached = event->synchronize();
    ASSERT_TRUE(reached.isOk()) << reached.message();
    ASSERT_TRUE(f.sum(1, *f.compute[1], 4, "sum").isOk());
  }
  EXPECT_TRUE(f.backend->synchronize().isOk());
}

/// A ring that has room again is not a deadlock.
TEST(HostBackend, ARingWithRoomIsNoDeadlock) {
  Fixture f({.ranks = 2, .workers = 2});
  for (int turn = 0; turn < 20'000; ++turn)
    for (int rank = 0; rank < 2; ++rank) {
      Status status = f.sum(rank, *f.compute[rank], 4, "sum");
      ASSERT_TRUE(status.isOk()) << status.message();
    }
  EXPECT_TRUE(f.backend->synchronize().isOk());
}

/// If one thread waits while another one enqueues work, that is not a deadlock.
TEST(HostBackend, AThreadThatWaitsBesideTheOneThatQueuesIsNoDeadlock) {
  Fixture f({.ranks = 2});
  auto event = std::move(*f.backend->devices()[0]->createEvent());
  ASSERT_TRUE(f.sum(0, *f.compute[0], 4, "sum").isOk());
  ASSERT_TRUE(f.compute[0]->record(*event).isOk());
  Status reached;
  std::thread waiter([&] { reached = event->synchronize(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20)); // usually enough for it to wait
  EXPECT_TRUE(f.sum(1, *f.compute[1], 4, "sum").isOk());
  waiter.join();
  EXPECT_TRUE(reached.isOk()) << reached.message();
  EXPECT_TRUE(f.backend->synchronize().isOk());
}

TEST(HostBackend, MembersThatDisagreeAreRefused) {
  Fixture f({.ranks = 2});
  ASSERT_TRUE(f.sum(0, *f.compute[0], 4, "sum of four").isOk());
  ASSERT_TRUE(f.sum(1, *f.compute[1], 5, "sum of five").isOk());
  Status status = f.backend->synchronize();
  EXPECT_EQ(status.code(), StatusCode::InvalidInput);
  EXPECT_THAT(status.message(), HasSubstr("members disagree: all_reduce of"));
  EXPECT_THAT(status.message(), HasSubstr("rank 0: 'sum of four'\n  rank 1: 'sum of five'"));
}

TEST(HostBackend, TypesThatCannotBeSummedAreRefused) {
  Fixture f({.ranks = 1});
  hal::Collective desc{
      hal::CollectiveKind::AllReduce, f.data(0), f.data(0), 4, DType::I32, DType::I32};
  ASSERT_TRUE(f.compute[0]->collective(*f.channel, desc, "sum").isOk());
  EXPECT_THAT(f.backend->synchronize().message(), HasSubstr("all_reduce cannot sum i32 into i32"));
}

TEST(HostBackend, KernelThatThrowsEndsTheRun) {
  Fixture f({.ranks = 2});
  kernels::Call call = f.call(1);
  ASSERT_TRUE(f.sum(0, *f.compute[0], 4, "sum").isOk());
  ASSERT_TRUE(f.compute[1]->launch(throwing, call, "matmul %y").isOk());
  Status status = f.backend->synchronize();
  EXPECT_EQ(status.code(), StatusCode::Internal);
  EXPECT_EQ(status.message(), "rank 1: 'matmul %y' failed: no luck");
}

/// Adds the step, the microbatch and the first operand of the list to the result.
void addStep(const kernels::Call &call) {
  for (int64_t i = 0; i < call.out[0].numel(); ++i)
    static_cast<float *>(call.out[0].data)[i] +=
        static_cast<float>(100 * call.step + 10 * call.microbatch) +
        *static_cast<const float *>(call.list[0].data) + static_cast<float>(call.ranges[0].begin) +
        *static_cast<const float *>(call.workspace);
}

/// Each rank computes with its own addresses and the launch's step, with and without graphs.
TEST(HostBackend, RanksShareACall) {
  constexpr int kRanks = 3;
  Fixture f({.ranks = kRanks});
  kernels::Call shared = f.call(0);
  shared.listCount = 1;
  shared.rangesCount = 1;
  shared.step = 7;
  float lists[kRanks] = {1, 2, 3}, scratch[kRanks] = {0.5, 0.25, 0.125};
  void *addresses[kRanks];
  kernels::Tensor tensors[kRanks];
  kernels::ParamRange ranges[kRanks];
  hal::OwnPart own[kRanks];
  std::unique_ptr<hal::Graph> graphs[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    addresses[rank] = f.data(rank);
    tensors[rank].data = &lists[rank];
    ranges[rank].begin = 1000 * rank;
    own[rank] = {&addresses[rank], &tensors[rank], &ranges[rank], nullptr, 1, &scratch[rank]};
    std::fill_n(f.data(rank), 4, 0.0f);
    ASSERT_TRUE(f.compute[rank]->launchShared(addStep, shared, own[rank], "add").isOk());
  }
  ASSERT_TRUE(f.backend->synchronize().isOk());
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(f.data(rank)[3], 700 + lists[rank] + static_cast<float>(1000 * rank) + scratch[rank]);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(f.compute[rank]->beginCapture().isOk());
    ASSERT_TRUE(f.compute[rank]->launchShared(addStep, shared, own[rank], "add").isOk());
    graphs[rank] = std::move(*f.compute[rank]->endCapture());
  }
  for (int rank = 0; rank < kRanks; ++rank)
    for (int64_t step : {1, 2})
      ASSERT_TRUE(f.compute[rank]->launch(*graphs[rank], {step, rank, 1}).isOk());
  ASSERT_TRUE(f.backend->synchronize().isOk());
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(f.data(rank)[0],
              1000 + 20 * rank +
                  3 * (lists[rank] + static_cast<float>(1000 * rank) + scratch[rank]));
  EXPECT_EQ(shared.step, 7) << "other ranks read it meanwhile";
}

TEST(HostBackend, GuardsSeeWritesOutsideOfBuffers) {
  Fixture f({.ranks = 1, .guards = true});
  EXPECT_TRUE(f.backend->checkGuards().isOk());
  uint8_t *data = f.buffers[0]->data(), saved = data[4096];
  data[4096] = 0;
  EXPECT_EQ(test::said(f.backend->checkGuards()),
            "error: rank 0 work: a write 0 bytes past its 4096 bytes [write-out-of-bounds]");
  data[4096] = saved;
  data[-3] = 0;
  EXPECT_EQ(f.backend->checkGuards().message(),
            "rank 0 work: a write 3 bytes before its first byte");
}

TEST(HostBackend, GuardsSeeTheFirstByteAfterAnOddSize) {
  Fixture f({.ranks = 1, .guards = true});
  auto buffer = std::move(*f.backend->devices()[0]->allocate(hal::MemoryKind::Host, 101, "feed"));
  buffer->data()[100] = 1;
  EXPECT_TRUE(f.backend->checkGuards().isOk());
  buffer->data()[101] = 1;
  EXPECT_FALSE(f.backend->checkGuards().isOk());
}

TEST(HostBackend, PoisonedMemoryIsNan) {
  Fixture f({.ranks = 1, .poison = true});
  EXPECT_TRUE(std::isnan(f.data(0)[0]));
  EXPECT_TRUE(std::isnan(f.data(0)[1023]));
}

TEST(HostBackend, RefusesMemoryThatIsNotThere) {
  Fixture f({.ranks = 1});
  auto buffer = f.backend->devices()[0]->allocate(hal::MemoryKind::Work, int64_t{1} << 61, "work");
  EXPECT_EQ(buffer.status().code(), StatusCode::Exhausted);
}

/// Order in which two independent streams' ops were executed.
std::string scheduleOf(uint64_t seed) {
  static std::string trace;
  trace.clear();
  auto append = [](const kernels::Call &call) {
    trace += static_cast<char>('a' + call.attrs.offset);
  };
  Fixture f({.ranks = 1, .workers = 1, .scheduleSeed = seed});
  std::vector<kernels::Call> calls(2, f.call(0));
  calls[1].attrs.offset = 1;
  auto event = std::move(*f.backend->devices()[0]->createEvent());
  EXPECT_TRUE(f.compute[0]->beginCapture().isOk());
  EXPECT_TRUE(f.compute[0]->record(*event).isOk());
  EXPECT_TRUE(f.reduce[0]->wait(*event).isOk());
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(f.compute[0]->launch(append, calls[0], "a").isOk());
    EXPECT_TRUE(f.reduce[0]->launch(append, calls[1], "b").isOk());
  }
  EXPECT_TRUE(f.reduce[0]->record(*event).isOk());
  EXPECT_TRUE(f.compute[0]->wait(*event).isOk());
  auto graph = f.compute[0]->endCapture();
  EXPECT_TRUE(graph.isOk());
  EXPECT_TRUE(f.compute[0]->launch(**graph, {}).isOk());
  EXPECT_TRUE(f.backend->synchronize().isOk());
  return trace;
}

TEST(HostBackend, StressScheduleIsAFunctionOfTheSeed) {
  std::string first = scheduleOf(1);
  EXPECT_EQ(first.size(), 20u);
  EXPECT_EQ(scheduleOf(1), first);
  int different = 0;
  for (uint64_t seed = 2; seed < 12; ++seed)
    different += scheduleOf(seed) != first;
  EXPECT_GT(different, 7);
}

TEST(HostBackend, GraphsRunWithoutAllocation) {
  Fixture f({.ranks = 2});
  std::vector<std::unique_ptr<hal::Graph>> graphs;
  std::vector<kernels::Call> calls = {f.call(0), f.call(1)};
  auto fork = std::move(*f.backend->devices()[0]->createEvent()),
       join = std::move(*f.backend->devices()[0]->createEvent());
  auto done = std::move(*f.backend->devices()[1]->createEvent());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(f.compute[rank]->beginCapture().isOk());
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(f.compute[rank]->launch(addOne, calls[rank], "add").isOk());
      ASSERT_TRUE(f.compute[rank]->record(*fork).isOk());
      ASSERT_TRUE(f.reduce[rank]->wait(*fork).isOk());
      ASSERT_TRUE(f.sum(rank, *f.reduce[rank], 4, "sum").isOk());
      ASSERT_TRUE(f.reduce[rank]->record(*join).isOk());
      ASSERT_TRUE(f.compute[rank]->wait(*join).isOk());
    }
    auto graph = f.compute[rank]->endCapture();
    ASSERT_TRUE(graph.isOk()) << graph.status().message();
    graphs.push_back(std::move(*graph));
  }
  test::startCountingAllocations();
  bool isOk = true;
  for (int64_t step = 0; step < 100; ++step) {
    for (int rank = 0; rank < 2; ++rank)
      isOk &= f.compute[rank]->launch(*graphs[rank], {step, 0, 1}).isOk();
    isOk &= f.compute[1]->record(*done).isOk();
    isOk &= done->synchronize().isOk();
  }
  isOk &= f.backend->synchronize().isOk();
  EXPECT_EQ(test::stopCountingAllocations(), 0u);
  EXPECT_TRUE(isOk);
}

TEST(HostBackend, ManyMoreItemsThanARingHolds) {
  Fixture f({.ranks = 1});
  std::memset(f.data(0), 0, 16);
  kernels::Call call = f.call(0);
  for (int i = 0; i < 5000; ++i)
    ASSERT_TRUE(f.compute[0]->launch(addOne, call, "add").isOk());
  ASSERT_TRUE(f.backend->synchronize().isOk());
  EXPECT_EQ(f.data(0)[0], 5000.0f);
}

} // namespace
} // namespace shardc::host
