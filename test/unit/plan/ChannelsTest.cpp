// Channels of a plan: kernels of several communicators need enough multiprocessors together, or an
// order.
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

/// Two sums on streams of their own; the second waits for the value named by `after`.
Plan twoSums(int multiprocessors, const std::string &after) {
  return parsed(fmt::format(
      "shardc.plan 2 placed \"t\"\nneeds {{ multiprocessors = 132 }}\nmesh {{ dp = 2 }}\n"
      "groups {{ dp = [dp] }}\nstream more\nchannel one group dp multiprocessors {0}\n"
      "channel two group dp multiprocessors {0} stream more\nrole r \"w\" {{\n"
      "  arenas {{ state = 0 work = 64 sym = 0 host = 0 }}\n  segment s {{\n"
      "    %x = fill : f32[4] comm at work 0\n    %y = fill : f32[4] comm at work 16\n"
      "    %p = all_reduce %x channel one : f32[4] comm at work 0\n"
      "    %q = all_reduce %y channel two after {1} : f32[4] comm at work 16\n  }}\n"
      "  program {{ run s }}\n}}\n",
      multiprocessors, after));
}

TEST(Channels, KernelsThatMayRunAtOnceNeedRoomTogether) {
  for (auto [multiprocessors, after, isFine] :
       {std::tuple(66, "%y", true), {67, "%y", false}, {67, "%p", true}, {133, "%p", false}}) {
    Plan plan = twoSums(multiprocessors, after);
    EXPECT_EQ(verify(plan).empty(), isFine) << multiprocessors << after;
    EXPECT_EQ(oracle::findBreak(plan).empty(), isFine) << multiprocessors << after;
    plan.multiprocessors = 0;
    EXPECT_TRUE(verify(plan).empty()) << "the device is the host";
  }
  std::vector<Finding> findings = verify(twoSums(67, "%y"));
  ASSERT_EQ(findings.size(), 2u) << "one for each channel";
  EXPECT_EQ(findings[0].rule, Rule::CollectiveOrder);
  EXPECT_EQ(findings[0].message,
            "kernels of channels that may run at once (one, two) take 134 multiprocessors; the "
            "device has 132, so that ranks could wait for each other");
}

TEST(Channels, KernelsTakeSome) {
  Plan plan = twoSums(0, "%y");
  for (Transport transport : {Transport::Nccl, Transport::Exchange, Transport::Ce}) {
    plan.channels[0].transport = plan.channels[1].transport = transport;
    std::vector<Finding> findings = verify(plan);
    ASSERT_EQ(findings.size(), 2u) << "copy engines add nothing up";
    EXPECT_EQ(findings[0].rule, Rule::CollectiveOrder);
    EXPECT_EQ(findings[0].message,
              "kernels of channel 'one' take 0 multiprocessors; only gathers by "
              "copy engines need none");
    EXPECT_NE(oracle::findBreak(plan), "");
  }
  plan.multiprocessors = 0;
  EXPECT_TRUE(verify(plan).empty());
  plan.needsBackend = "cuda";
  EXPECT_FALSE(verify(plan).empty()) << "of a device that is not described";
  EXPECT_NE(oracle::findBreak(plan), "");
}

TEST(Channels, CopyEnginesTakeNone) {
  for (std::string_view via : {"ce", "nccl"}) {
    Plan plan = parsed(planText("fsdp"));
    plan.multiprocessors = 132;
    for (Channel &channel : plan.channels)
      channel.multiprocessors = 16;
    plan.channels[0].transport = *parseTransport(via);
    plan.channels[0].multiprocessors = 0;
    EXPECT_EQ(verify(plan).empty(), via == "ce");
    EXPECT_EQ(oracle::findBreak(plan).empty(), via == "ce");
  }
  Plan plan = parsed(planText("fsdp"));
  plan.multiprocessors = 8;
  plan.channels[1].multiprocessors = 16;
  plan.channels[2].multiprocessors = 8;
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].message, "kernels of channels that may run at once (reduce) take 16 "
                                 "multiprocessors; the device has 8, so that ranks could wait for "
                                 "each other");
  EXPECT_NE(oracle::findBreak(plan), "");
}

TEST(Channels, OfSeveralGroupsHaveNamesOfTheirOwn) {
  Plan plan;
  plan.groups = {{"dp", {}}, {"tp", {}}};
  auto channel = [&](int16_t group, Transport transport) {
    return channelOf(plan, group, StreamKind::Gather, transport, "gather");
  };
  ChannelId first = channel(0, Transport::Ce), other = channel(1, Transport::Nccl);
  EXPECT_EQ(channel(0, Transport::Ce), first);
  EXPECT_EQ(channel(1, Transport::Nccl), other);
  ASSERT_EQ(plan.channels.size(), 2u);
  EXPECT_EQ(plan.channels[0].name, "gather");
  EXPECT_EQ(plan.channels[0].transport, Transport::Ce);
  EXPECT_EQ(plan.channels[1].name, "gather.tp");
  EXPECT_EQ(plan.channels[1].group, 1);
  ASSERT_EQ(plan.streams.size(), 2u);
  EXPECT_EQ(plan.channels[1].stream, plan.channels[0].stream);
}

TEST(Channels, NameWhatThereIs) {
  struct Case {
    void (*change)(Plan &);
    Rule rule;
    std::string_view message;
  };
  const Case kCases[] = {
      {[](Plan &p) {
         p.groups.push_back({"other", {}});
         p.channels[0].group = static_cast<int16_t>(p.groups.size() - 1);
       },
       Rule::Collective,
       "'all_gather' names group 'dp' and channel 'gather', which is of group 'other'"},
      {[](Plan &p) {
         p.multiprocessors = 132;
         p.channels[0].multiprocessors = 133;
       },
       Rule::CollectiveOrder,
       "kernels of channels that may run at once (gather) take 133 multiprocessors; the device has "
       "132, so that ranks could wait for each other"},
  };
  for (const Case &each : kCases) {
    Plan plan = parsed(planText("fsdp"));
    each.change(plan);
    std::vector<Finding> findings = verify(plan);
    ASSERT_FALSE(findings.empty()) << each.message;
    EXPECT_EQ(findings[0].rule, each.rule) << each.message;
    EXPECT_EQ(findings[0].message, each.message);
  }
}

} // namespace
} // namespace shardc::plan
