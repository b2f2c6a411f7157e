// Simulates the supervisors of an elastic job and what happens to them, by seeds: ranks that die,
// hang or lose their connections, machines that vanish and return, spares, messages that come late,
// in another order or never. Time is simulated. In each world no two attempts save or work with
// each other at the same time, none has a rank that is not manned, no save and no batch is lost or
// read twice, and all ends. A thousandth of the seeds runs; all of them with SHARDC_LONG=1.
#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/launch/Elastic.h"
#include "runtime/launch/Restarts.h"
#include "test/unit/launch/SimulatedEvents.h"
#include "test/unit/support/Long.h"

namespace shardc::launch {
namespace {

constexpr double kPatience = 60;     // of a collective, and for expected places to come
constexpr double kAskSeconds = 120;  // for the leader to answer
constexpr double kAnswerSeconds = 5; // the leader answers so long after the end
constexpr int64_t kElasticEventsMax = 400'000;

/// A process for a place.
struct PlaceProcess {
  int64_t place = 0;
  int64_t attempt = -1; ///< in which it works; -1: it asks to come in, or waits
  int64_t meeting = -1; ///< to which it came; -1: none
  bool isAlive = true, isHung = false, hasHeard = false, wasToldOver = false;
  bool isConnected = false; ///< as the leader sees it
};

class ElasticWorld : SimulatedEvents {
public:
  explicit ElasticWorld(uint64_t seed) : SimulatedEvents(seed) {
    ElasticOptions options;
    for (int64_t size = 2 + below(7); size > 0; size -= 1 + below(3))
      options.sizes.push_back(size);
    options.spares = below(3);
    options.waitSeconds = kPatience;
    places_ = options.places();
    perMachine_ = 1 + below(3);
    steps_ = 5 + below(300);
    saveInterval_ = 1 + below(10);
    restartsMax_ = 1 + below(12);
    faultChance_ = below(4) == 0 ? 0 : 1.0 / static_cast<double>(5 + below(60));
    if (below(8) == 0)
      badPlace_ = below(places_); // whose rank always fails
    leader_.emplace(restartsMax_);
    elastic_.emplace(options);
    followers_.assign(static_cast<size_t>(places_), RestartFollower(true));
    processOf_.assign(static_cast<size_t>(places_), -1);
    hasSupervisor_.assign(static_cast<size_t>(places_), true);
    if (below(8) == 0)
      after(uniform(0, 400), [this] { askAll(); });
  }

  void run() {
    openMeeting({}, /*isInOrder=*/false);
    for (int64_t place = 0; place < places_; ++place)
      start(place);
    runEvents(kElasticEventsMax);
    if (!::testing::Test::HasFailure())
      check();
  }

  bool isDone() const { return isDone_; }
  int64_t faults() const { return faults_; }
  int64_t shrunk() const { return shrunk_; }
  int64_t grown() const { return grown_; }
  int64_t replaced() const { return replaced_; }
  int64_t leftOut() const { return leftOut_; }

private:
  PlaceProcess &at(int64_t id) { return processes_[static_cast<size_t>(id)]; }
  int64_t &metAt(int64_t place) { return met_[static_cast<size_t>(place)]; }
  std::string machineOf(int64_t place) const { return std::to_string(place / perMachine_); }

  // --- the leader's machine ---
  void openMeeting(const Attempt &attempt, bool isInOrder) {
    phase_ = Phase::Meets;
    met_.assign(static_cast<size_t>(places_), -1);
    ++meeting_;
    step_ = std::max<int64_t>(attempt.savedStep, 0);
    grows_ = false;
    trained_.erase(trained_.lower_bound(step_), trained_.end()); // which the save does not have
    elastic_->open(now_ + attempt.pause, attempt.savedStep, isInOrder);
    awaitCrew(meeting_);
  }

  void awaitCrew(int64_t meeting) {
    if (meeting != meeting_ || phase_ != Phase::Meets)
      return;
    if (elastic_->isHopeless(now_))
      return fault({"ranks-missing", 0, /*isFinal=*/true}, -1);
    if (std::optional<Crew> crew = elastic_->begin(now_))
      return welcome(*crew);
    after(0.1, [this, meeting] { awaitCrew(meeting); });
  }

