// Ranks behind relays meet, exchange and end like ranks with their own connections, and rank 0's
// supervisor has few connections. The test sets the clock.
#include <algorithm>
#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/base/Published.h"
#include "runtime/launch/RendezvousServer.h"
#include "test/unit/launch/SocketRank.h"

namespace shardc::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fold = hal::Peers::Fold;

constexpr Key kJobSecret = {6};

class RelayTest : public ::testing::Test {
protected:
  /// Rank 0's machine has as many ranks as the others.
  void open(int64_t machines, int64_t ranksOfEach) {
    perMachine = ranksOfEach;
    worldSize = machines * ranksOfEach;
    Socket listener = std::move(*listenOn("127.0.0.1", 0));
    port = portOf(listener);
    RendezvousOptions options;
    options.worldSize = worldSize;
    options.planHash = 7;
    options.secret = kJobSecret;
    options.job = "j";
    options.where = "here";
    options.timeoutSeconds = 60;
    options.joinSeconds = 30;
    options.explainStall = [this](std::span<const RankProgress> all, int) {
      explained.assign(all.begin(), all.end());
      return std::string("stalled");
    };
    options.emit = [this](const Report &report) { said.push_back(report.text); };
    server.emplace(std::move(listener), std::move(options));
    relays.emplace_back(); // rank 0's machine has none
    for (int64_t machine = 1; machine < machines; ++machine)
      relays.push_back(std::make_unique<Relay>(relayOptions(machine)));
    for (int64_t rank = 0; rank < worldSize; ++rank)
      ranks.push_back(std::make_unique<SocketRank>(rank, worldSize, kJobSecret,
                                                   fmt::format("m{}", rank / perMachine)));
  }
  RelayOptions relayOptions(int64_t machine) {
    RelayOptions options;
    options.address = "127.0.0.1";
    options.port = port;
    options.rank = machine * perMachine;
    options.worldSize = worldSize;
    options.localSize = perMachine;
    options.secret = kJobSecret;
    options.job = "j";
    options.relayName = nameOf(machine);
    options.joinSeconds = 30;
    options.emit = [this](const Report &report) { said.push_back(report.text); };
    return options;
  }
  std::string nameOf(int64_t machine) const {
    return fmt::format("shardc-test-{}-{}-{}", ::getpid(), port, machine);
  }

  void turnOnce() {
    for (bool ofRelays : {false, true}) {
      for (std::unique_ptr<Relay> &relay : relays) {
        if (ofRelays != (relay != nullptr))
          continue;
        std::vector<pollfd> entries;
        relay ? relay->addTo(entries) : server->addTo(entries);
        ::poll(entries.data(), entries.size(), 0);
        relay ? relay->step(now, entries) : server->step(now, entries);
      }
    }
    for (std::unique_ptr<SocketRank> &rank : ranks)
      rank->step();
  }
  bool await(const std::function<bool()> &condition) {
    for (int turn = 0; turn < 2000; ++turn) {
      if (condition())
        return true;
      turnOnce();
      now += 0.01;
      ::usleep(200);
    }
    return condition();
  }
  /// Connects ranks to the relay of their machine.
  void join(std::set<int64_t> butNot = {}) {
    ASSERT_TRUE(await([this] {
      return std::ranges::all_of(relays,
                                 [](const auto &relay) { return !relay || relay->port() > 0; });
    }));
    for (std::unique_ptr<SocketRank> &rank : ranks)
      if (!butNot.contains(rank->rank())) {
        const std::unique_ptr<Relay> &relay =
            relays[static_cast<size_t>(rank->rank() / perMachine)];
        ASSERT_TRUE(rank->connect("127.0.0.1", relay ? relay->port() : port).isOk());
      }
  }
  void joinAll() {
    join();
    ASSERT_TRUE(await([this] {
      return std::ranges::all_of(ranks,
                                 [](const auto &rank) { return rank->welcome().has_value(); });
    }));
  }
  /// Lets `seconds` pass, and calls `show`, which makes ranks send something, every half a second.
  void live(double seconds, const std::function<void()> &show) {
    for (; seconds > 0; seconds -= 0.5) {
      show();
      for (int turn = 0; turn < 3; ++turn) {
        ::usleep(500);
        turnOnce();
      }
      now += 0.5;
    }
  }

  int port = 0;
  int64_t worldSize = 0, perMachine = 0;
  double now = 100;
  std::optional<RendezvousServer> server;
  std::vector<std::unique_ptr<Relay>> relays; ///< by machine
  std::vector<std::unique_ptr<SocketRank>> ranks;
  std::vector<std::string> said;
  std::vector<RankProgress> explained;
};

