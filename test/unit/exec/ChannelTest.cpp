// The descriptions of a plan's channels for a backend, and their memory.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/exec/Executable.h"
#include "runtime/plan/Execution.h"
#include "runtime/run/Preflight.h"
#include "test/unit/base/Told.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

using hal::Registration;
using plan::OpKind;
using plan::Transport;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A host backend that claims to have receive buffers, and records the channels that are requested.
class ChannelRecorder final : public hal::Backend {
public:
  explicit ChannelRecorder(int ranks) : host_(std::move(*host::makeBackend({.ranks = ranks}))) {}

  std::string_view name() const override { return host_->name(); }
  int worldSize() const override { return host_->worldSize(); }
  bool devicesShareMemory() const override { return sharesMemory; }
  bool hasReceiveBuffers() const override { return true; }
  std::span<hal::Device *const> devices() const override { return host_->devices(); }
  Result<std::unique_ptr<hal::Channel>> createChannel(const hal::ChannelDesc &desc) override {
    descs.push_back(desc);
    return host_->createChannel(desc);
  }
  Status synchronize() override { return host_->synchronize(); }

  std::vector<hal::ChannelDesc> descs;
  bool sharesMemory = true;

private:
  std::unique_ptr<hal::Backend> host_;
};

plan::Op &opOf(plan::Plan &plan, OpKind kind) {
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Op &op : segment.ops)
      if (op.kind == kind)
        return op;
  ADD_FAILURE() << "the plan has no such op";
  return plan.roles[0].segments[0].ops[0];
}

plan::Channel &channelOf(plan::Plan &plan, OpKind kind) {
  return plan.channels[static_cast<size_t>(opOf(plan, kind).channel)];
}

/// The toy plan, with or without registered buffers.
plan::Plan planWith(Transport gathers, bool isRegistered, bool isSymmetric = true) {
  plan::Plan plan = toyPlan({});
  channelOf(plan, OpKind::AllGather).transport = gathers;
  plan.job.ddp.disableSymmetricRegistration = !isSymmetric;
  plan.job.ddp.ncclUb = isRegistered;
  return plan;
}

/// The channels that the plan describes, by name: "dp gather", "dp misc", "dp reduce".
std::vector<hal::ChannelDesc> describe(const plan::Plan &plan) {
  ChannelRecorder backend(2);
  auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk()) << executable.status().message();
  std::ranges::sort(backend.descs, {}, &hal::ChannelDesc::name);
  return backend.descs;
}

std::vector<Registration> registrationsOf(const plan::Plan &plan) {
  std::vector<Registration> found;
  for (const hal::ChannelDesc &desc : describe(plan)) {
    found.push_back(desc.registration);
    bool touches = desc.name != "dp misc" && plan.job.ddp.ncclUb;
    EXPECT_EQ(desc.shared.size(), touches ? 2u : 0u) << desc.name << ": the arena of both ranks";
    for (const hal::SharedMemory &shared : desc.shared)
      EXPECT_EQ(shared.bytes, plan.roles[0].arenaBytes[static_cast<size_t>(plan::Arena::Sym)]);
  }
  return found;
}

TEST(Channels, AreRegisteredWhereTheyTouchSharedMemory) {
  constexpr auto kNothing = Registration::Nothing, kLocal = Registration::Local,
                 kWindows = Registration::Windows;
  EXPECT_THAT(registrationsOf(planWith(Transport::Ce, false)),
              ElementsAre(kNothing, kNothing, kNothing));
  EXPECT_THAT(registrationsOf(planWith(Transport::Ce, true)),
              ElementsAre(kWindows, kNothing, kLocal))
      << "windows are for copy engines; norms travel between other memory";
  EXPECT_THAT(registrationsOf(planWith(Transport::Nccl, true)),
              ElementsAre(kLocal, kNothing, kLocal))
      << "several nodes";
  EXPECT_THAT(registrationsOf(planWith(Transport::Ce, true, false)),
              ElementsAre(kLocal, kNothing, kLocal));
  EXPECT_THAT(registrationsOf(planWith(Transport::Nccl, false, false)),
              ElementsAre(kNothing, kNothing, kNothing));
}

