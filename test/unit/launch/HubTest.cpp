// How rank 0's supervisor judges: who is let in, which failure was the first, what counts as stuck.
// The clock is the test's own.
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/launch/Hub.h"

namespace shardc::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HubTest : public ::testing::Test {
protected:
  void open(int64_t ranks) {
    Socket listener = std::move(*listenOn("127.0.0.1", 0));
    port = portOf(listener);
    HubOptions options;
    options.worldSize = ranks;
    options.planHash = 7;
    options.job = "j";
    options.where = "here";
    options.timeoutSeconds = 60;
    options.joinSeconds = 30;
    options.explainStall = [this](std::span<const Snapshot> all, int silent) {
      explained.assign(all.begin(), all.end());
      return fmt::format("{} ranks, {} silent", all.size(), silent);
    };
    options.describe = [](const Snapshot &last) {
      return last.words.empty() ? "" : fmt::format("in 'micro: op {}'", last.words[0]);
    };
    options.say = [this](const std::string &text) { said.push_back(text); };
    hub.emplace(std::move(listener), std::move(options));
  }
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
  void join(int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      wires.push_back(connect());
      send(wires.back(), MessageKind::Hello, helloOf(rank, ranks).pack());
    }
    step(0);
  }
  void send(Wire &wire, MessageKind kind, std::string_view body) {
    wire.queue(kind, body);
    ASSERT_TRUE(wire.flush());
  }
  /// Lets all that was sent arrive, then passes time, in pieces that are no pause.
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
    hub->addTo(entries);
    ::poll(entries.data(), entries.size(), 0);
    hub->step(now, entries);
  }
  void progress(size_t rank, uint32_t word, uint64_t steps = 0) {
    send(wires[rank], MessageKind::Progress, Snapshot{steps, {word}}.pack());
  }
  void fail(size_t rank, StatusCode code, const std::string &text) {
    send(wires[rank], MessageKind::Fail, Failure{code, 3, text}.pack());
  }

  int port = 0;
  double now = 100;
  std::optional<Hub> hub;
  std::vector<Wire> wires;
  std::vector<std::string> said;
  std::vector<Snapshot> explained;
};

