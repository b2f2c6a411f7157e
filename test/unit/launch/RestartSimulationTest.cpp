// Simulates the supervisors of a job and what happens to them, by seeds: ranks that die, hang or
// lose their connections, machines that vanish, messages that come late, in another order or never.
// Time is simulated. In each world no two attempts work at the same time, no save is lost, and all
// ends. A thousandth of the seeds runs; all of them with SHARDC_LONG=1.
#include <cstdio>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/launch/Restarts.h"
#include "test/unit/launch/SimulatedEvents.h"
#include "test/unit/support/Long.h"

namespace shardc::launch {
namespace {

constexpr double kTimeout = 60;   // of a collective, and for all ranks to come
constexpr double kAskAgain = 120; // for the leader to answer
constexpr double kLinger = 5;     // the leader answers so long after the end
constexpr int64_t kEventsMax = 200'000;

/// Whoever is there: a process of a rank.
struct RestartProcess {
  int64_t rank = 0;
  int64_t attempt = -1; ///< in which it works; -1: it asks to come in
  int64_t meeting = -1; ///< to which it came; -1: none
  bool isAlive = true, isHung = false, hasHeard = false, wasToldOver = false;
  bool isConnected = false; ///< as the leader sees it
};

class World : SimulatedEvents {
public:
  explicit World(uint64_t seed) : SimulatedEvents(seed) {
    ranks_ = 2 + below(5);
    steps_ = 5 + below(30);
    saveInterval_ = 1 + below(10);
    restartsMax_ = below(6);
    faultChance_ = below(3) == 0 ? 0 : 1.0 / static_cast<double>(5 + below(60));
    if (below(6) == 0)
      badStep_ = below(steps_);
    leader_.emplace(restartsMax_);
    for (int64_t rank = 0; rank < ranks_; ++rank)
      followers_.emplace_back(restartsMax_ > 0);
    processOf_.resize(static_cast<size_t>(ranks_), -1);
    hasSupervisor_.assign(static_cast<size_t>(ranks_), true);
    if (below(8) == 0)
      after(uniform(0, 400), [this] { askAll(); });
  }

  void run() {
    openMeeting({});
    for (int64_t rank = 0; rank < ranks_; ++rank)
      start(rank);
    runEvents(kEventsMax);
    if (!::testing::Test::HasFailure())
      check();
  }

  bool isDone() const { return isDone_; }
  int64_t restarts() const { return leader_->attempt().number; }

private:
  RestartProcess &at(size_t id) { return processes_[id]; }

  // --- the leader's machine ---
  void openMeeting(const Attempt &attempt) {
    phase_ = Phase::Meets;
    met_.assign(static_cast<size_t>(ranks_), -1);
    ++meeting_;
    step_ = std::max<int64_t>(attempt.savedStep, 0);
    after(kTimeout + 2 + attempt.pause, [this, meeting = meeting_] {
      if (meeting == meeting_ && phase_ == Phase::Meets)
        fault({"ranks-missing", 0, /*isFinal=*/true});
    });
  }

  void leaderHears(size_t id) { // that a process asks to come in
    // The leader's challenge is answered by who asks at that time.
    if (!at(id).isAlive || at(id).attempt >= 0 || at(id).isConnected)
      return;
    if (phase_ == Phase::Gone)
      return; // nothing answers
    if (phase_ == Phase::Ends || phase_ == Phase::Lingers)
      return tell(id, leader_->state() == RestartLeader::State::Over ? Word::Over : Word::Again);
    if (phase_ == Phase::Works || met_[static_cast<size_t>(at(id).rank)] >= 0)
      return tell(id, Word::Later);
    met_[static_cast<size_t>(at(id).rank)] = static_cast<int64_t>(id);
    at(id).isConnected = true;
    at(id).meeting = meeting_;
    for (int64_t known : met_)
      if (known < 0)
        return;
    phase_ = Phase::Works;
    for (int64_t known : met_)
      tell(static_cast<size_t>(known), Word::Welcome);
    workers_ = 0;
    after(kTimeout, [this, meeting = meeting_, step = step_] { judgeProgress(meeting, step); });
  }

  /// A collective takes too long where a rank hangs or has not begun.
  void judgeProgress(int64_t meeting, int64_t step) {
    if (meeting != meeting_ || phase_ != Phase::Works)
      return;
    if (step == step_)
      return fault({"rank-stuck", step_, false});
    after(kTimeout, [this, meeting, now = step_] { judgeProgress(meeting, now); });
  }

  void leaderLoses(size_t id, int64_t meeting) {
    at(id).isConnected = false;
    if (meeting != meeting_ || met_[static_cast<size_t>(at(id).rank)] != static_cast<int64_t>(id))
      return;
    if (phase_ == Phase::Meets || phase_ == Phase::Works)
      fault({"rank-ended", step_, false});
  }