/// The warm-up of channels uses memory of the arenas, so it allocates none.
TEST(Channels, AreLentMemoryThatAnyOperandFitsInto) {
  for (const hal::ChannelDesc &desc : describe(planWith(Transport::Nccl, false))) {
    ASSERT_EQ(desc.lent.size(), 2u) << desc.name;
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(desc.lent[rank].rank, rank);
      for (const hal::ChannelUse &use : desc.uses)
        EXPECT_GE(desc.lent[rank].bytes, use.bytes) << desc.name;
    }
  }
}

TEST(Channels, ThoseThatStayUnregisteredAreTold) {
  for (bool isAsked : {false, true}) {
    plan::Plan plan = planWith(Transport::Ce, isAsked);
    channelOf(plan, OpKind::ReduceScatter).transport = Transport::Exchange;
    ChannelRecorder backend(2);
    auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
    ASSERT_TRUE(executable.isOk()) << executable.status().message();
    EXPECT_EQ((*executable)->unregisteredChannels(),
              isAsked ? std::vector<std::string>{"dp reduce"} : std::vector<std::string>{});
  }
}

TEST(Channels, ExchangesAreNotRegistered) {
  plan::Plan plan = planWith(Transport::Ce, true);
  channelOf(plan, OpKind::ReduceScatter).transport = Transport::Exchange;
  EXPECT_THAT(registrationsOf(plan),
              ElementsAre(Registration::Windows, Registration::Nothing, Registration::Nothing));
}

/// Under plain data parallelism, all ranks get the sums of gradients.
TEST(Channels, SumsForAllAreRegisteredToo) {
  plan::Plan plan = toyPlan({.dp = 1});
  plan::Segment &micro = plan.roles[0].segments[1];
  plan::Op &reduce = opOf(plan, OpKind::ReduceScatter);
  reduce.kind = OpKind::AllReduce;
  reduce.ties.clear();
  EXPECT_EQ(micro.values[reduce.operands[0]].type.numel(),
            micro.values[reduce.results[0]].type.numel());
  plan.job.ddp.ncclUb = true;
  ChannelRecorder backend(1);
  auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk()) << executable.status().message();
  auto desc = std::ranges::find(backend.descs, "dp reduce", &hal::ChannelDesc::name);
  ASSERT_NE(desc, backend.descs.end());
  EXPECT_EQ(desc->registration, Registration::Local);
  EXPECT_EQ(desc->shared.size(), 1u);
}

/// Bandwidth is measured for channels described as gathers, with any transport.
TEST(Channels, OnlySumsMayBeInAnyOrder) {
  for (Transport gathers : {Transport::Ce, Transport::Nccl})
    for (Transport sums : {Transport::Exchange, Transport::Nccl}) {
      plan::Plan plan = planWith(gathers, true);
      channelOf(plan, OpKind::ReduceScatter).transport = sums;
      std::vector<hal::ChannelDesc> descs = describe(plan);
      ASSERT_EQ(descs.size(), 3u);
      ASSERT_EQ(descs[0].uses.size(), 1u);
      EXPECT_EQ(descs[0].uses[0].kind, hal::CollectiveKind::AllGather);
      EXPECT_FALSE(descs[0].uses[0].anyOrder);
      EXPECT_EQ(descs[0].uses[0].bytes, 32 * 4);
      ASSERT_EQ(descs[2].uses.size(), 1u);
      EXPECT_EQ(descs[2].uses[0].anyOrder, sums == Transport::Nccl);
    }
}

std::vector<int64_t> receiveBuffersOf(const plan::Plan &plan) {
  std::vector<int64_t> bytes;
  for (const hal::ChannelDesc &desc : describe(plan))
    bytes.push_back(desc.receiveBufferBytes);
  return bytes;
}