TEST_F(RelayTest, RanksMeetAndEnd) {
  open(3, 2);
  joinAll();
  int speakers = 0;
  for (const std::unique_ptr<SocketRank> &rank : ranks) {
    EXPECT_EQ(rank->welcome()->rank, rank->rank());
    EXPECT_EQ(rank->welcome()->localSize, 2);
    speakers += rank->welcome()->isSpeaker;
  }
  EXPECT_EQ(speakers, 1);
  for (std::unique_ptr<SocketRank> &rank : ranks)
    rank->send(MessageKind::Bye, Packer().number(0).take());
  EXPECT_TRUE(await([this] { return server->isOver(); }));
  for (std::unique_ptr<SocketRank> &rank : ranks)
    rank->close();
  EXPECT_TRUE(await([this] {
    return std::ranges::all_of(relays, [](const auto &relay) { return !relay || relay->isOver(); });
  }));
  EXPECT_EQ(server->exitStatus(), 0);
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(RelayTest, RanksFindTheRelayOfTheirMachine) {
  open(2, 2);
  EXPECT_EQ(*findPublished(nameOf(1), 0.1), "") << "it is not there yet";
  joinAll();
  std::string found;
  std::thread finder([&] { found = *findPublished(nameOf(1), 5); });
  EXPECT_TRUE(await([&] { return !found.empty(); }));
  finder.join();
  EXPECT_EQ(found, fmt::format("127.0.0.1:{}", relays[1]->port()));
}

std::vector<std::string> numbers(const std::vector<std::vector<int64_t>> &parts) {
  std::vector<std::string> bytes;
  for (const std::vector<int64_t> &part : parts)
    bytes.emplace_back(reinterpret_cast<const char *>(part.data()), part.size() * sizeof part[0]);
  return bytes;
}

/// Exchanges of all ranks, of ranks of several machines, and of one machine's ranks.
TEST_F(RelayTest, FoldsExchanges) {
  open(3, 2);
  joinAll();
  struct Case {
    std::vector<int> members;
    Fold fold;
    std::vector<std::string> given, wanted;
  };
  const Case cases[] = {
      {{}, Fold::Parts, {"a", "", "c", "d", "e", "f"}, {"a", "", "c", "d", "e", "f"}},
      {{}, Fold::First, {"", "", "", "d", "", "f"}, {"d"}},
      {{}, Fold::First, {"", "", "", "", "", ""}, {""}},
      {{5, 0, 2}, Fold::Parts, {"x", "y", "z"}, {"x", "y", "z"}},
      {{5, 3, 2}, Fold::First, {"", "y", "z"}, {"y"}},
      {{3, 2}, Fold::Parts, {"p", "q"}, {"p", "q"}},
      {{2, 3}, Fold::First, {"", "q"}, {"q"}},
      {{}, Fold::Kinds, {"a", "b", "a", "a", "", "b"}, {"a", "0,2-3", "b", "1,5", "", "4"}},
      {{}, Fold::Repeated, {"u", "v", "w", "x", "v", "z"}, {"v", "1,4"}},
      {{5, 0, 2}, Fold::Kinds, {"x", "y", "x"}, {"x", "0,2", "y", "1"}},
      {{},
       Fold::Most,
       numbers({{1, 9}, {2, 8}, {3, 7}, {-4, 6}, {-5, 70}, {0, -6}}),
       numbers({{3, 70}})},
      {{2, 3}, Fold::Most, numbers({{-2}, {-1}}), numbers({{-1}})},
  };
  int number = 0;
  for (const Case &each : cases) {
    std::vector<int> members = each.members;
    if (members.empty())
      for (int rank = 0; rank < worldSize; ++rank)
        members.push_back(rank);
    std::string key = fmt::format("case {}", number++);
    for (size_t i = 0; i < members.size(); ++i)
      ranks[static_cast<size_t>(members[i])]->gather(key, each.members, each.given[i], each.fold);
    for (int member : members) {
      SocketRank &rank = *ranks[static_cast<size_t>(member)];
      ASSERT_TRUE(await([&] { return !rank.gathered.empty(); })) << key << " of " << member;
      EXPECT_EQ(rank.gathered.front(), each.wanted) << key;
      rank.gathered.pop_front();
    }
  }
  EXPECT_THAT(said, IsEmpty());
}

/// With more machines than one relay takes, relays connect to other relays. No relay has more
/// connections than the fan-out, its ranks, and its parent.
TEST_F(RelayTest, ATreeBoundsConnections) {
  const int64_t machines = static_cast<int64_t>(kFanOut) * 2 + 10;
  open(machines, 2);
  joinAll();
  for (const std::unique_ptr<Relay> &relay : relays)
    EXPECT_LE(relay ? relay->connections() : 0, kFanOut + 3);
  std::vector<pollfd> entries;
  server->addTo(entries);
  EXPECT_LE(entries.size(), kFanOut + 2 + 1) << "relays, ranks of its machine, and the listener";
  for (std::unique_ptr<SocketRank> &rank : ranks)
    rank->gather("all", {}, std::to_string(rank->rank()), Fold::Parts);
  SocketRank &last = *ranks.back();
  ASSERT_TRUE(await([&] { return !last.gathered.empty(); }));
  ASSERT_EQ(last.gathered.front().size(), static_cast<size_t>(worldSize));
  EXPECT_EQ(last.gathered.front().back(), std::to_string(worldSize - 1));
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(RelayTest, TellsOfARankThatEnds) {
  open(3, 2);
  joinAll();
  ranks[4]->progress(3);
  ranks[4]->close();
  ASSERT_TRUE(await([this] { return server->hasFailed(); }));
  EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("rank 4 (process 1000000004 on m2"),
                                      HasSubstr("ended without a message"))));
  EXPECT_TRUE(await([this] { return ranks[3]->aborted && ranks[5]->aborted && ranks[0]->aborted; }))
      << "all are told";
  for (std::unique_ptr<SocketRank> &rank : ranks)
    rank->close();
  EXPECT_TRUE(await([this] { return server->isOver() && relays[1]->isOver(); }));
}

