// Decisions of rank 0's supervisor: who is admitted, which failure was first, who counts as stuck.
// The test sets the clock.
#include <set>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/RendezvousServer.h"

namespace shardc::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The body of a rank's part in an exchange of all ranks.
std::string gather(const std::string &key, const std::string &bytes) {
  return packed(GatherPart{key, hal::Peers::Fold::Parts, {}, bytes});
}

class RendezvousServerTest : public ::testing::Test {
protected:
  void open(int64_t ranks) {
    Socket listener = std::move(*listenOn("127.0.0.1", 0));
    port = portOf(listener);
    RendezvousOptions options;
    options.worldSize = ranks;
    options.planHash = 7;
    options.secret = kSecret;
    options.job = "j";
    options.where = "here";
    options.timeoutSeconds = 60;
    options.joinSeconds = 30;
    options.explainStall = [this](std::span<const RankProgress> all, int silent) {
      explained.assign(all.begin(), all.end());
      return fmt::format("{} ranks, {} silent", all.size(), silent);
    };
    options.describe = [](const RankProgress &last) {
      return last.words.empty() ? "" : fmt::format("in 'micro: op {}'", last.words[0]);
    };
    options.stageOf = stageOf;
    if (elastic) {
      elastic->open(0, -1, /*isInOrder=*/false);
      options.elastic = &*elastic;
      options.begins = [this](const Crew &crew) { began = crew; };
      options.judge = [this](const Downfall &fall) {
        falls.push_back(fall.isInOrder);
        return Aftermath{.startsAgain = true, .last = {}};
      };
    }
    options.noteLate = [this](const LateRank &each, int64_t, const Hello &) {
      late.push_back(each);
    };
    options.emit = [this](const Report &report) {
      (report.severity == Severity::Error ? said : warned).push_back(report.text);
      ids.insert(report.id);
    };
    server.emplace(std::move(listener), std::move(options));
  }
  static constexpr Key kSecret = {5};
  Wire connect() { return Wire(std::move(*connectTo("127.0.0.1", port, 10))); }
  Hello helloOf(int64_t rank, int64_t ranks) {
    Hello hello;
    hello.rank = rank;
    hello.worldSize = ranks;
    hello.planHash = 7;
    hello.job = "j";
    hello.pid = 1'000'000'000 + rank;
    hello.machine = "elsewhere";
    hello.host = "h";
    return hello;
  }
  /// The next message, after some turns of the server.
  std::optional<Message> read(Wire &wire) {
    for (int turn = 0; turn < 100; ++turn) {
      turnOnce();
      static_cast<void>(wire.receive());
      if (std::optional<Message> message = wire.next();
          message && message->kind != MessageKind::Alive)
        return message;
      ::usleep(1000);
    }
    return std::nullopt;
  }
  /// Sends a hello on a new connection, as a rank does. The server has not read it yet.
  Wire greet(const Hello &hello, const Key &secret = kSecret) {
    Wire wire = connect();
    std::optional<Message> message = read(wire);
    EXPECT_TRUE(message && message->kind == MessageKind::Challenge);
    Challenge challenge = *unpacked<Challenge>(message->body);
    send(wire, MessageKind::Hello, hello.pack(secret, challenge.nonce));
    WireKeys keys(secret, challenge.nonce, hello.nonce);
    wire.seal(keys.toServer, keys.toRank);
    return wire;
  }
  void join(int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      wires.push_back(greet(helloOf(rank, ranks)));
      std::optional<Message> admitted = read(wires.back());
      ASSERT_TRUE(admitted && admitted->kind == MessageKind::Admitted);
    }
    step(0);
  }
  void send(Wire &wire, MessageKind kind, std::string_view body) {
    wire.queue(kind, body);
    ASSERT_TRUE(wire.flush());
  }
  /// Lets all sent messages arrive, then lets time pass in pieces too short to count as a pause.
  void step(double seconds) {
    for (int turn = 0; turn < 3; ++turn) {
      ::usleep(2000);
      turnOnce();
    }
    for (; seconds > 0; seconds -= 0.5) {
      now += std::min(seconds, 0.5);
      turnOnce();
    }
  }
  void turnOnce() {
    std::vector<pollfd> entries;
    server->addTo(entries);
    ::poll(entries.data(), entries.size(), 0);
    server->step(now, entries);
  }
  void progress(size_t rank, uint32_t word, uint64_t steps = 0) {
    send(wires[rank], MessageKind::Progress, packed(RankProgress{steps, {word}}));
  }
  /// Lets time pass. Every `every` seconds, these ranks send progress.
  void live(std::initializer_list<size_t> ranks, int seconds, int every) {
    for (int second = 0; second < seconds; second += every) {
      for (size_t rank : ranks)
        progress(rank, 0);
      step(every);
    }
  }
  void fail(size_t rank, StatusCode code, const std::string &text) {
    send(wires[rank], MessageKind::Fail, packed(Failure::of(Status(code, text), 3)));
  }

  int port = 0;
  double now = 100;
  std::optional<RendezvousServer> server;
  std::vector<Wire> wires;
  std::vector<std::string> said, warned;
  std::vector<LateRank> late;
  std::set<std::string_view> ids; ///< of all reports
  std::vector<RankProgress> explained;
  std::optional<ElasticLeader> elastic; ///< passed to servers that are opened
  Crew began;
  std::vector<bool> falls; ///< for each question of the server: whether the end was in order
  std::function<std::string(int64_t rank)> stageOf; ///< option of servers that are opened
};