  void fault(const FaultSeen &seen) {
    int64_t before = leader_->attempt().number;
    RestartLeader::Verdict verdict = leader_->faulted(seen);
    bool isAgain = verdict == RestartLeader::Verdict::Again;
    ASSERT_EQ(leader_->attempt().number, before);
    phase_ = isAgain ? Phase::Ends : Phase::Lingers;
    for (int64_t id : met_)
      if (id >= 0)
        tell(static_cast<size_t>(id), isAgain ? Word::Again : Word::Over);
    if (!isAgain)
      after(kLinger, [this] { phase_ = Phase::Gone; });
    else
      after(0.1, [this] { awaitEnd(); });
    // What hangs on the leader's machine is ended from there.
    after(2, [this, own = processOf_[0]] { kill(own); });
  }

  /// Where all ranks of the leader's machine have ended.
  void awaitEnd() {
    if (phase_ != Phase::Ends)
      return;
    if (int64_t own = processOf_[0]; own >= 0 && at(static_cast<size_t>(own)).isAlive)
      return after(0.1, [this] { awaitEnd(); });
    int64_t newest = saves_.empty() ? -1 : *saves_.rbegin();
    Attempt attempt = leader_->ended(now_, newest);
    ASSERT_EQ(attempt.savedStep, newest);
    ASSERT_LE(attempt.number, restartsMax_);
    savesAtRestart_ = saves_;
    openMeeting(attempt);
    after(0.1, [this] { awaitStart(); });
  }

  void awaitStart() {
    if (leader_->startsNow(now_))
      return start(0);
    if (leader_->state() == RestartLeader::State::Pauses && !isAsked_)
      return after(0.3, [this] { awaitStart(); });
    phase_ = Phase::Lingers; // asked to end
    leader_->faulted({"asked", 0, true});
    after(kLinger, [this] { phase_ = Phase::Gone; });
    for (int64_t id : met_)
      if (id >= 0)
        tell(static_cast<size_t>(id), Word::Over);
  }

  // --- the network ---
  enum class Word { Welcome, Again, Over, Later };
  void tell(size_t id, Word word) {
    int64_t meeting = meeting_, attempt = leader_->attempt().number;
    double late = delay();
    if (happens(0.005)) // the connection breaks instead
      return after(late, [this, id, meeting] { breakConnection(id, meeting); });
    after(late, [this, id, word, attempt, meeting] {
      if (at(id).meeting < 0 || at(id).meeting == meeting) // not by a connection that it gave up
        hear(id, word, attempt);
    });
  }
  void breakConnection(size_t id, int64_t meeting) {
    leaderLoses(id, meeting);
    end(id); // it starts again and asks
  }

  // --- a rank's process ---
  void start(int64_t rank) {
    auto id = processes_.size();
    processes_.push_back({.rank = rank});
    int64_t before = processOf_[static_cast<size_t>(rank)];
    ASSERT_TRUE(before < 0 || !at(static_cast<size_t>(before)).isAlive) << "two of one rank";
    processOf_[static_cast<size_t>(rank)] = static_cast<int64_t>(id);
    ask(id, now_);
  }

  void ask(size_t id, double since) {
    after(delay(), [this, id] { leaderHears(id); });
    after(0.5 + uniform(0, 1), [this, id, since] {
      RestartProcess &process = at(id);
      if (!process.isAlive || process.attempt >= 0 || process.isConnected)
        return;
      if (now_ - since < kAskAgain)
        return ask(id, since);
      process.wasToldOver = true; // nobody answers, which it says
      end(id);
    });
  }

  void hear(size_t id, Word word, int64_t attempt) {
    RestartProcess &process = at(id);
    if (!process.isAlive || process.isHung)
      return;
    process.hasHeard = true;
    if (word == Word::Later)
      return;
    if (word == Word::Welcome)
      return work(id, attempt);
    process.wasToldOver = word == Word::Over;
    after(uniform(0, 3), [this, id] { end(id); });
  }

  void work(size_t id, int64_t attempt) {
    if (attempt != leader_->attempt().number || phase_ != Phase::Works)
      return; // the word to end is on its way
    for (const RestartProcess &other : processes_)
      ASSERT_FALSE(other.isAlive && other.attempt >= 0 && other.attempt != attempt)
          << "attempts " << other.attempt << " and " << attempt << " work at the same time";
    at(id).attempt = attempt;
    if (++workers_ == ranks_)
      after(uniform(0.1, 2), [this, meeting = meeting_] { step(meeting); });
  }

  /// All ranks together, in collectives.
  void step(int64_t meeting) {
    if (meeting != meeting_ || phase_ != Phase::Works)
      return;
    for (int64_t id : met_)
      if (!at(static_cast<size_t>(id)).isAlive || at(static_cast<size_t>(id)).isHung)
        return; // the others wait
    if (step_ == badStep_)
      return fault({"not-finite", step_, false});
    ++step_;
    if (step_ % saveInterval_ == 0)
      after(uniform(0, 5), [this, id = met_[0], step = step_] { commit(id, step); });
    if (step_ >= steps_)
      return finish();
    if (happens(faultChance_))
      strike();
    if (happens(faultChance_ / 4)) // two at once
      strike();
    after(uniform(0.1, 2), [this, meeting] { this->step(meeting); });
  }

