// How channels use their description: the receive buffer exists before the first collective and
// never grows, and bandwidth of gathers is measured, registered or not. Needs two GPUs.
#include <cstdlib>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {
namespace {

using hal::CollectiveKind;

constexpr int kRanks = 2;
constexpr int64_t kShard = 100000; ///< floats

/// Two ranks of this process; null unless there are two GPUs and SHARDC_GPU is 1.
std::unique_ptr<hal::Backend> twoRanks() {
  const char *wanted = std::getenv("SHARDC_GPU");
  Options options;
  options.worldSize = kRanks;
  options.timeoutSeconds = 60;
  auto backend = makeBackend(options);
  return wanted && std::string_view(wanted) == "1" && backend.isOk() ? std::move(*backend)
                                                                     : nullptr;
}

struct Memory {
  std::vector<std::unique_ptr<hal::Buffer>> wholes, shards;
  std::vector<std::unique_ptr<hal::Stream>> streams;
};

Memory allocate(hal::Backend &backend) {
  Memory memory;
  for (hal::Device *device : backend.devices()) {
    memory.wholes.push_back(
        std::move(*device->allocate(hal::MemoryKind::Work, kRanks * kShard * 4, "whole")));
    memory.shards.push_back(
        std::move(*device->allocate(hal::MemoryKind::Work, kShard * 4, "shard")));
    memory.streams.push_back(std::move(*device->createStream("reduce", hal::StreamUse::Transfer)));
  }
  return memory;
}

/// Sums in rank order on all ranks. Returns the first error.
Status sumOn(hal::Channel &channel, Memory &memory) {
  for (int rank = 0; rank < kRanks; ++rank) {
    hal::Collective sum{CollectiveKind::ReduceScatter, memory.wholes[rank]->data(),
                        memory.shards[rank]->data(), kShard};
    RETURN_IF_ERROR(memory.streams[rank]->collective(channel, sum, "sum"));
  }
  return Status::ok();
}

/// Warm-up uses lent memory, because the largest all-reduce of plain data parallelism takes a
/// gigabyte, and arenas may fill the device.
TEST(CudaReceiveBuffer, WarmsUpInLentMemory) {
  std::unique_ptr<hal::Backend> backend = twoRanks();
  if (!backend)
    GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
  Memory memory = allocate(*backend);
  for (bool isLent : {false, true}) {
    hal::ChannelDesc desc{isLent ? "lent" : "own", {0, 1}};
    desc.uses = {{CollectiveKind::AllReduce, kRanks * kShard * 4, true},
                 {CollectiveKind::AllGather, kRanks * kShard * 4, false}};
    for (int rank = 0; rank < kRanks; ++rank)
      desc.lent.push_back(
          {rank, memory.wholes[rank]->data(), isLent ? memory.wholes[rank]->bytes() : 0});
    int64_t before = backend->devices().front()->allocationCount();
    auto channel = backend->createChannel(desc);
    ASSERT_TRUE(channel.isOk()) << channel.status().message();
    int64_t after = backend->devices().front()->allocationCount();
    EXPECT_EQ(after == before, isLent) << after - before << " allocations";
  }
}

TEST(CudaReceiveBuffer, IsThereBeforeTheFirstCollective) {
  std::unique_ptr<hal::Backend> backend = twoRanks();
  if (!backend)
    GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
  Memory memory = allocate(*backend);
  hal::ChannelDesc desc{"dp reduce", {0, 1}};
  desc.uses = {{CollectiveKind::ReduceScatter, kRanks * kShard * 4, false}};
  desc.receiveBufferBytes = kRanks * kShard * 4;
  auto channel = backend->createChannel(desc);
  ASSERT_TRUE(channel.isOk()) << channel.status().message();
  EXPECT_EQ((*channel)->receiveBufferBytes(), desc.receiveBufferBytes);
  int64_t before = backend->devices().front()->allocationCount();
  Status status = sumOn(**channel, memory);
  EXPECT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(backend->synchronize().isOk());
  EXPECT_EQ(backend->devices().front()->allocationCount(), before);
}

TEST(CudaReceiveBuffer, MoreThanWasAskedForIsAnError) {
  std::unique_ptr<hal::Backend> backend = twoRanks();
  if (!backend)
    GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
  Memory memory = allocate(*backend);
  hal::ChannelDesc desc{"dp reduce", {0, 1}};
  desc.uses = {{CollectiveKind::ReduceScatter, kRanks * kShard * 4, false}};
  desc.receiveBufferBytes = kShard * 4;
  auto channel = backend->createChannel(desc);
  ASSERT_TRUE(channel.isOk()) << channel.status().message();
  EXPECT_THAT(sumOn(**channel, memory).message(),
              ::testing::HasSubstr("reduce_scatter needs a receive buffer of 800000 bytes; it has "
                                   "one of 400000"));
}

TEST(CudaGathers, AreMeasuredWhateverIsRegistered) {
  std::unique_ptr<hal::Backend> backend = twoRanks();
  if (!backend)
    GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
  hal::ChannelDesc gathers{"dp gather", {0, 1}}, sums{"dp reduce", {0, 1}};
  gathers.uses = {{CollectiveKind::AllGather, 64 << 20, false}};
  sums.uses = {{CollectiveKind::ReduceScatter, 64 << 20, true}};
  auto channel = backend->createChannel(gathers), other = backend->createChannel(sums);
  ASSERT_TRUE(channel.isOk() && other.isOk());
  EXPECT_GT((*channel)->measuredGatherGBs(), 1);
  EXPECT_EQ((*other)->measuredGatherGBs(), 0) << "nothing is gathered";
}

} // namespace
} // namespace shardc::cuda