TEST_F(RendezvousServerTest, LetsAllInAndEndsWithThem) {
  open(3);
  join(3);
  int speakers = 0;
  for (Wire &wire : wires) {
    auto message = read(wire);
    ASSERT_TRUE(message && message->kind == MessageKind::Welcome);
    EXPECT_EQ(unpacked<Welcome>(message->body)->localSize, 3);
    speakers += unpacked<Welcome>(message->body)->isSpeaker;
  }
  EXPECT_EQ(speakers, 1);
  for (Wire &wire : wires)
    send(wire, MessageKind::Bye, Packer().number(0).take());
  step(0);
  EXPECT_TRUE(server->isOver());
  EXPECT_EQ(server->exitStatus(), 0);
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(RendezvousServerTest, PassesExchangesOn) {
  open(2);
  join(2);
  send(wires[1], MessageKind::Gather, gather("x", "b"));
  step(0);
  send(wires[0], MessageKind::Gather, gather("x", "a"));
  static_cast<void>(read(wires[1])); // the welcome
  auto message = read(wires[1]);
  ASSERT_TRUE(message && message->kind == MessageKind::Gathered);
  Unpacker in(message->body);
  EXPECT_EQ(in.text(), "a");
  EXPECT_EQ(in.text(), "b");
}

TEST_F(RendezvousServerTest, RanksInDifferentExchangesEndTheJob) {
  open(2);
  join(2);
  send(wires[1], MessageKind::Gather, gather("x", ""));
  step(0);
  send(wires[0], MessageKind::Gather, gather("y", ""));
  step(1);
  step(1);
  EXPECT_THAT(said, ElementsAre(HasSubstr("it is at ")));
  EXPECT_THAT(ids, ElementsAre("ranks-at-different-exchanges"));
}

TEST_F(RendezvousServerTest, TellsOfRanksThatAreMissing) {
  open(6);
  for (int64_t rank : {0, 2})
    wires.push_back(greet(helloOf(rank, 6)));
  step(31);
  EXPECT_THAT(said, ElementsAre("rank 1, 3-5 of 6 did not reach here within 30 s"));
  EXPECT_THAT(ids, ElementsAre("ranks-missing"));
  EXPECT_EQ(server->exitStatus(), 1);
}

/// An elastic job of size 3 or 2, with one spare.
class ElasticServerTest : public RendezvousServerTest {
protected:
  ElasticServerTest() {
    elastic.emplace(ElasticOptions{.sizes = {3, 2}, .spares = 1, .waitSeconds = 20});
    open(4);
  }
  /// Ranks of these places connect, in this order, which is the order of `wires`.
  void come(std::initializer_list<int64_t> places) {
    for (int64_t place : places) {
      wires.push_back(greet(helloOf(place, 4)));
      auto admitted = read(wires.back());
      ASSERT_TRUE(admitted && admitted->kind == MessageKind::Admitted);
    }
    step(0);
  }
  std::optional<Welcome> welcomeOf(size_t wire) {
    auto message = read(wires[wire]);
    return message && message->kind == MessageKind::Welcome ? unpacked<Welcome>(message->body)
                                                            : std::nullopt;
  }
};

TEST_F(ElasticServerTest, GivesRanksToPlaces) {
  come({3, 0, 1});
  EXPECT_FALSE(server->isRunning()) << "place 2 may come";
  step(1.5);
  EXPECT_TRUE(server->isRunning());
  EXPECT_THAT(began, ElementsAre(0, 1, 3));
  for (auto [wire, rank] : {std::pair(0, 2), {1, 0}, {2, 1}}) {
    std::optional<Welcome> welcome = welcomeOf(static_cast<size_t>(wire));
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->rank, rank);
    EXPECT_EQ(welcome->worldSize, 3);
  }
}