TEST(Channels, BringTheirLargestLandingBuffer) {
  plan::Plan plan = toyPlan({.evalEvery = 2}); // f64[4] and f64[2] in misc, f32[16] a shard
  EXPECT_THAT(receiveBuffersOf(plan), ElementsAre(0, 2 * 4 * 8, 16 * 4))
      << "added to earlier shards";
  EXPECT_EQ(plan::receiveBufferBytes(plan, plan.roles[0]), 2 * 4 * 8 + 16 * 4);
  channelOf(plan, OpKind::ReduceScatter).transport = Transport::Exchange;
  EXPECT_THAT(receiveBuffersOf(plan), ElementsAre(0, 2 * 4 * 8, 2 * 16 * 4));
  plan::Plan squared = toyPlan({.squares = true});
  EXPECT_THAT(receiveBuffersOf(squared), ElementsAre(0, 2 * 4 * 8, 2 * 16 * 4 + 8))
      << "a sum of squares";
  plan::Plan straight = toyPlan({});
  opOf(straight, OpKind::ReduceScatter).ties.clear();
  EXPECT_THAT(receiveBuffersOf(straight), ElementsAre(0, 2 * 4 * 8, 0));
}

TEST(Channels, LandingBuffersCountWhereThereAreSome) {
  plan::Plan plan = toyPlan({});
  ChannelRecorder backend(2);
  EXPECT_EQ(said(run::checkMemory(plan, backend)), "");
  plan::Op &reduce = opOf(plan, OpKind::ReduceScatter);
  plan.roles[0].segments[1].values[reduce.results[0]].type.shape[0] = int64_t{1} << 47;
  EXPECT_THAT(
      said(run::checkMemory(plan, backend)),
      AllOf(HasSubstr("each needs 512.0 TiB: arenas "), HasSubstr(", receive buffers 512.0 TiB")));
  auto host = host::makeBackend({.ranks = 2});
  EXPECT_EQ(said(run::checkMemory(plan, **host)), "");
}

TEST(Channels, MemoryOfTheHostIsComparedWithTheMachines) {
  plan::Plan plan = toyPlan({});
  plan.roles[0].arenaBytes[static_cast<size_t>(plan::Arena::Host)] = int64_t{1} << 50;
  ChannelRecorder backend(2);
  backend.sharesMemory = false;
  EXPECT_THAT(said(run::checkMemory(plan, backend, 2)),
              AllOf(HasSubstr("4 ranks need 4096.0 TiB of memory, but "),
                    HasSubstr("each needs 1024.0 TiB: pinned memory of the machine")));
  plan.roles[0].arenaBytes[static_cast<size_t>(plan::Arena::Host)] = 4096;
  EXPECT_EQ(said(run::checkMemory(plan, backend)), "");
  plan.roles[0].arenaBytes[static_cast<size_t>(plan::Arena::Host)] = int64_t{1} << 50;
  auto host = host::makeBackend({.ranks = 2});
  EXPECT_THAT(said(run::checkMemory(plan, **host)),
              HasSubstr("each needs 1024.0 TiB: arenas 1024.0 TiB"));
}

/// If another process uses the GPU, a run would otherwise fail only when it creates a communicator
/// or a workspace.
TEST(Channels, WhatIsPredictedBesideArenasCountsOnDevicesOfTheirOwn) {
  for (const char *part : {"communicators", "workspaces", "libraries"}) {
    plan::Plan plan = toyPlan({});
    if (std::optional<plan::Beside> what = plan::parseBeside(part))
      plan.roles[0].besideBytes[static_cast<size_t>(*what)] = int64_t{1} << 50;
    else
      plan.job.put(fmt::format("derived.memory.{}", part), int64_t{1} << 50);
    ChannelRecorder backend(2);
    EXPECT_EQ(said(run::checkMemory(plan, backend)), "") << "simulated: there are none";
    backend.sharesMemory = false;
    std::string text = said(run::checkMemory(plan, backend));
    EXPECT_THAT(text, AllOf(HasSubstr("a rank needs 1024.0 TiB of memory, but "),
                            HasSubstr("[not-enough-memory]")));
    EXPECT_THAT(text, HasSubstr(fmt::format("{} 1024.0 TiB (predicted)", part)));
  }
  plan::Plan plan = toyPlan({});
  plan.job.derived.memoryContextBytes = int64_t{1} << 50;
  ChannelRecorder backend(2);
  backend.sharesMemory = false;
  EXPECT_EQ(said(run::checkMemory(plan, backend)), "") << "it has been made, and counts as used";
}

} // namespace
} // namespace shardc::test
