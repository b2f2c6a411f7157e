// The multiprocessors that a plan's channels may take.
#include <gtest/gtest.h>

#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Builder.h"

namespace shardc::predict {
namespace {

using plan::OpKind;

/// One role with so many gathers of `elements` in fp32, each on a channel of its own.
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

} // namespace
} // namespace shardc::predict