  void welcome(const Crew &crew) {
    const std::vector<int64_t> &sizes = elastic_->options().sizes;
    ASSERT_TRUE(std::ranges::count(sizes, static_cast<int64_t>(crew.size()))) << "no listed size";
    ASSERT_EQ(crew.front(), 0);
    for (size_t rank = 0; rank < crew.size(); ++rank) {
      ASSERT_TRUE(rank == 0 || crew[rank] > crew[rank - 1]);
      ASSERT_GE(metAt(crew[rank]), 0) << "place " << crew[rank] << " is not manned";
      ASSERT_TRUE(at(metAt(crew[rank])).isConnected);
      ASSERT_FALSE(elastic_->isLeftOut(crew[rank]));
    }
    shrunk_ += crew.size() < before_.size();
    grown_ += !before_.empty() && crew.size() > before_.size();
    replaced_ += crew.size() == before_.size() && crew != before_;
    before_ = crew;
    phase_ = Phase::Works;
    workers_ = 0;
    for (int64_t place : crew)
      tell(metAt(place), Word::Welcome);
    after(kPatience, [this, meeting = meeting_, step = step_] { judgeProgress(meeting, step); });
  }

  bool isInCrew(int64_t id) const {
    const PlaceProcess &process = processes_[static_cast<size_t>(id)];
    return phase_ == Phase::Works && met_[static_cast<size_t>(process.place)] == id &&
           std::ranges::binary_search(elastic_->crew(), process.place);
  }

  void leaderHears(int64_t id) { // that a process asks to come in
    if (!at(id).isAlive || at(id).attempt >= 0 || at(id).isConnected)
      return;
    if (phase_ == Phase::Gone)
      return; // nothing answers
    if (phase_ == Phase::Ends || phase_ == Phase::Lingers)
      return tell(id, leader_->state() == RestartLeader::State::Over ? Word::Over : Word::Again);
    int64_t before = metAt(at(id).place);
    if (before >= 0 && isInCrew(before))
      return; // its connection will be seen to be gone
    if (before >= 0)
      at(before).isConnected = false; // who comes later takes its place
    metAt(at(id).place) = id;
    at(id).isConnected = true;
    at(id).meeting = meeting_;
    elastic_->came(at(id).place, machineOf(at(id).place));
  }

  /// A collective takes too long where a rank hangs or has not begun.
  void judgeProgress(int64_t meeting, int64_t step) {
    if (meeting != meeting_ || phase_ != Phase::Works)
      return;
    if (step == step_)
      return fault({"rank-stuck", step_, false}, hungRank());
    after(kPatience, [this, meeting, now = step_] { judgeProgress(meeting, now); });
  }

  int64_t hungRank() {
    const Crew &crew = elastic_->crew();
    for (size_t rank = 0; rank < crew.size(); ++rank)
      if (at(metAt(crew[rank])).isHung)
        return static_cast<int64_t>(rank);
    return -1;
  }

  void leaderLoses(int64_t id, int64_t meeting) {
    at(id).isConnected = false;
    int64_t place = at(id).place;
    if (meeting != meeting_ || metAt(place) != id)
      return;
    elastic_->left(place);
    if (!isInCrew(id)) {
      if (phase_ == Phase::Meets || phase_ == Phase::Works)
        metAt(place) = -1;
      return;
    }
    auto rank = std::ranges::find(elastic_->crew(), place) - elastic_->crew().begin();
    fault({"rank-ended", step_, false}, rank);
  }

  void fault(FaultSeen seen, int64_t rank) {
    ++faults_;
    int64_t newest = saves_.empty() ? -1 : *saves_.rbegin();
    seen.isMended = elastic_->accuse(rank, newest);
    leftOut_ += seen.isMended;
    endAttempt(leader_->faulted(seen) == RestartLeader::Verdict::Again);
    // What hangs on the leader's machine is ended from there.
    after(2, [this, own = processOf_[0]] { end(own); });
  }