TEST_F(ElasticServerTest, BeginsWithFewerWhereOthersDoNotCome) {
  come({0, 2});
  for (int second = 0; second < 19; ++second) {
    progress(0, 0);
    progress(1, 0);
    step(1);
  }
  EXPECT_FALSE(server->isRunning());
  step(1.5);
  EXPECT_TRUE(server->isRunning());
  EXPECT_THAT(began, ElementsAre(0, 2));
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(ElasticServerTest, TellsOfPlacesThatAreMissing) {
  come({1, 2});
  for (int second = 0; second < 21; ++second) {
    progress(0, 0);
    step(1);
  }
  EXPECT_EQ(falls, std::vector{false});
}

TEST_F(ElasticServerTest, TellsRankZeroOfPlacesThatWait) {
  come({0, 1});
  step(21);
  ASSERT_THAT(began, ElementsAre(0, 1));
  ASSERT_TRUE(welcomeOf(0));
  come({2});
  auto growth = [this] {
    auto message = read(wires[0]);
    return message && message->kind == MessageKind::Grow
               ? static_cast<int64_t>(Unpacker(message->body).number())
               : -1;
  };
  EXPECT_EQ(growth(), 3);
  wires[2].close();
  step(0);
  EXPECT_EQ(growth(), 0);
  EXPECT_THAT(falls, IsEmpty()) << "it had no rank";
}

TEST_F(ElasticServerTest, EndsInOrderWhenRankZeroSaysThatAllRest) {
  come({0, 1, 2});
  ASSERT_TRUE(server->isRunning());
  come({3});
  send(wires[0], MessageKind::Rest, "");
  step(0);
  EXPECT_EQ(falls, std::vector{true});
  EXPECT_EQ(server->exitStatus(), kAgainStatus);
  auto message = read(wires[3]);
  ASSERT_TRUE(message && message->kind == MessageKind::Abort) << "spares start again too";
  EXPECT_EQ(unpacked<Abort>(message->body)->exitStatus, kAgainStatus);
}

TEST_F(ElasticServerTest, TakesTheLaterOfTwoProcessesOfAPlace) {
  come({0, 1, 1});
  step(0);
  EXPECT_THAT(said, IsEmpty());
  come({2});
  EXPECT_TRUE(server->isRunning());
  EXPECT_TRUE(welcomeOf(2));
  Hello other = helloOf(3, 4);
  other.planHash = 8;
  Wire wire = greet(other);
  auto refused = read(wire);
  ASSERT_TRUE(refused && refused->kind == MessageKind::Refused) << "another plan while it runs";
  step(3);
  EXPECT_THAT(falls, IsEmpty());
}

TEST_F(ElasticServerTest, TellsSparesThatAllIsDone) {
  come({0, 1, 2, 3});
  for (size_t wire = 0; wire < 3; ++wire)
    send(wires[wire], MessageKind::Bye, Packer().number(0).take());
  step(0);
  EXPECT_FALSE(server->isOver()) << "the spare does not know it";
  auto message = read(wires[3]);
  ASSERT_TRUE(message && message->kind == MessageKind::Abort);
  EXPECT_EQ(unpacked<Abort>(message->body)->exitStatus, 0);
  wires[3].close();
  step(0);
  EXPECT_TRUE(server->isOver());
  EXPECT_EQ(server->exitStatus(), 0);
}

TEST_F(RendezvousServerTest, AnotherJobOfTheSameSecretIsRefused) {
  open(1);
  Hello hello = helloOf(0, 1);
  hello.job = "another";
  Wire other = greet(hello);
  auto message = read(other);
  ASSERT_TRUE(message && message->kind == MessageKind::Refused);
  EXPECT_EQ(unpacked<Refusal>(message->body)->reason, Refusal::AnotherJob);
  join(1);
  EXPECT_TRUE(server->isRunning());
  EXPECT_THAT(said, IsEmpty());
  EXPECT_THAT(warned, IsEmpty());
}

/// Senders without the secret change nothing: invalid frames, frames without a code or with the
/// code of another secret, and a hello to another challenge, before and while the job runs.
TEST_F(RendezvousServerTest, StrangersChangeNothingAndAreToldOfOnce) {
  open(2);
  for (bool isRunning : {false, true}) {
    if (isRunning)
      join(2);
    Wire garbage = connect();
    ASSERT_EQ(::write(garbage.fd(), "GET / HTTP/1.1\r\n", 16), 16);
    Wire end = connect(); // a frame that would end the job, from a sender without the secret
    const uint32_t frame[4] = {0x43445253, static_cast<uint32_t>(MessageKind::Abort), 0, 0};
    ASSERT_EQ(::write(end.fd(), frame, sizeof frame), 16);
    Wire wrong = greet(helloOf(1, 2), Key{6});
    auto message = read(wrong);
    ASSERT_TRUE(message && message->kind == MessageKind::Refused);
    EXPECT_EQ(unpacked<Refusal>(message->body)->reason, Refusal::AnotherSecret);
    Hello misfit = helloOf(9, 77); // its sender does not know the secret
    misfit.version = 99;
    Wire other = greet(misfit, Key{6});
    Wire replayed = connect();
    send(replayed, MessageKind::Hello, helloOf(1, 2).pack(kSecret, Nonce{}));
    step(12);
    EXPECT_FALSE(server->hasFailed());
  }
  EXPECT_TRUE(server->isRunning());
  EXPECT_THAT(said, IsEmpty());
  EXPECT_EQ(warned.size(), 1u);
  EXPECT_THAT(ids, ElementsAre("connection-refused"));
}

/// The connection may be a probe of the port, or a rank of a second launch that ends. It is not
/// reported, because nobody has to act on it.
TEST_F(RendezvousServerTest, AConnectionThatEndsBeforeItSpeaksIsNotReported) {
  open(2);
  for (bool isRunning : {false, true}) {
    if (isRunning)
      join(2);
    Wire probe = connect();
    step(0);
    ASSERT_TRUE(probe.receive()); // the challenge
    probe.close();
    Wire hurried = connect(); // closed with unread data, which resets the connection
    step(0);
    hurried.close();
    step(1);
  }
  EXPECT_FALSE(server->hasFailed());
  EXPECT_THAT(said, IsEmpty());
  EXPECT_THAT(warned, IsEmpty());
}

TEST_F(RendezvousServerTest, AFloodOfSilentConnectionsKeepsNobodyOut) {
  open(2);
  std::vector<Wire> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(connect());
    turnOnce();
  }
  std::vector<pollfd> entries;
  server->addTo(entries);
  EXPECT_LE(entries.size(), 200u) << "connections that have said nothing are bounded";
  step(1); // each 128 connections of a burst keep others out for at most a quarter of a second
  join(2);
  EXPECT_TRUE(server->isRunning());
  step(12);
  entries.clear();
  server->addTo(entries);
  EXPECT_EQ(entries.size(), 3u) << "and do not stay";
  EXPECT_THAT(said, IsEmpty());
  EXPECT_EQ(warned.size(), 1u);
}