TEST_F(RelayTest, PassesFailuresOn) {
  open(3, 2);
  joinAll();
  ranks[5]->send(MessageKind::Fail,
                 packed(Failure::of(Status(StatusCode::Internal, "it broke"), 3)));
  ASSERT_TRUE(await([this] { return server->hasFailed(); }));
  EXPECT_THAT(said, ElementsAre(HasSubstr("rank 5: it broke")));
}

/// If a relay ends, its machine's ranks are lost with it, and one message says so.
TEST_F(RelayTest, ARelayThatEndsTakesItsRanks) {
  open(3, 2);
  joinAll();
  relays[1]->step(now, {});
  relays.erase(relays.begin() + 1);
  ASSERT_TRUE(await([this] { return server->hasFailed(); }));
  EXPECT_THAT(said, ElementsAre(HasSubstr("rank 2 (process")));
  EXPECT_TRUE(await([this] { return ranks[5]->aborted.has_value(); }));
  EXPECT_TRUE(await([this] { return !ranks[2]->isConnected() && !ranks[3]->isConnected(); }));
}

TEST_F(RelayTest, RanksSeeThatRankZerosSupervisorHasEnded) {
  open(2, 2);
  joinAll();
  server.reset();
  relays.erase(relays.begin());
  EXPECT_TRUE(await([this] { return !ranks[2]->isConnected() && !ranks[3]->isConnected(); }));
  EXPECT_TRUE(relays[0]->isOver());
}

/// A relay also passes on which rank reports the loss, if that choice arrives together with the end
/// of the connection.
TEST_F(RelayTest, PassesOnWhatCameBeforeTheEndOfWhatIsAbove) {
  open(2, 2);
  join({0});
  ASSERT_TRUE(await([this] { return ranks[2]->isAdmitted() && ranks[3]->isAdmitted(); }));
  ASSERT_TRUE(ranks[0]->connect("127.0.0.1", port).isOk());
  for (int turn = 0; turn < 2000 && !ranks[0]->welcome(); ++turn) { // without a turn of the relay
    ranks[0]->step();
    std::vector<pollfd> entries;
    server->addTo(entries);
    ::poll(entries.data(), entries.size(), 1);
    server->step(now += 0.01, entries);
  }
  server.reset();
  relays[1]->step(now, {});
  EXPECT_TRUE(relays[1]->isOver());
  ranks[2]->step();
  ASSERT_TRUE(ranks[2]->welcome());
  EXPECT_TRUE(ranks[2]->welcome()->isSpeaker);
}