  void endAttempt(bool isAgain) {
    phase_ = isAgain ? Phase::Ends : Phase::Lingers;
    for (int64_t id : met_)
      if (id >= 0)
        tell(id, isAgain ? Word::Again : Word::Over);
    if (isAgain)
      return after(0.1, [this] { awaitEnd(); });
    after(kAnswerSeconds, [this] { phase_ = Phase::Gone; });
  }

  /// Where all ranks of the leader's machine have ended.
  void awaitEnd() {
    if (phase_ != Phase::Ends)
      return;
    if (int64_t own = processOf_[0]; own >= 0 && at(own).isAlive)
      return after(0.1, [this] { awaitEnd(); });
    int64_t newest = saves_.empty() ? -1 : *saves_.rbegin();
    bool isInOrder = leader_->isInOrder();
    Attempt attempt = leader_->ended(now_, newest);
    ASSERT_EQ(attempt.savedStep, newest);
    ASSERT_LE(attempt.restarts, restartsMax_);
    savesAtRestart_ = saves_;
    openMeeting(attempt, isInOrder);
    after(0.1, [this] { awaitStart(); });
  }

  void awaitStart() {
    if (leader_->startsNow(now_))
      return start(0);
    if (leader_->state() == RestartLeader::State::Pauses && !isAsked_)
      return after(0.3, [this] { awaitStart(); });
    leader_->faulted({"asked", 0, true}); // asked to end
    endAttempt(/*isAgain=*/false);
  }

  // --- the network ---
  enum class Word { Welcome, Again, Over };
  void tell(int64_t id, Word word) {
    int64_t meeting = meeting_, attempt = leader_->attempt().number;
    double late = delay();
    bool isBroken = happens(0.005); // the connection breaks instead
    after(late, [this, id, word, attempt, meeting, isBroken] {
      if (at(id).meeting >= 0 && at(id).meeting != meeting)
        return; // by a connection that it gave up
      if (isBroken)
        breakConnection(id, meeting);
      else
        hear(id, word, attempt);
    });
  }
  void breakConnection(int64_t id, int64_t meeting) {
    leaderLoses(id, meeting);
    end(id); // it starts again and asks
  }

  // --- a place's process ---
  void start(int64_t place) {
    auto id = static_cast<int64_t>(processes_.size());
    processes_.push_back({.place = place});
    int64_t before = processOf_[static_cast<size_t>(place)];
    ASSERT_TRUE(before < 0 || !at(before).isAlive) << "two of one place";
    processOf_[static_cast<size_t>(place)] = id;
    ask(id, now_);
  }

  void ask(int64_t id, double since) {
    after(delay(), [this, id] { leaderHears(id); });
    after(0.5 + uniform(0, 1), [this, id, since] {
      PlaceProcess &process = at(id);
      if (!process.isAlive || process.attempt >= 0)
        return;
      if (process.isConnected) // it waits for the word to begin, as long as the leader lives
        return phase_ == Phase::Gone ? giveUp(id) : ask(id, now_);
      if (now_ - since < kAskSeconds)
        return ask(id, since);
      giveUp(id); // nobody answers, which it says
    });
  }
  void giveUp(int64_t id) {
    at(id).wasToldOver = true;
    end(id);
  }

  void hear(int64_t id, Word word, int64_t attempt) {
    PlaceProcess &process = at(id);
    if (!process.isAlive || process.isHung)
      return;
    process.hasHeard = true;
    if (word == Word::Welcome)
      return work(id, attempt);
    process.wasToldOver = word == Word::Over;
    after(uniform(0, 3), [this, id] { end(id); });
  }

  void work(int64_t id, int64_t attempt) {
    if (attempt != leader_->attempt().number || phase_ != Phase::Works)
      return; // the word to end is on its way
    for (size_t other = 0; other < processes_.size(); ++other) {
      const PlaceProcess &process = processes_[other];
      if (!process.isAlive || process.attempt < 0 || process.attempt == attempt)
        continue;
      // What is left of a place that another one has replaced has no part in anything.
      ASSERT_NE(process.place, 0) << "two attempts can save at the same time";
      ASSERT_NE(metAt(process.place), static_cast<int64_t>(other))
          << "attempts " << process.attempt << " and " << attempt << " work at the same time";
    }
    at(id).attempt = attempt;
    if (++workers_ == static_cast<int64_t>(elastic_->crew().size()))
      after(uniform(0.1, 2), [this, meeting = meeting_] { step(meeting); });
  }