/// A restarted rank, or a rank of a second launch with equal options, is refused.
TEST_F(RendezvousServerTest, WhoComesToARunningJobIsRefused) {
  open(2);
  join(2);
  Hello misfit = helloOf(1, 5);
  for (const Hello &hello : {helloOf(1, 2), misfit}) {
    Wire late = greet(hello);
    auto message = read(late);
    ASSERT_TRUE(message && message->kind == MessageKind::Refused);
    EXPECT_EQ(unpacked<Refusal>(message->body)->reason, Refusal::Complete);
  }
  step(5);
  EXPECT_THAT(said, IsEmpty());
  EXPECT_FALSE(server->hasFailed());
}

TEST_F(RendezvousServerTest, AMessageOfARankThatIsSentAgainIsItsOwnFailure) {
  open(2);
  join(2);
  wires[1].queue(MessageKind::Progress, packed(RankProgress{1, {2}}));
  ASSERT_TRUE(wires[1].flush());
  Wire forged(Socket(::dup(wires[1].fd()))); // counts its messages from the first again
  forged.seal(Key{}, Key{});
  send(forged, MessageKind::Bye, Packer().number(0).take());
  step(3);
  EXPECT_THAT(said, ElementsAre(HasSubstr("rank 1 (process 1000000001 on h)")));
  EXPECT_THAT(ids, ElementsAre("rank-ended"));
}

