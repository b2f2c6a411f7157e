// Creates channels of ranks in several processes, as both backends do, with the null backend's
// communicator library: who calls it, in which order, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/null/Options.h"
#include "runtime/base/Reports.h"
#include "runtime/tools/PeerRendezvous.h"
#include "test/unit/channels/Board.h"

namespace shardc::null {
namespace {

using test::BoardPeers;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBytes = 1 << 20;

class Refused final : public Refusals {
public:
  explicit Refused(std::optional<Service> what) : what_(what) {}
  bool refuses(Service what) const override { return what == what_; }

private:
  std::optional<Service> what_;
};

/// The outcome in one rank's process.
struct Seen {
  std::vector<std::string> calls, warnings;
  std::vector<Status> failures;
  Status status;
};

/// A rank's description of a channel.
struct Wanted {
  std::string name;
  std::vector<int> members;
  hal::Registration registration = hal::Registration::Nothing;
  bool isReached = false;
  std::vector<hal::ChannelUse> uses = {};
};

/// Creates the channels of this rank, in order.
void create(BoardPeers &peers, const std::vector<Wanted> &channels, std::optional<Service> refused,
            Seen &seen, int64_t bytes = kBytes) {
  tools::PeerRendezvous rendezvous(peers);
  Refused refusals(refused);
  Options options;
  options.ranks = peers.worldSize();
  options.rank = peers.rank();
  options.rendezvous = &rendezvous;
  options.refusals = &refusals;
  options.emit = [&](const Report &report) { seen.warnings.emplace_back(report.id); };
  options.failed = [&](const Status &status) { seen.failures.push_back(status); };
  options.onCall = [&](std::string_view call, const hal::ChannelDesc &desc) {
    seen.calls.push_back(fmt::format("{} {}", call, desc.name));
  };
  options.onBreach = [](const Status &breach) { ADD_FAILURE() << breach.message(); };
  auto backend = std::move(*makeBackend(options));
  auto memory = std::move(*backend->devices()[0]->allocate(hal::MemoryKind::Sym, bytes, "sym"));
  std::vector<std::unique_ptr<hal::Channel>> made;
  for (const Wanted &wanted : channels) {
    hal::ChannelDesc desc;
    desc.name = wanted.name;
    desc.members = wanted.members;
    desc.registration = wanted.registration;
    desc.uses = wanted.uses;
    hal::SharedMemory own = {peers.rank(), memory->data(), bytes};
    if (wanted.registration != hal::Registration::Nothing)
      desc.shared = {own};
    if (wanted.isReached)
      desc.reached = {own};
    auto channel = backend->createChannel(desc);
    seen.status = channel.status();
    if (!channel.isOk())
      return;
    made.push_back(std::move(*channel));
  }
}

/// Channels of a pipeline of four stages: for each stage, the pairs with its neighbours; and one
/// channel of all ranks.
std::vector<Wanted> pipelineOf(int rank) {
  std::vector<Wanted> channels;
  const hal::ChannelUse large = {hal::CollectiveKind::Send, 1 << 20};
  for (int first = 0; first < 3; ++first)
    if (rank == first || rank == first + 1)
      channels.push_back({fmt::format("pp {}", first), {first, first + 1}, {}, false, {large}});
  channels.push_back({"all", {0, 1, 2, 3}});
  return channels;
}

TEST(Connect, StagesOfAPipelineOfFour) {
  std::array<Seen, 4> seen;
  test::asRanks(4, [&](BoardPeers &peers) {
    create(peers, pipelineOf(peers.rank()), {}, seen[static_cast<size_t>(peers.rank())]);
  });
  for (Seen &each : seen)
    EXPECT_TRUE(each.status.isOk()) << each.status.message();
  EXPECT_THAT(seen[0].calls, ElementsAre("makeId pp 0", "init pp 0", "split pp 0", "warmUp pp 0",
                                         "makeId all", "init all", "warmUp all"));
  EXPECT_THAT(seen[2].calls,
              ElementsAre("init pp 1", "split pp 1", "warmUp pp 1", "makeId pp 2", "init pp 2",
                          "split pp 2", "warmUp pp 2", "init all", "warmUp all"));
}

/// The verifier refuses such an order (plan-rendezvous). Which two ranks the message names depends
/// on which of them are found to wait first.
TEST(Connect, AnOrderThatDiffersEndsTheJob) {
  std::array<Seen, 4> seen;
  test::asRanks(4, [&](BoardPeers &peers) {
    std::vector<Wanted> channels = pipelineOf(peers.rank());
    if (peers.rank() == 1)
      std::ranges::reverse(channels);
    create(peers, channels, {}, seen[static_cast<size_t>(peers.rank())]);
  });
  EXPECT_EQ(seen[1].status.code(), StatusCode::Aborted);
  EXPECT_THAT(std::string(seen[1].status.message()),
              AllOf(HasSubstr(" is at 'id of '"), HasSubstr("of 'pp ")));
}

/// If one rank of a group is refused a registration, the whole group works without it; the other
/// group is not affected.
TEST(Connect, MembersRegisterAsFarAsAllCan) {
  using enum hal::Registration;
  struct Case {
    Service refused;
    std::vector<std::string> warnings, last;
  };
  for (const Case &each :
       {Case{Service::Windows, {"no-windows"}, {"registerLocally dp"}},
        Case{Service::Buffers, {"no-windows", "no-registration"}, {"registerWindows dp"}}}) {
    std::array<Seen, 4> seen;
    test::asRanks(4, [&](BoardPeers &peers) {
      std::vector<int> members = peers.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3};
      auto refused = peers.rank() == 1 ? std::optional(each.refused) : std::nullopt;
      create(peers, {{"dp", members, each.refused == Service::Buffers ? Local : Windows}}, refused,
             seen[static_cast<size_t>(peers.rank())]);
    });
    for (const Seen &one : seen)
      EXPECT_TRUE(one.status.isOk()) << one.status.message();
    for (size_t rank : {0, 1})
      EXPECT_THAT(seen[rank].warnings, ElementsAre(each.warnings.back()));
    for (size_t rank : {2, 3})
      EXPECT_THAT(seen[rank].warnings, IsEmpty());
    EXPECT_EQ(std::ranges::count(seen[0].calls, "dropLocal dp"),
              each.refused == Service::Buffers ? 1 : 0);
    EXPECT_EQ(std::ranges::count(seen[0].calls, "registerWindows dp"), 0);
    EXPECT_EQ(std::ranges::count(seen[2].calls, "registerWindows dp"),
              each.refused == Service::Windows ? 1 : 0);
  }
}

TEST(Connect, NobodyReachesMemoryThatOneCannotReach) {
  std::array<Seen, 4> seen;
  test::asRanks(4, [&](BoardPeers &peers) {
    auto refused = peers.rank() == 3 ? std::optional(Service::Peers) : std::nullopt;
    create(peers, {{"ep", {0, 1, 2, 3}, {}, true}}, refused,
           seen[static_cast<size_t>(peers.rank())]);
  });
  for (const Seen &one : seen) {
    EXPECT_TRUE(one.status.isOk()) << one.status.message();
    EXPECT_EQ(std::ranges::count(one.calls, "dropPeers ep"), 1);
  }
  EXPECT_THAT(seen[0].warnings, IsEmpty());
  EXPECT_THAT(seen[3].warnings, ElementsAre("no-peers"));
}

/// Like NCCL, the library gives windows only to members with equal amounts of memory.
TEST(Connect, WindowsNeedAsMuchMemoryOnAllMembers) {
  std::array<Seen, 2> seen;
  test::asRanks(2, [&](BoardPeers &peers) {
    create(peers, {{"dp", {0, 1}, hal::Registration::Windows}}, {},
           seen[static_cast<size_t>(peers.rank())], kBytes * (1 + peers.rank()));
  });
  for (const Seen &one : seen) {
    EXPECT_TRUE(one.status.isOk()) << one.status.message();
    EXPECT_THAT(one.warnings, ElementsAre("no-windows"));
  }
}

TEST(Connect, ARankAloneNeedsAWayToTheOthers) {
  auto backend = makeBackend({.ranks = 2, .rank = 0});
  EXPECT_FALSE(backend.isOk());
  EXPECT_FALSE(makeBackend({.ranks = 2, .rank = 2}).isOk());
}

} // namespace
} // namespace shardc::null
