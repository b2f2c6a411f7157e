// How SHARDC_FAULT, which injects faults for tests, is parsed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/InjectedFault.h"

namespace shardc::run {
namespace {

using ::testing::HasSubstr;

TEST(Fault, IsReadWithRankAndStep) {
  Fault fault = *Fault::parse("channel-error@1:3");
  EXPECT_EQ(fault.kind, FaultKind::ChannelError);
  EXPECT_EQ(fault.step, 3);
  EXPECT_TRUE(fault.strikes(FaultKind::ChannelError, 1));
  EXPECT_FALSE(fault.strikes(FaultKind::ChannelError, 0));
  EXPECT_FALSE(fault.strikes(FaultKind::DeviceError, 1));
  EXPECT_TRUE(Fault::parse("stop-in-set-up@0")->strikes(FaultKind::StopInSetUp, 0));
  EXPECT_EQ(Fault::parse("throw@2:1")->kind, FaultKind::Throw);
  EXPECT_EQ(Fault::parse("hang@0:2")->kind, FaultKind::Hang);
  EXPECT_EQ(Fault::parse("")->kind, FaultKind::Nothing);
}

TEST(Fault, StrikesAtAMomentOfItsStep) {
  for (auto [text, moment] : {std::pair("kill@2:6", FaultMoment::Begin),
                              {"stop@2:6/collective", FaultMoment::Collective},
                              {"cut@2:6/evaluation", FaultMoment::Evaluation},
                              {"disk-full@2:6/save", FaultMoment::Save}}) {
    Result<Fault> fault = Fault::parse(text);
    ASSERT_TRUE(fault.isOk()) << text;
    EXPECT_EQ(fault->moment, moment) << text;
    EXPECT_EQ(fault->step, 6) << text;
    EXPECT_FALSE(fault->strikesAgain);
    EXPECT_TRUE(Fault::parse(std::string(text) + "/again")->strikesAgain);
    EXPECT_TRUE(Fault::parse(std::string(text) + "/kept/again")->awaitsKept);
  }
}

TEST(Fault, WhatIsNoneIsRefusedWithWhatIs) {
  for (const char *text :
       {"stop", "stop-in-set-up", "stop-in-set-up@", "stop-in-set-up@-1", "stop-in-set-up@1:2",
        "channel-error@1", "channel-error@1:0", "channel-error@1:2x", "@1", ":",
        "channel-error:1@2", "kill@1:2/noon", "stop-in-set-up@1/save"})
    EXPECT_THAT(Fault::parse(text).status().message(), HasSubstr("channel-error@RANK:STEP"))
        << text;
}

TEST(Fault, RefusalsAreOneRanks) {
  auto refuses = [](const char *text, int rank, Service what) {
    return InjectedRefusals(*Fault::parse(text), rank).refuses(what);
  };
  EXPECT_TRUE(refuses("refused-windows@1", 1, Service::Windows));
  EXPECT_FALSE(refuses("refused-windows@1", 1, Service::Buffers));
  EXPECT_FALSE(refuses("refused-windows@1", 0, Service::Windows));
  EXPECT_TRUE(refuses("refused-buffers@0", 0, Service::Windows));
  EXPECT_TRUE(refuses("refused-buffers@0", 0, Service::Buffers));
  EXPECT_TRUE(refuses("refused-peers@1", 1, Service::Peers));
  EXPECT_FALSE(refuses("refused-buffers@1", 1, Service::Peers));
  EXPECT_TRUE(refuses("refused-attention@2", 2, Service::Attention));
  EXPECT_FALSE(refuses("", -1, Service::Attention));
}

} // namespace
} // namespace shardc::run
