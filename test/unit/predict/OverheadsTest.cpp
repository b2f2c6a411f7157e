// The multiprocessors that a plan's channels may use.
#include <gtest/gtest.h>

#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Builder.h"

namespace shardc::predict {
namespace {

using plan::OpKind;

/// A role with `channels` gathers of `elements` in fp32, each on its own channel.
plan::Plan planOf(int channels, int64_t elements) {
  plan::Plan plan;
  plan.mesh = {{"dp", 2}};
  plan.groups = {{"dp", {0}}};
  plan::Segment &segment = plan.roles.emplace_back().segments.emplace_back();
  for (int i = 0; i < channels; ++i) {
    plan.channels.push_back({});
    plan.channels.back().group = 0;
    plan::ValueId part =
        plan::addValue(segment, "part", plan::Type::of(DType::F32, {elements / 2}));
    plan::Op gather = plan::makeOp(OpKind::AllGather, {part});
    plan::setChannel(plan, gather, static_cast<plan::ChannelId>(i));
    gather.results = {plan::addValue(segment, "all", plan::Type::of(DType::F32, {elements}))};
    plan::append(segment, std::move(gather));
  }
  return plan;
}

TEST(Multiprocessors, AreThoseOfTheTransportWhereAllHaveRoom) {
  EXPECT_EQ(multiprocessorsOf(device(Gpu::H200), planOf(4, 1 << 20)), std::vector<int32_t>(4, 32));
}

TEST(Multiprocessors, AreFewerWhereManyChannelsShareTheDevice) {
  EXPECT_EQ(multiprocessorsOf(device(Gpu::H200), planOf(5, 1 << 20)), std::vector<int32_t>(5, 26));
}

TEST(Multiprocessors, OfTheRanksOfOneRoleShareADevice) {
  plan::Plan plan = planOf(6, 1 << 20);
  plan::Role &other = plan.roles.emplace_back(plan.roles.front());
  plan.roles.front().segments.front().ops.resize(3);
  other.segments.front().ops.erase(other.segments.front().ops.begin(),
                                   other.segments.front().ops.begin() + 3);
  EXPECT_EQ(multiprocessorsOf(device(Gpu::H200), plan), std::vector<int32_t>(6, 32));
}

TEST(Multiprocessors, OfSmallCollectivesAreOne) {
  EXPECT_EQ(multiprocessorsOf(device(Gpu::H200), planOf(1, 64)), std::vector<int32_t>(1, 1));
}

/// A role that sends and receives `elements` in fp32 on `channels` channels.
plan::Role transfersOf(plan::Plan &plan, int channels, int64_t elements) {
  plan::Role role;
  plan::Segment &segment = role.segments.emplace_back();
  for (int i = 0; i < channels; ++i) {
    plan::ValueId value = plan::addValue(segment, "x", plan::Type::of(DType::F32, {elements}));
    plan::Op send = plan::makeOp(OpKind::Send, {value});
    send.group = 0;
    send.channel = static_cast<plan::ChannelId>(plan.channels.size());
    plan.channels.push_back({});
    plan.channels.back().group = 0;
    plan.channels.back().pair = {0, 1};
    plan::append(segment, std::move(send));
  }
  return role;
}

TEST(Overheads, AreThoseOfEachRole) {
  constexpr int64_t kMiB = 1 << 20;
  plan::Plan plan = planOf(0, 2);
  plan.roles.clear();
  plan.roles.push_back(transfersOf(plan, 2, 1 << 20));
  plan.roles.push_back(transfersOf(plan, 4, 1 << 20));
  plan.roles.push_back(transfersOf(plan, 1, 16));
  notePredictions(device(Gpu::H200), plan);
  EXPECT_EQ(plan.roles[0].beside(plan::Beside::Communicators), (704 + 268) * kMiB);
  EXPECT_EQ(plan.roles[1].beside(plan::Beside::Communicators), (704 + 3 * 268) * kMiB);
  EXPECT_EQ(plan.roles[2].beside(plan::Beside::Communicators), 24 * kMiB) << "a small one";
}

} // namespace
} // namespace shardc::predict
