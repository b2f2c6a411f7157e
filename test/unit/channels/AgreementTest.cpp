// Joint decisions of a channel's ranks, while other groups decide at the same time.
#include <barrier>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/channels/Connect.h"
#include "runtime/tools/PeerRendezvous.h"
#include "test/unit/channels/Board.h"

namespace shardc::channels {
namespace {

using hal::Registration;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

using test::BoardPeers;

/// Runs `work` as each rank, with the members of its group: 0 and 1, or 2 and 3.
void asTwoGroups(const std::function<void(BoardPeers &, const std::vector<int> &)> &work) {
  test::asRanks(kRanks, [&](BoardPeers &peers) {
    work(peers, peers.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
  });
}

TEST(Agreement, GroupsThatGetFartherThanOthersStayInStep) {
  for (Registration wanted : {Registration::Windows, Registration::Local}) {
    std::barrier first{2}, second{2}; // members of a group register windows together
    std::array<Registration, kRanks> reached = {};
    std::array<int, kRanks> exchanges = {};
    asTwoGroups([&](BoardPeers &peers, const std::vector<int> &members) {
      tools::PeerRendezvous rendezvous(peers);
      auto rank = static_cast<size_t>(peers.rank());
      RegistrationSteps steps;
      steps.canTryWindows = [&] { return rank != 1; }; // one rank of the first group cannot
      steps.windows = [&] {
        (rank < 2 ? first : second).arrive_and_wait();
        return true;
      };
      steps.locally = [] { return true; };
      steps.allAgree = [&](std::string_view what, bool mine) -> Result<bool> {
        auto against = rendezvous.first(fmt::format("{} of {}", what, members.front()), members,
                                        mine ? "" : "no");
        EXPECT_TRUE(against.isOk()) << against.status().message();
        return against->empty();
      };
      reached[rank] = *agreeOnRegistration("dp gather", wanted, steps);
      // The next exchange belongs to the next channel.
      auto next = rendezvous.gather("next", members, std::to_string(rank));
      EXPECT_THAT(*next, ElementsAre(std::to_string(members[0]), std::to_string(members[1])));
      exchanges[rank] = peers.exchanges;
    });
    bool asksWindows = wanted == Registration::Windows;
    EXPECT_THAT(reached, ElementsAre(Registration::Local, Registration::Local,
                                     asksWindows ? Registration::Windows : Registration::Local,
                                     asksWindows ? Registration::Windows : Registration::Local));
    EXPECT_THAT(exchanges, ::testing::Each(asksWindows ? 4 : 2));
  }
}

/// A window cannot be removed, and collectives need the same windows on all members.
TEST(Agreement, WindowsOfSomeMembersEndTheJob) {
  std::array<std::string, kRanks> errors;
  std::array<Registration, kRanks> reached = {};
  std::array<int, kRanks> exchanges = {}, locals = {};
  asTwoGroups([&](BoardPeers &peers, const std::vector<int> &members) {
    tools::PeerRendezvous rendezvous(peers);
    auto rank = static_cast<size_t>(peers.rank());
    RegistrationSteps steps;
    steps.canTryWindows = [] { return true; };
    // NCCL refuses windows on one rank of the first group.
    steps.windows = [&] { return rank != 1; };
    steps.locally = [&] { return ++locals[rank] > 0; };
    steps.dropLocal = [&] { locals[rank] = 0; };
    steps.allAgree = [&](std::string_view what, bool mine) -> Result<bool> {
      auto votes = rendezvous.gather(std::string(what), members, mine ? "yes" : "no");
      EXPECT_TRUE(votes.isOk()) << votes.status().message();
      return (*votes)[0] == "yes" && (*votes)[1] == "yes";
    };
    auto agreed = agreeOnRegistration("dp gather", Registration::Windows, steps);
    exchanges[rank] = peers.exchanges;
    if (agreed.isOk())
      reached[rank] = *agreed;
    else
      errors[rank] = agreed.status().message();
  });
  EXPECT_THAT(errors,
              ElementsAre("NCCL gave windows to some members of channel 'dp gather' and none to "
                          "others",
                          "", "", ""));
  EXPECT_THAT(reached, ElementsAre(Registration::Nothing, Registration::Nothing,
                                   Registration::Windows, Registration::Windows));
  EXPECT_THAT(exchanges, ::testing::Each(3)) << "whatever became of them";
  EXPECT_THAT(locals, ElementsAre(0, 0, 0, 0)) << "who has windows does not try";
}

TEST(Agreement, WhatOneCouldNotRegisterNobodyKeeps) {
  std::array<int, kRanks> registered = {};
  std::array<Registration, kRanks> reached = {};
  asTwoGroups([&](BoardPeers &peers, const std::vector<int> &members) {
    tools::PeerRendezvous rendezvous(peers);
    auto rank = static_cast<size_t>(peers.rank());
    RegistrationSteps steps;
    steps.locally = [&] {
      registered[rank] += rank != 1 ? 1 : 0;
      return rank != 1;
    };
    steps.dropLocal = [&] { registered[rank] = 0; };
    steps.allAgree = [&](std::string_view what, bool mine) -> Result<bool> {
      auto votes = rendezvous.gather(std::string(what), members, mine ? "yes" : "no");
      EXPECT_TRUE(votes.isOk()) << votes.status().message();
      return (*votes)[0] == "yes" && (*votes)[1] == "yes";
    };
    reached[rank] = *agreeOnRegistration("dp gather", Registration::Local, steps);
  });
  EXPECT_THAT(reached, ElementsAre(Registration::Nothing, Registration::Nothing,
                                   Registration::Local, Registration::Local));
  EXPECT_THAT(registered, ElementsAre(0, 0, 1, 1));
}

TEST(Agreement, NothingIsTriedThatIsNotAskedFor) {
  RegistrationSteps steps; // no step may be called
  EXPECT_EQ(*agreeOnRegistration("dp gather", Registration::Nothing, steps), Registration::Nothing);
}

/// One rank of the first group takes part in another vote.
TEST(Agreement, RanksAtDifferentVotesEnd) {
  asTwoGroups([](BoardPeers &peers, const std::vector<int> &members) {
    if (members.front() == 2)
      return;
    tools::PeerRendezvous rendezvous(peers);
    auto parts = rendezvous.gather(peers.rank() == 1 ? "buffers" : "windows", members, "yes");
    EXPECT_FALSE(parts.isOk());
    EXPECT_THAT(parts.status().message(), HasSubstr("'windows'"));
    EXPECT_THAT(parts.status().message(), HasSubstr("'buffers'"));
  });
}

} // namespace
} // namespace shardc::channels