TEST_F(RendezvousServerTest, ShowsThatItLives) {
  open(1);
  join(1);
  step(3);
  ASSERT_TRUE(wires[0].receive());
  int alive = 0;
  while (std::optional<Message> message = wires[0].next()) {
    alive += message->kind == MessageKind::Alive;
    static_cast<void>(wires[0].receive());
  }
  EXPECT_GE(alive, 2);
}

TEST_F(RendezvousServerTest, WhatAMemberHasToldIsNotToldAgain) {
  open(2);
  join(2);
  send(wires[1], MessageKind::Fail, packed(Failure{.isReported = true}));
  step(1);
  EXPECT_TRUE(server->hasFailed());
  EXPECT_THAT(said, IsEmpty());
  EXPECT_EQ(server->exitStatus(), 3);
}

TEST_F(RendezvousServerTest, OtherVersionsAndProblemsEndTheJob) {
  for (int what = 0; what < 2; ++what) {
    said.clear();
    open(2);
    Hello hello = helloOf(1, 2);
    hello.version = what == 0 ? 99 : kProtocolVersion;
    if (what == 1)
      hello.problems = {makeReport(report::RecipeRefusedHere, "no data here")};
    Wire wire = greet(hello);
    step(1);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_THAT(said[0], HasSubstr(what == 0 ? "protocol 99" : "rank 1: no data here"));
    EXPECT_TRUE(ids.contains(what == 0 ? "other-version" : "recipe-refused-here"));
  }
}

TEST_F(RendezvousServerTest, TellsTheCauseAndNotItsEffects) {
  open(3);
  join(3);
  fail(0, StatusCode::Aborted, "rank 2 does not answer");
  step(0.2);
  fail(2, StatusCode::Io, "the disk is gone");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 2: the disk is gone"));
  EXPECT_EQ(server->exitStatus(), 3);
}