  /// All ranks together, in collectives.
  void step(int64_t meeting) {
    if (meeting != meeting_ || phase_ != Phase::Works)
      return;
    for (int64_t place : elastic_->crew())
      if (!at(metAt(place)).isAlive || at(metAt(place)).isHung)
        return; // the others wait
    if (badPlace_ >= 0 && std::ranges::binary_search(elastic_->crew(), badPlace_) && happens(0.5))
      return end(metAt(badPlace_));
    ASSERT_TRUE(trained_.insert(step_).second) << "the batch of step " << step_ << " is read twice";
    ++step_;
    ASSERT_EQ(std::ssize(trained_), step_) << "a batch is lost";
    if (!grows_ && elastic_->growsTo() > 0) // rank 0 hears of it
      after(delay(), [this, meeting] { grows_ = grows_ || meeting == meeting_; });
    bool isDue = step_ % saveInterval_ == 0;
    if (isDue && grows_ && step_ < steps_)
      return endInOrder();
    if (isDue)
      after(uniform(0, 5), [this, id = metAt(0), step = step_] { commit(id, step); });
    if (step_ >= steps_)
      return finish();
    if (happens(faultChance_))
      strike();
    if (happens(faultChance_ / 4)) // two at once
      strike();
    after(uniform(0.1, 2), [this, meeting] { this->step(meeting); });
  }

  void commit(int64_t id, int64_t step) {
    if (!at(id).isAlive || at(id).isHung)
      return;
    ASSERT_NE(phase_, Phase::Meets) << "a save of an attempt that is over";
    if (!happens(0.05)) // else the disk is full
      saves_.insert(step);
  }

  /// All ranks have saved and wait for the word to end.
  void endInOrder() {
    commit(metAt(0), step_);
    if (leader_->resizes())
      endAttempt(/*isAgain=*/true);
    else
      finish();
  }

  void finish() {
    isDone_ = true;
    phase_ = Phase::Lingers;
    for (int64_t place : elastic_->crew()) {
      at(metAt(place)).wasToldOver = true;
      after(uniform(0, 6), [this, id = metAt(place)] { end(id); });
    }
    for (int64_t id : met_)
      if (id >= 0 && at(id).attempt < 0)
        tell(id, Word::Over);
    after(kAnswerSeconds, [this] { phase_ = Phase::Gone; });
  }

  void strike() {
    const Crew &crew = elastic_->crew();
    int64_t place = crew[static_cast<size_t>(below(static_cast<int64_t>(crew.size())))];
    int64_t id = metAt(place), kind = below(8);
    if (kind <= 1)
      return end(id);
    if (kind == 2) {
      at(id).isHung = true;
      // Whoever stops it kills it later: its supervisor, or another process of its machine.
      return after(uniform(kPatience, 2 * kPatience), [this, id] { end(id); });
    }
    if (kind == 3)
      return breakConnection(id, meeting_);
    vanish(place / perMachine_);
  }

  /// A machine without the leader is lost, and most come back.
  void vanish(int64_t machine) {
    if (machine == 0)
      return;
    for (int64_t place = machine * perMachine_; place < (machine + 1) * perMachine_; ++place)
      if (place < places_) {
        hasSupervisor_[static_cast<size_t>(place)] = false;
        end(processOf_[static_cast<size_t>(place)]);
      }
    if (happens(0.7))
      after(uniform(0, 200), [this, machine] { comeBack(machine); });
  }
  void comeBack(int64_t machine) {
    for (int64_t place = machine * perMachine_; place < (machine + 1) * perMachine_; ++place)
      if (auto i = static_cast<size_t>(place); place < places_ && !hasSupervisor_[i]) {
        hasSupervisor_[i] = true;
        followers_[i] = RestartFollower(true);
        if (isAsked_)
          followers_[i].asked();
        start(place);
      }
  }

