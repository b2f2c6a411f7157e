#include "test/unit/launchsim/SimWorld.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/ExitStatus.h"
#include "runtime/launch/RankReports.h"
#include "test/unit/launchsim/FakeNetwork.h"
#include "test/unit/launchsim/HeapCount.h"

namespace shardc::launch {
namespace {

constexpr double kSecondsMax = 20'000;
constexpr double kAskAgainSeconds = 120;

FakeNetwork &network() { return FakeNetwork::only(); }

} // namespace

SimWorld::SimWorld(uint64_t seed) {
  network().reset(seed);
  job_.seed = seed;
  job_.random.seed(seed * 2 + 1);
  machines_ = 1 + job_.below(6);
  job_.perMachine = 1 + job_.below(3);
  job_.places = machines_ * job_.perMachine;
  job_.steps = 1 + job_.below(12);
  job_.saveInterval = 1 + job_.below(4);
  fanOut_ = static_cast<size_t>(1 + job_.below(3));
  int64_t kind = job_.below(3); // 0: without restarts, 1: with restarts, 2: elastic
  restartsMax_ = kind == 0 ? 0 : 1 + job_.below(4);
  job_.startsAgain = kind > 0;
  if (kind == 2) {
    ElasticOptions options;
    options.spares = job_.below(std::min<int64_t>(3, job_.places));
    for (int64_t size = job_.places - options.spares; size > 0; size -= 1 + job_.below(3))
      options.sizes.push_back(size);
    options.waitSeconds = job_.timeout;
    elastic_.emplace(options);
    job_.isElastic = true;
  }
  leader_.emplace(restartsMax_);
  if (job_.below(3) > 0)
    strikeChance_ = 1.0 / static_cast<double>(20 + job_.below(400));
  if (job_.below(4) == 0)
    network().faultChance = 1.0 / static_cast<double>(50 + job_.below(2000));
  if (job_.below(8) == 0)
    askAt_ = network().now + job_.uniform(40);
  begin(3);
}

SimWorld::SimWorld(int64_t ranks, int64_t perMachine) {
  network().reset(1);
  network().slowChance = 0;
  network().lateMost = 0.001;
  job_.random.seed(1);
  job_.isPlain = true;
  job_.perMachine = perMachine;
  machines_ = (ranks + perMachine - 1) / perMachine;
  job_.places = machines_ * perMachine;
  job_.steps = job_.saveInterval = 1 << 20;
  job_.timeout = 600;
  fanOut_ = kFanOut;
  leader_.emplace(0);
  begin(1);
}

void SimWorld::begin(double startSeconds) {
  forgetHeap();
  FakeNetwork::process = job_.supervisorAt(0);
  listener_ = std::move(*listenOn("127.0.0.1", 0));
  job_.port = portOf(listener_);
  for (int64_t place = 0; place < job_.places; ++place) {
    Supervisor &each = supervisors_.emplace_back();
    each.place = place;
    each.follower = RestartFollower(job_.startsAgain);
    each.startsAt = network().now + job_.uniform(startSeconds);
  }
  openServer({});
}

void SimWorld::openServer(const Attempt &attempt) {
  network().machine = 0;
  judged_ = 0;
  ++attempts_;
  job_.attempt = attempt.number;
  // These steps are not in the save.
  job_.trained.erase(job_.trained.lower_bound(std::max<int64_t>(attempt.savedStep, 0)),
                     job_.trained.end());
  RendezvousOptions options;
  options.worldSize = job_.places;
  options.planHash = 7;
  options.secret = job_.secret;
  options.job = "j";
  options.where = "here";
  options.timeoutSeconds = job_.timeout;
  options.joinSeconds = job_.timeout + 2 + attempt.pause;
  options.attempt = attempt;
  options.fanOut = fanOut_;
  options.hasFollowers = job_.startsAgain;
  options.judge = [this](const Downfall &fall) { return judge(fall); };
  if (elastic_) {
    elastic_->open(attempt.pause, attempt.savedStep, leader_->isInOrder());
    options.elastic = &*elastic_;
    options.begins = [this](const Crew &crew) {
      resized_ += !crew_.empty() && crew.size() != crew_.size();
      crew_ = crew;
    };
  }
  options.emit = [this](const Report &report) {
    if (report.severity != Severity::Error)
      return;
    said_.push_back(report.text);
    saidAt_ = network().now;
  };
  server_.emplace(Socket(network().duplicate(listener_.fd())), std::move(options));
}

Aftermath SimWorld::judge(const Downfall &fall) {
  if (++judged_ > 1)
    job_.wrong.push_back("two decisions about one start");
  if (fall.isInOrder)
    return {.startsAgain = leader_->resizes(), .last = {}};
  bool isFinal = fall.exitStatus != kFailureStatus;
  std::optional<int64_t> rank =
      fall.reports.empty() ? std::nullopt : rankNamedBy(fall.reports.front().text);
  bool isMended = !isFinal && elastic_ && rank && *rank < std::ssize(elastic_->crew()) &&
                  elastic_->accuse(*rank, job_.newestSave());
  std::string id(fall.reports.empty() ? "rank-ended" : fall.reports.front().id);
  auto verdict = leader_->faulted({id, std::max(fall.step, job_.newestSave()), isFinal, isMended});
  return {.startsAgain = verdict == RestartLeader::Verdict::Again, .last = {}};
}

void SimWorld::stepRank(Supervisor &each) {
  if (!each.rank)
    return;
  FakeNetwork::process = job_.rankAt(each.place);
  each.rank->step(network().now);
  FakeNetwork::process = job_.supervisorAt(each.place);
}

void SimWorld::startRank(Supervisor &each, double patience) {
  bool wasSpeaker = each.rank ? each.rank->isSpeaker() : each.place == 1;
  each.rank = std::make_unique<SimRank>(job_, each.place, wasSpeaker, patience);
}

void SimWorld::stepServer() {
  std::vector<pollfd> entries;
  server_->addTo(entries);
  network().look(entries);
  server_->step(network().now, entries);
}

/// One iteration of the loop of rank 0's supervisor, as in Supervisor.cpp.
void SimWorld::stepLeader() {
  Supervisor &own = supervisors_.front();
  network().machine = 0;
  FakeNetwork::process = job_.supervisorAt(0);
  if (own.startsAt >= 0 && network().now >= own.startsAt) {
    startRank(own, 1e9);
    own.startsAt = -1;
  }
  stepRank(own);
  stepServer();
  bool isRankOver = !own.rank || own.rank->hasEnded();
  if (!isRankOver || own.startsAt >= 0 || !server_->isOver())
    return;
  if (leader_->state() == RestartLeader::State::Ends && !job_.isAsked) {
    openServer(leader_->ended(network().now, job_.newestSave()));
  } else if (leader_->state() != RestartLeader::State::Pauses || job_.isAsked) {
    exitStatus_ = server_->exitStatus();
    isLeaderOver_ = true;
    server_.reset();
    listener_.close();
    own.isThere = false;
  }
}

void SimWorld::openRelay(Supervisor &each) {
  RelayOptions options;
  options.address = "127.0.0.1";
  options.port = job_.port;
  options.rank = each.place;
  options.worldSize = job_.places;
  options.isElastic = job_.isElastic;
  options.startsAgain = job_.startsAgain;
  options.localSize = job_.perMachine;
  options.secret = job_.secret;
  options.job = "j";
  options.relayName = job_.relayName(machineOf(each));
  options.joinSeconds = job_.timeout;
  options.askSeconds = 0;
  options.fanOut = fanOut_;
  options.emit = [](const Report &) {};
  each.relay = std::make_unique<Relay>(std::move(options));
}

void SimWorld::stepRelay(Supervisor &each, bool isLast) {
  if (machineOf(each) == 0)
    return;
  if (!each.relay)
    openRelay(each);
  if (isLast)
    each.relay->rankEnded();
  std::vector<pollfd> entries;
  each.relay->addTo(entries);
  network().look(entries);
  each.relay->step(network().now, entries);
  if (each.relay->connections() > fanOut_ + static_cast<size_t>(job_.perMachine) + 1)
    job_.wrong.push_back(fmt::format("a relay has {} connections", each.relay->connections()));
  if (each.relay->isJobOver())
    each.follower.over();
  else if (each.relay->isOver() && job_.startsAgain && !isLast)
    openRelay(each);
}

void SimWorld::stepFollower(Supervisor &each) {
  network().machine = static_cast<int>(machineOf(each));
  FakeNetwork::process = job_.supervisorAt(each.place);
  double now = network().now;
  if (each.startsAt >= 0 && now >= each.startsAt) {
    startRank(each, job_.timeout);
    each.startsAt = -1;
  }
  if (each.follower.startsNow(now))
    startRank(each, kAskAgainSeconds);
  bool wasThere = each.rank && !each.rank->hasEnded();
  stepRank(each);
  if (wasThere && each.rank->hasEnded())
    each.follower.rankEnded({each.rank->wasToldOver(), each.rank->hasHeard()}, now);
  bool isLast =
      each.startsAt < 0 && (!each.rank || each.rank->hasEnded()) && !each.follower.isPausing();
  stepRelay(each, isLast);
  if (isLast && (!each.relay || each.relay->isOver()))
    each.isThere = false;
}

void SimWorld::lose(Supervisor &each) {
  if (each.place == 0) {
    isServerLost_ = true;
    server_.reset();
    listener_.close();
  }
  isFirstOfAnyLost_ = isFirstOfAnyLost_ || each.place % job_.perMachine == 0;
  each.relay.reset();
  if (each.rank)
    each.rank->kill();
  each.isThere = false;
}

void SimWorld::loseMachine(int64_t machine) {
  if (job_.below(2)) // it loses power
    network().vanish(static_cast<int>(machine));
  for (Supervisor &each : supervisors_)
    if (machineOf(each) == machine && each.isThere)
      lose(each);
  if (job_.below(2))
    returns_.emplace_back(network().now + 1 + job_.uniform(60), machine);
}

void SimWorld::bringBack(int64_t machine) {
  for (Supervisor &each : supervisors_)
    if (machineOf(each) == machine && !each.isThere && server_) {
      each = Supervisor();
      each.place = machine * job_.perMachine + (&each - &supervisors_.front()) % job_.perMachine;
      each.follower = RestartFollower(job_.startsAgain);
      each.startsAt = network().now + job_.uniform(2);
      if (job_.isAsked)
        each.follower.asked();
    }
}

/// Makes a random process or machine fail.
void SimWorld::strike() {
  ++strikes_;
  Supervisor &each = supervisors_[static_cast<size_t>(job_.below(job_.places))];
  if (!each.isThere)
    return;
  switch (job_.below(8)) {
  case 0:
    if (job_.below(4) == 0)
      lose(supervisors_.front());
    return;
  case 1:
    if (machineOf(each) > 0)
      loseMachine(machineOf(each));
    return;
  case 2:
  case 3:
    if (each.place > 0)
      lose(each);
    return;
  case 4:
    each.frozenUntil = network().now + job_.uniform(job_.below(2) ? 5 : 60);
    return;
  case 5:
    if (each.rank && each.rank->isWorking())
      each.rank->hang(network().now + 10 + job_.uniform(2 * job_.timeout));
    return;
  default:
    if (each.rank)
      each.rank->kill();
    if (each.rank && each.place > 0)
      each.follower.rankEnded({each.rank->wasToldOver(), each.rank->hasHeard()}, network().now);
    return;
  }
}

bool SimWorld::hasAnybody() const {
  return std::ranges::any_of(supervisors_, &Supervisor::isThere);
}

std::vector<std::string> SimWorld::run() {
  std::vector<size_t> order(supervisors_.size());
  std::iota(order.begin(), order.end(), 0);
  double end = network().now + kSecondsMax;
  while (hasAnybody() && job_.wrong.empty()) {
    uint64_t before = network().moved;
    std::ranges::shuffle(order, job_.random);
    for (size_t i : order) {
      Supervisor &each = supervisors_[i];
      bool isBusy = !job_.isPlain && job_.below(4) == 0;
      if (!each.isThere || network().now < each.frozenUntil || isBusy)
        continue;
      i == 0 ? stepLeader() : stepFollower(each);
    }
    if (!isServerLost_ && !isLeaderOver_ && leader_->startsNow(network().now))
      startRank(supervisors_.front(), 1e9);
    if (strikeChance_ > 0 && job_.uniform(1) < strikeChance_)
      strike();
    if (askAt_ >= 0 && network().now >= askAt_ && !job_.isAsked) {
      job_.isAsked = true;
      leader_->asked();
      for (Supervisor &each : supervisors_)
        each.follower.asked();
      if (server_ && !server_->isRunning())
        server_->stopBeforeSteps();
    }
    for (const auto &[when, machine] : returns_)
      if (network().now >= when)
        bringBack(machine);
    std::erase_if(returns_, [](const auto &each) { return network().now >= each.first; });
    FakeNetwork::process = 0;
    if (job_.isPlain)
      killTheMiddle();
    double quiet = job_.isPlain ? 0.02 : 0.2, busy = job_.isPlain ? 0.01 : 0.02;
    network().now += network().moved != before ? busy : quiet;
    if (network().now > end)
      job_.wrong.push_back("an endless loop");
  }
  return check();
}

std::string SimWorld::describe() const {
  std::string text = fmt::format(
      "{} machines of {}, fan-out {}, {} restarts{}, {} strikes, {} attempts, at {:.1f} s; ",
      machines_, job_.perMachine, fanOut_, restartsMax_, job_.isElastic ? ", elastic" : "",
      strikes_, attempts_, network().now);
  for (const Supervisor &each : supervisors_)
    if (each.isThere)
      text += fmt::format("{}{}{} ", each.place,
                          each.rank && !each.rank->hasEnded() ? " has a rank" : "",
                          each.relay && !each.relay->isOver() ? " has a relay" : "");
  for (const std::string &each : said_)
    text += "; said: " + each;
  return text;
}

std::vector<std::string> SimWorld::check() {
  auto expect = [this](bool isRight, const char *what) {
    if (!isRight)
      job_.wrong.push_back(what);
  };
  if (!job_.wrong.empty())
    return job_.wrong;
  if (job_.isPlain) {
    std::string rank = fmt::format("rank {} ", job_.places / 2);
    expect(said_.size() == 1 && said_.front().starts_with(rank), "the killed rank is not named");
    expect(saidAt_ - killedAt_ < 1, "it is named too late");
  }
  bool isOver = isLeaderOver_ && !isServerLost_;
  expect(isOver || isServerLost_, "rank 0's supervisor has not ended");
  if (isOver && exitStatus_ != 0)
    expect(!said_.empty() || job_.isAsked, "it ended without a reason");
  int64_t lastSave = job_.steps / job_.saveInterval * job_.saveInterval;
  if (isOver && exitStatus_ == 0 && !job_.isAsked)
    expect(said_.empty() && job_.newestSave() >= (lastSave > 0 ? lastSave : -1),
           "it ended well without having worked");
  bool isOnlyServerLost = isServerLost_ && strikes_ == 1 && machines_ > 1 && !job_.isAsked &&
                          !job_.isDone && network().faultChance == 0;
  if (isOnlyServerLost)
    expect(job_.goneReported >= 1 || !said_.empty(),
           "nobody said that rank 0's supervisor is gone");
  return job_.wrong;
}

} // namespace shardc::launch