TEST_F(RendezvousServerTest, TellsWhereAnErrorOfNcclStruck) {
  for (StatusCode code : {StatusCode::Aborted, StatusCode::Internal}) {
    said.clear();
    wires.clear();
    open(2);
    join(2);
    for (size_t rank : {1, 0}) { // both report it; the first report is printed, with the place
      progress(rank, static_cast<uint32_t>(5 + rank));
      fail(rank, code, "channel 'dp reduce': unhandled system error");
    }
    step(3);
    EXPECT_THAT(said, ElementsAre("rank 0: channel 'dp reduce': unhandled system error; it was in "
                                  "'micro: op 5'"));
    EXPECT_EQ(server->exitStatus(), 3);
  }
}

TEST_F(RendezvousServerTest, OtherFailuresSayThemselvesWhatTheyAreAbout) {
  open(2);
  join(2);
  progress(1, 5);
  fail(1, StatusCode::Io, "the disk is gone");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 1: the disk is gone"));
}

TEST_F(RendezvousServerTest, TellsOneOfEqualFailures) {
  open(3);
  join(3);
  for (size_t rank : {2, 1, 0})
    fail(rank, StatusCode::Io, "'data' has changed");
  step(1);
  EXPECT_THAT(said, ElementsAre("'data' has changed"));
}

TEST_F(RendezvousServerTest, TellsWhereOthersWaitedForARankThatIsGone) {
  open(3);
  join(3);
  wires[1].close();
  send(wires[2], MessageKind::Lost, Packer().number(1).text("micro: all_gather").take());
  server->rankEnded(1'000'000'001, "was ended by signal 9 (Killed)");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 1 (process 1000000001 on h) was ended by signal 9 (Killed); "
                                "rank 2 waited for it in 'micro: all_gather'"));
}