  void end(int64_t id) {
    if (id < 0 || !at(id).isAlive)
      return;
    PlaceProcess &process = at(id);
    process.isAlive = false;
    if (process.isConnected)
      after(delay(), [this, id, meeting = meeting_] { leaderLoses(id, meeting); });
    auto place = static_cast<size_t>(process.place);
    if (place == 0 || !hasSupervisor_[place])
      return;
    if (followers_[place].rankEnded({process.wasToldOver, process.hasHeard}, now_))
      awaitFollower(process.place);
  }

  void awaitFollower(int64_t place) {
    after(0.3, [this, place] {
      auto i = static_cast<size_t>(place);
      if (!hasSupervisor_[i] || !followers_[i].isPausing())
        return;
      if (followers_[i].startsNow(now_))
        start(place);
      else
        awaitFollower(place);
    });
  }

  void askAll() {
    isAsked_ = true;
    leader_->asked();
    for (RestartFollower &follower : followers_)
      follower.asked();
    if (phase_ == Phase::Meets && leader_->state() == RestartLeader::State::Runs)
      fault({"stopped", 0, true}, -1);
    else if (phase_ == Phase::Works)
      finish(); // after this step
  }

  void check() {
    ASSERT_TRUE(isDone_ || leader_->state() == RestartLeader::State::Over)
        << "neither done nor over";
    for (const PlaceProcess &process : processes_)
      ASSERT_FALSE(process.isAlive) << "place " << process.place << " is left";
    for (size_t place = 0; place < followers_.size(); ++place)
      ASSERT_FALSE(hasSupervisor_[place] && followers_[place].isPausing());
    for (int64_t step : savesAtRestart_)
      ASSERT_TRUE(saves_.contains(step));
    ASSERT_LE(leader_->attempt().restarts, restartsMax_);
  }

  enum class Phase { Meets, Works, Ends, Lingers, Gone };

  int64_t places_, perMachine_, steps_, saveInterval_, restartsMax_, badPlace_ = -1;
  double faultChance_;
  std::optional<RestartLeader> leader_;
  std::optional<ElasticLeader> elastic_;
  std::vector<RestartFollower> followers_;
  std::vector<bool> hasSupervisor_;
  std::vector<PlaceProcess> processes_;
  std::vector<int64_t> processOf_, met_; ///< by place: index in processes_, or -1
  Crew before_;                          ///< of the attempt before
  Phase phase_ = Phase::Meets;
  int64_t meeting_ = 0, step_ = 0, workers_ = 0;
  int64_t faults_ = 0, shrunk_ = 0, grown_ = 0, replaced_ = 0, leftOut_ = 0;
  std::set<int64_t> saves_, savesAtRestart_, trained_;
  bool isDone_ = false, isAsked_ = false, grows_ = false;
};

TEST(ElasticSimulation, EndsWellOrWithAReason) {
  int64_t seeds = test::isLong() ? 100'000 : 100;
  int64_t done = 0, faults = 0, shrunk = 0, grown = 0, replaced = 0, leftOut = 0;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    ElasticWorld world(static_cast<uint64_t>(seed));
    world.run();
    if (::testing::Test::HasFailure())
      return;
    done += world.isDone();
    faults += world.faults();
    shrunk += world.shrunk();
    grown += world.grown();
    replaced += world.replaced();
    leftOut += world.leftOut();
  }
  std::printf(
      "%ld seeds: %ld jobs were done; %ld faults; %ld attempts with fewer ranks than before, "
      "%ld with more, %ld with other places; %ld places left out\n",
      seeds, done, faults, shrunk, grown, replaced, leftOut);
  EXPECT_GT(done, seeds / 4);
  EXPECT_GT(shrunk, seeds / 20);
  EXPECT_GT(grown, seeds / 20);
  EXPECT_GT(replaced, seeds / 100);
  EXPECT_GT(leftOut, 0);
  EXPECT_LT(done, seeds);
}

} // namespace
} // namespace shardc::launch