  void commit(int64_t id, int64_t step) {
    if (!at(static_cast<size_t>(id)).isAlive || at(static_cast<size_t>(id)).isHung)
      return;
    ASSERT_TRUE(phase_ == Phase::Works || phase_ == Phase::Ends || phase_ == Phase::Lingers ||
                isDone_)
        << "a save of an attempt that is over";
    saves_.insert(step);
  }

  void finish() {
    isDone_ = true;
    phase_ = Phase::Lingers;
    for (int64_t id : met_) {
      at(static_cast<size_t>(id)).wasToldOver = true;
      after(uniform(0, 6), [this, id] { end(static_cast<size_t>(id)); });
    }
    after(kLinger, [this] { phase_ = Phase::Gone; });
  }

  void strike() {
    int64_t id = met_[static_cast<size_t>(below(ranks_))];
    int64_t kind = below(5);
    if (kind <= 1)
      return kill(id);
    if (kind == 2) {
      at(static_cast<size_t>(id)).isHung = true;
      // Whoever stops it kills it later: its supervisor, or another process of its machine.
      return after(uniform(kTimeout, 2 * kTimeout), [this, id] { kill(id); });
    }
    if (kind == 3)
      return breakConnection(static_cast<size_t>(id), meeting_);
    if (int64_t rank = at(static_cast<size_t>(id)).rank; rank > 0) { // its machine vanishes
      hasSupervisor_[static_cast<size_t>(rank)] = false;
      kill(id);
    }
  }

  void kill(int64_t id) {
    if (id >= 0)
      end(static_cast<size_t>(id));
  }

  void end(size_t id) {
    RestartProcess &process = at(id);
    if (!process.isAlive)
      return;
    process.isAlive = false;
    if (process.isConnected)
      after(delay(), [this, id, meeting = meeting_] { leaderLoses(id, meeting); });
    auto rank = static_cast<size_t>(process.rank);
    if (rank == 0 || !hasSupervisor_[rank])
      return;
    if (followers_[rank].rankEnded({process.wasToldOver, process.hasHeard}, now_))
      awaitFollower(rank);
  }

  void awaitFollower(size_t rank) {
    after(0.3, [this, rank] {
      if (followers_[rank].startsNow(now_))
        start(static_cast<int64_t>(rank));
      else
        awaitFollower(rank);
    });
  }

  void askAll() {
    isAsked_ = true;
    leader_->asked();
    for (RestartFollower &follower : followers_)
      follower.asked();
    if (phase_ == Phase::Meets && leader_->state() == RestartLeader::State::Runs)
      fault({"stopped", 0, true});
    else if (phase_ == Phase::Works)
      finish(); // after this step
  }

  void check() {
    ASSERT_TRUE(isDone_ || leader_->state() == RestartLeader::State::Over)
        << "neither done nor over";
    for (const RestartProcess &process : processes_)
      ASSERT_FALSE(process.isAlive) << "rank " << process.rank << " is left";
    for (RestartFollower &follower : followers_)
      ASSERT_FALSE(follower.isPausing());
    for (int64_t step : savesAtRestart_)
      ASSERT_TRUE(saves_.contains(step));
    ASSERT_LE(restarts(), restartsMax_);
  }

  enum class Phase { Meets, Works, Ends, Lingers, Gone };

  int64_t ranks_, steps_, saveInterval_, restartsMax_, badStep_ = -1;
  double faultChance_;
  std::optional<RestartLeader> leader_;
  std::vector<RestartFollower> followers_;
  std::vector<bool> hasSupervisor_;
  std::vector<RestartProcess> processes_;
  std::vector<int64_t> processOf_, met_; ///< by rank: index in processes_, or -1
  Phase phase_ = Phase::Meets;
  int64_t meeting_ = 0, step_ = 0, workers_ = 0;
  std::set<int64_t> saves_, savesAtRestart_;
  bool isDone_ = false, isAsked_ = false;
};

TEST(RestartSimulation, EndsWellOrWithAReason) {
  int64_t seeds = test::isLong() ? 100'000 : 100;
  int64_t done = 0, doneAgain = 0, restarts = 0;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    World world(static_cast<uint64_t>(seed));
    world.run();
    if (::testing::Test::HasFailure())
      return;
    done += world.isDone();
    doneAgain += world.isDone() && world.restarts() > 0;
    restarts += world.restarts();
  }
  std::printf("%ld seeds: %ld jobs were done, %ld of them after restarts; %ld restarts\n", seeds,
              done, doneAgain, restarts);
  EXPECT_GT(done, seeds / 4);
  EXPECT_GT(doneAgain, seeds / 20);
  EXPECT_LT(done, seeds);
}

} // namespace
} // namespace shardc::launch