/// The place is in the microbatch of the lost rank's stage, which differs from the waiting rank's.
TEST_F(RendezvousServerTest, TellsWhichStageARankIsAndWhereItWas) {
  stageOf = [](int64_t rank) { return fmt::format(", stage {} of 3", rank + 1); };
  open(3);
  join(3);
  wires[1].close();
  send(wires[2], MessageKind::Lost, Packer().number(1).text("forward: recv").take());
  server->rankEnded(1'000'000'001, "was ended by signal 9 (Killed)");
  step(3);
  EXPECT_THAT(said,
              ElementsAre("rank 1 (process 1000000001 on h, stage 2 of 3) was ended by signal 9 "
                          "(Killed); rank 2, stage 3 of 3, waited for it in 'forward: recv'"));
}

/// A rank that fails closes its connections before it reports why, and on a loaded machine this may
/// take long.
TEST_F(RendezvousServerTest, WaitsForTheWordOfARankThatOthersHaveLost) {
  open(3);
  join(3);
  std::string lost = Packer().number(1).text("connecting channels").take();
  send(wires[0], MessageKind::Lost, lost);
  send(wires[2], MessageKind::Lost, lost);
  live({0, 1, 2}, 10, 1);
  EXPECT_THAT(said, IsEmpty());
  fail(1, StatusCode::Exhausted, "cannot accept a connection: Too many open files");
  step(1);
  EXPECT_THAT(said, ElementsAre("rank 1: cannot accept a connection: Too many open files"));
}

TEST_F(RendezvousServerTest, WaitsForThatWordNotForEver) {
  open(3);
  join(3);
  send(wires[0], MessageKind::Lost, Packer().number(1).text("connecting channels").take());
  live({0, 1, 2}, 23, 1);
  EXPECT_THAT(said, ElementsAre("rank 1 did not answer in 'connecting channels'"));
  EXPECT_THAT(ids, ElementsAre("rank-lost"));
}

TEST_F(RendezvousServerTest, EndsWhatStaysInACollective) {
  open(2);
  join(2);
  progress(0, ProgressWord::inside(4));
  step(59);
  progress(1, ProgressWord::after(3));
  progress(0, ProgressWord::inside(4));
  step(0.5);
  EXPECT_THAT(said, IsEmpty());
  step(2);
  EXPECT_THAT(said, ElementsAre("2 ranks, -1 silent; the timeout of 1 min "
                                "(dist.distributed_timeout_minutes) has expired"));
}

/// No rank reports that it waits for the silent rank, since libraries create connections before any
/// collective.
TEST_F(RendezvousServerTest, EndsARankThatGivesNoSignOfLife) {
  open(3);
  join(3);
  live({0, 2}, 58, 2);
  EXPECT_THAT(said, IsEmpty());
  for (size_t rank : {0, 2})
    progress(rank, 0);
  step(2.5);
  EXPECT_THAT(said, ElementsAre("3 ranks, 1 silent; the timeout of 1 min "
                                "(dist.distributed_timeout_minutes) has expired"));
  EXPECT_EQ(server->exitStatus(), 3);
}

TEST_F(RendezvousServerTest, NamesTheExchangeThatASilentRankDoesNotComeTo) {
  open(2);
  join(2);
  live({0}, 50, 2);
  send(wires[0], MessageKind::Gather, gather("writing a save", ""));
  step(11);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 1 did not reach 'writing a save', where rank 0 waits"));
  EXPECT_THAT(ids, ElementsAre("rank-stuck"));
}

TEST_F(RendezvousServerTest, WhatMissesAnExchangeMayWaitForAnotherRank) {
  open(3);
  join(3);
  send(wires[0], MessageKind::Gather, gather("telling warnings", ""));
  for (int second = 0; second < 62; second += 2) { // rank 2 makes no progress
    progress(0, 0);
    progress(1, ProgressWord::making(4));
    progress(2, 0);
    step(2);
  }
  EXPECT_THAT(said, ElementsAre("3 ranks, -1 silent; the timeout of 1 min "
                                "(dist.distributed_timeout_minutes) has expired"));
  EXPECT_THAT(explained[0].words, ElementsAre(ProgressWord::kExchanging));
  EXPECT_THAT(explained[1].words, ElementsAre(ProgressWord::making(4)));
}

TEST_F(RendezvousServerTest, EndsWhatStaysInTheMakingOfAChannel) {
  open(2);
  join(2);
  for (int second = 0; second < 62; second += 2) { // both show life, but one never begins
    progress(0, ProgressWord::making(4));
    progress(1, 0);
    step(2);
  }
  EXPECT_THAT(said, ElementsAre("2 ranks, -1 silent; the timeout of 1 min "
                                "(dist.distributed_timeout_minutes) has expired"));
}

TEST_F(RendezvousServerTest, AStepThatEndsBeginsAnew) {
  open(1);
  join(1);
  for (uint64_t steps = 0; steps < 5; ++steps) {
    progress(0, ProgressWord::inside(4), steps);
    step(40);
  }
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(RendezvousServerTest, OwnPausesDoNotCount) {
  open(1);
  join(1);
  progress(0, ProgressWord::inside(4));
  step(1);
  now += 10'000; // this process was stopped
  turnOnce();
  step(1);
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(RendezvousServerTest, EndsWhatStaysInAnExchange) {
  open(3);
  join(3);
  send(wires[1], MessageKind::Gather, gather("writing a save", ""));
  step(62);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 0, 2 did not reach 'writing a save', where rank 1 waits"));
}

TEST_F(RendezvousServerTest, NamesARankThatIsLateStepAfterStep) {
  open(3);
  join(3);
  for (uint64_t second = 1; second <= 130; ++second) {
    for (size_t rank : {0, 1})
      progress(rank, ProgressWord::inside(4), second);
    progress(2, ProgressWord::after(3), second);
    step(1);
  }
  EXPECT_TRUE(said.empty());
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_TRUE(ids.count("rank-late"));
  EXPECT_THAT(warned[0], AllOf(HasSubstr("rank 2 is slow in every step: it waited for others in "
                                         "0 % of the last 60 s"),
                               HasSubstr("it runs on h")));
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].rank, 2);
}

} // namespace
} // namespace shardc::launch