TEST_F(HubTest, LetsAllInAndEndsWithThem) {
  open(3);
  join(3);
  for (Wire &wire : wires) {
    ASSERT_TRUE(wire.receive());
    auto message = wire.next();
    ASSERT_TRUE(message && message->kind == MessageKind::Welcome);
    EXPECT_EQ(Welcome::unpack(message->body)->localSize, 3);
  }
  for (Wire &wire : wires)
    send(wire, MessageKind::Bye, Packer().number(0).take());
  step(0);
  EXPECT_TRUE(hub->isOver());
  EXPECT_EQ(hub->exitStatus(), 0);
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(HubTest, PassesExchangesOn) {
  open(2);
  join(2);
  send(wires[1], MessageKind::Gather, Packer().text("x").text("b").take());
  step(0);
  send(wires[0], MessageKind::Gather, Packer().text("x").text("a").take());
  step(0);
  ASSERT_TRUE(wires[1].receive());
  static_cast<void>(wires[1].next()); // the welcome
  static_cast<void>(wires[1].receive());
  auto message = wires[1].next();
  ASSERT_TRUE(message && message->kind == MessageKind::Gathered);
  Unpacker in(message->body);
  EXPECT_EQ(in.text(), "a");
  EXPECT_EQ(in.text(), "b");
}

TEST_F(HubTest, TellsOfRanksThatAreMissing) {
  open(6);
  for (int64_t rank : {0, 2}) {
    wires.push_back(connect());
    send(wires.back(), MessageKind::Hello, helloOf(rank, 6).pack());
  }
  step(31);
  EXPECT_THAT(said, ElementsAre("rank 1, 3-5 of 6 did not come to here within 30 s"));
  EXPECT_EQ(hub->exitStatus(), 1);
}

TEST_F(HubTest, StrangersChangeNothing) {
  open(1);
  Wire stranger = connect();
  ASSERT_GT(::write(stranger.fd(), "GET / HTTP/1.1\r\n", 16), 0);
  Wire other = connect();
  Hello hello = helloOf(0, 1);
  hello.job = "another";
  send(other, MessageKind::Hello, hello.pack());
  join(1);
  EXPECT_TRUE(hub->isRunning());
  EXPECT_THAT(said, IsEmpty());
  ASSERT_TRUE(other.receive());
  auto message = other.next();
  ASSERT_TRUE(message && message->kind == MessageKind::Abort);
  auto abort = Abort::unpack(message->body);
  EXPECT_FALSE(abort->isTold);
  EXPECT_THAT(abort->text, HasSubstr("here is used by another job"));
}

TEST_F(HubTest, OtherVersionsAndProblemsEndTheJob) {
  for (int what = 0; what < 2; ++what) {
    said.clear();
    open(2);
    Hello hello = helloOf(1, 2);
    hello.version = what == 0 ? 99 : kProtocolVersion;
    hello.problem = what == 1 ? "no data here" : "";
    Wire wire = connect();
    send(wire, MessageKind::Hello, hello.pack());
    step(1);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_THAT(said[0], HasSubstr(what == 0 ? "protocol 99" : "rank 1: no data here"));
  }
}

TEST_F(HubTest, TellsTheCauseAndNotItsEffects) {
  open(3);
  join(3);
  fail(0, StatusCode::Aborted, "rank 2 does not answer");
  step(0.2);
  fail(2, StatusCode::Io, "the disk is gone");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 2: the disk is gone"));
  EXPECT_EQ(hub->exitStatus(), 3);
}

TEST_F(HubTest, TellsWhereAnErrorOfNcclStruck) {
  for (StatusCode code : {StatusCode::Aborted, StatusCode::Internal}) {
    said.clear();
    wires.clear();
    open(2);
    join(2);
    for (size_t rank : {1, 0}) { // both see it: the first is told, with its own place
      progress(rank, static_cast<uint32_t>(5 + rank));
      fail(rank, code, "channel 'dp reduce': unhandled system error");
    }
    step(3);
    EXPECT_THAT(said, ElementsAre("rank 0: channel 'dp reduce': unhandled system error; it was in "
                                  "'micro: op 5'"));
    EXPECT_EQ(hub->exitStatus(), 3);
  }
}

TEST_F(HubTest, OtherFailuresSayThemselvesWhatTheyAreAbout) {
  open(2);
  join(2);
  progress(1, 5);
  fail(1, StatusCode::Io, "the disk is gone");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 1: the disk is gone"));
}

TEST_F(HubTest, TellsOneOfEqualFailures) {
  open(3);
  join(3);
  for (size_t rank : {2, 1, 0})
    fail(rank, StatusCode::Io, "'data' has changed");
  step(1);
  EXPECT_THAT(said, ElementsAre("'data' has changed"));
}

TEST_F(HubTest, TellsWhereOthersWaitedForARankThatIsGone) {
  open(3);
  join(3);
  wires[1].close();
  send(wires[2], MessageKind::Lost, Packer().number(1).text("micro: all_gather").take());
  hub->rankEnded(1'000'000'001, "was ended by signal 9 (Killed)");
  step(3);
  EXPECT_THAT(said, ElementsAre("rank 1 (process 1000000001 on h) was ended by signal 9 (Killed); "
                                "rank 2 waited for it in 'micro: all_gather'"));
}

TEST_F(HubTest, EndsWhatStaysInACollective) {
  open(2);
  join(2);
  progress(0, ProgressWord::inside(4));
  step(59);
  progress(1, ProgressWord::after(3));
  progress(0, ProgressWord::inside(4));
  step(0.5);
  EXPECT_THAT(said, IsEmpty());
  step(2);
  EXPECT_THAT(said, ElementsAre("2 ranks, -1 silent; 1 min, dist.distributed_timeout_minutes, are "
                                "over"));
}

/// Nobody is seen to wait for it: libraries make connections before any collective.
TEST_F(HubTest, EndsARankThatGivesNoSignOfLife) {
  open(3);
  join(3);
  for (int second = 0; second < 58; second += 2) {
    for (size_t rank : {0, 2})
      progress(rank, 0);
    step(2);
  }
  EXPECT_THAT(said, IsEmpty());
  for (size_t rank : {0, 2})
    progress(rank, 0);
  step(2.5);
  EXPECT_THAT(said, ElementsAre("3 ranks, 1 silent; 1 min, dist.distributed_timeout_minutes, are "
                                "over"));
  EXPECT_EQ(hub->exitStatus(), 3);
}

TEST_F(HubTest, NamesTheExchangeThatASilentRankDoesNotComeTo) {
  open(2);
  join(2);
  for (int second = 0; second < 50; second += 2) {
    progress(0, 0);
    step(2);
  }
  send(wires[0], MessageKind::Gather, Packer().text("writing a save").text("").take());
  step(11);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 1 did not come to 'writing a save', where rank 0 waits"));
}

TEST_F(HubTest, WhatMissesAnExchangeMayWaitForAnotherRank) {
  open(3);
  join(3);
  send(wires[0], MessageKind::Gather, Packer().text("telling warnings").text("").take());
  for (int second = 0; second < 62; second += 2) { // rank 2 does nothing
    progress(0, 0);
    progress(1, ProgressWord::making(4));
    progress(2, 0);
    step(2);
  }
  EXPECT_THAT(said, ElementsAre("3 ranks, -1 silent; 1 min, dist.distributed_timeout_minutes, are "
                                "over"));
  EXPECT_THAT(explained[0].words, ElementsAre(ProgressWord::kExchanging));
  EXPECT_THAT(explained[1].words, ElementsAre(ProgressWord::making(4)));
}

TEST_F(HubTest, EndsWhatStaysInTheMakingOfAChannel) {
  open(2);
  join(2);
  for (int second = 0; second < 62; second += 2) { // both live: one never begins
    progress(0, ProgressWord::making(4));
    progress(1, 0);
    step(2);
  }
  EXPECT_THAT(said, ElementsAre("2 ranks, -1 silent; 1 min, dist.distributed_timeout_minutes, are "
                                "over"));
}

TEST_F(HubTest, AStepThatEndsBeginsAnew) {
  open(1);
  join(1);
  for (uint64_t steps = 0; steps < 5; ++steps) {
    progress(0, ProgressWord::inside(4), steps);
    step(40);
  }
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(HubTest, OwnPausesDoNotCount) {
  open(1);
  join(1);
  progress(0, ProgressWord::inside(4));
  step(1);
  now += 10'000; // this process was stopped
  turnOnce();
  step(1);
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(HubTest, EndsWhatStaysInAnExchange) {
  open(3);
  join(3);
  send(wires[1], MessageKind::Gather, Packer().text("writing a save").text("").take());
  step(62);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("rank 0, 2 did not come to 'writing a save', where rank 1 waits"));
}

} // namespace
} // namespace shardc::launch