/// Otherwise the relay's ranks would look for it until their time limit.
TEST_F(RelayTest, SaysThatItHasNoDescriptors) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (int came : {-1, 0, 1}) { // ranks connected to the relay; -1: the relay itself has not joined
    relays.clear(), ranks.clear(), said.clear();
    open(2, 2);
    if (came >= 0)
      join({0, 1, 3});
    if (came > 0) {
      ASSERT_TRUE(await([this] { return ranks[2]->isAdmitted(); }));
      ASSERT_TRUE(ranks[3]->connect("127.0.0.1", relays[1]->port()).isOk());
    }
    Socket next(::dup(0));
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next.fd());
    next.close();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_TRUE(await([this] { return relays[1]->hasGivenUp(); })) << came;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(relays[1]->isOver());
    EXPECT_TRUE(await([&] { return came < 0 || server->hasFailed(); })) << came;
    EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("rank 2: its supervisor cannot"),
                                        HasSubstr("Too many open files; it needs a descriptor"))));
  }
}

/// The ranks above a relay learn which rank behind it is missing.
TEST_F(RelayTest, NamesARankThatDoesNotComeToAnExchange) {
  open(3, 2);
  joinAll();
  for (size_t rank : {0, 1, 2, 4, 5})
    ranks[rank]->gather("writing a save", {}, "", Fold::First);
  live(62, [this] {
    for (std::unique_ptr<SocketRank> &rank : ranks)
      rank->progress(0);
  });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 3 did not reach 'writing a save', where rank"));
}

TEST_F(RelayTest, FollowsProgressBehindRelays) {
  open(2, 2);
  joinAll();
  live(62, [this] {
    for (std::unique_ptr<SocketRank> &rank : ranks)
      rank->progress(rank->rank() == 3 ? ProgressWord::after(3) : ProgressWord::inside(4), 2);
  });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("stalled; the timeout of 1 min"));
  ASSERT_EQ(explained.size(), 4u);
  EXPECT_THAT(explained[3].words, ElementsAre(ProgressWord::after(3)));
  EXPECT_EQ(explained[2].steps, 2u);
}

TEST_F(RelayTest, TellsOfRanksThatAreMissingBehindRelays) {
  open(3, 2);
  join({3, 4});
  live(31, [] {});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 3, 4 of 6 did not reach here"));
}

/// Rank 0's supervisor may refuse the job before ranks of other machines have found their relay.
TEST_F(RelayTest, RanksHearThatTheJobIsOverBeforeTheyCome) {
  open(2, 2);
  server->stopAtOnce();
  ASSERT_TRUE(await([this] { return relays[1]->port() > 0 || relays[1]->isOver(); }));
  for (size_t rank : {2, 3}) {
    live(1, [] {});
    ASSERT_FALSE(relays[1]->isOver());
    ASSERT_TRUE(ranks[rank]->connect("127.0.0.1", relays[1]->port()).isOk());
    ASSERT_TRUE(await([&] { return ranks[rank]->aborted.has_value(); }));
  }
  turnOnce();
  EXPECT_TRUE(relays[1]->isOver()) << "nobody else comes";
}

/// A relay that is not admitted tells its ranks why, as rank 0's supervisor would.
TEST_F(RelayTest, TellsRanksWhatKeepsItOut) {
  open(2, 1);
  server.reset();
  std::string found;
  std::thread finder([&] {
    while (found.empty())
      found = *findPublished(nameOf(1), 1);
  });
  relays.erase(relays.begin());
  EXPECT_TRUE(await([&] { return !found.empty(); }));
  finder.join();
  EXPECT_THAT(found, AllOf(HasSubstr(kNotYet), HasSubstr("cannot reach 127.0.0.1")));
}

/// The first supervisor of a machine that takes the name runs the relay; if it ends, another takes
/// over.
TEST_F(RelayTest, AnotherSupervisorTakesOver) {
  open(2, 1);
  turnOnce(); // the first takes the name
  Relay second(relayOptions(1));
  ASSERT_TRUE(await([&] {
    second.step(now, {});
    return relays[1]->port() > 0;
  }));
  EXPECT_EQ(second.port(), 0);
  relays[1].reset();
  relays.pop_back();
  EXPECT_TRUE(await([&] {
    std::vector<pollfd> entries;
    second.addTo(entries);
    ::poll(entries.data(), entries.size(), 0);
    second.step(now, entries);
    return second.port() > 0;
  }));
}

TEST_F(RelayTest, StrangersChangeNothing) {
  open(2, 2);
  joinAll();
  SocketRank stranger(2, worldSize, Key{9}, "m1");
  ASSERT_TRUE(stranger.connect("127.0.0.1", relays[1]->port()).isOk());
  EXPECT_TRUE(await([&] {
    stranger.step();
    return !stranger.isConnected();
  }));
  EXPECT_FALSE(stranger.isAdmitted());
  EXPECT_FALSE(server->hasFailed());
  EXPECT_THAT(said, ElementsAre(HasSubstr("it does not know the job's secret")));
}

} // namespace
} // namespace shardc::launch
