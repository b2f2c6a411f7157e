#include "runtime/launch/RendezvousServer.h"

#include <algorithm>
#include <map>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/Machine.h"
#include "runtime/launch/RankReports.h"

namespace shardc::launch {
namespace {

constexpr double kCheckSeconds = 0.1;
constexpr double kAliveSeconds = 1;  ///< longest silence of this process
constexpr double kAnswerSeconds = 4; ///< time limit for relays to answer a question on all ranks
/// A place without a rank counts as gone after this much silence.
constexpr double kIdleSilentSeconds = 30;

} // namespace

RendezvousServer::RendezvousServer(Socket listener, RendezvousOptions options)
    : options_(std::move(options)), admission_(std::move(listener), options_),
      exchange_(options_.worldSize), progress_(options_), rootCause_(options_),
      rankAt_(static_cast<size_t>(options_.worldSize), -1) {
  (options_.elastic ? idle_ : ranks_).resize(static_cast<size_t>(options_.worldSize));
}

/// Returns the connections of all ranks, and of places that have no rank.
std::vector<Connection *> RendezvousServer::everyone(bool withRelays) const {
  std::vector<Connection *> all;
  for (const Connections *connections : {&ranks_, &idle_, &relays_})
    for (const std::unique_ptr<Connection> &each : *connections)
      if (each && (withRelays || connections != &relays_))
        all.push_back(each.get());
  return all;
}

void RendezvousServer::addTo(std::vector<pollfd> &entries) {
  admission_.addTo(entries, clock_);
  for (Connection *each : everyone(/*withRelays=*/true))
    each->addTo(entries);
}

/// One iteration of the supervisor's loop: reads from ready connections, admits new ranks, and then
/// looks for failures. The order matters: messages that have arrived are handled before a rank
/// counts as silent.
void RendezvousServer::step(double seconds, std::span<const pollfd> entries) {
  advanceClock(seconds);
  if (options_.problem && !isEnding_)
    end(kInputStatus, {*options_.problem});
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (rank && rank->wire.isOpen() && (rank->isReady(entries) || rank->wire.hasUnsent()))
      serve(*rank);
  for (const std::unique_ptr<Connection> &relay : relays_)
    if (relay->wire.isOpen() && (relay->isReady(entries) || relay->wire.hasUnsent()))
      serveRelay(*relay);
  for (std::unique_ptr<Connection> &idle : idle_)
    if (idle)
      serveIdle(idle);
  receiveRanks();
  for (const std::unique_ptr<Connection> &relay : relays_)
    relay->wire.flush();
  std::erase_if(relays_, [](const auto &relay) { return !relay->wire.isOpen(); });
  if (isEnding_)
    return endSilent();
  if (areAllDone())
    reportIdleOver();
  showLife();
  if (options_.elastic)
    isRunning_ ? reportGrowth() : chooseRanks();
  // The check looks at every rank, so it is not done each time.
  if (clock_ - checkedAt_ >= kCheckSeconds) {
    checkedAt_ = clock_;
    checkTimes();
  }
  if (isEnding_)
    return;
  if (std::optional<RootCause::Verdict> verdict = rootCause_.decide(ranks_, progress_, clock_))
    endByFault(verdict->exitStatus, verdict->reports);
}

void RendezvousServer::advanceClock(double seconds) {
  if (lastSeconds_ >= 0)
    clock_ += std::min(std::max(seconds - lastSeconds_, 0.0), kPauseSeconds);
  lastSeconds_ = seconds;
}

/// Before all ranks have joined, an error of the listening socket ends the job, since the missing
/// ranks could never join.
void RendezvousServer::receiveRanks() {
  while (std::unique_ptr<Connection> connection = admission_.next(clock_))
    arrive(std::move(connection));
  beginIfAllAreThere();
  Status status = admission_.accept(clock_);
  if (!status.isOk() && !isRunning_ && !isEnding_)
    end(kInputStatus,
        {makeReport(report::CannotListen,
                    fmt::format("rank 0's supervisor: {}; {} of {} ranks have connected; it needs "
                                "a descriptor for each rank of this machine and each relay "
                                "('ulimit -n')",
                                status.message(), joined_, options_.worldSize))});
}

/// 1. A process that connects when the job is over, or about to end, is told so. 2. A running job
/// admits new processes only if it is elastic: places and their relays, at any time. 3. Before the
/// job runs, a rank that does not match it ends it, and no rank begins.
void RendezvousServer::arrive(std::unique_ptr<Connection> connection) {
  const Hello &hello = *connection->hello;
  bool isSealed = connection->via || connection->wire.isSealed();
  auto emit = [&] {
    if (!isSealed)
      return admission_.refuse(std::move(connection), Refusal::AnotherVersion);
    sendOver(*connection);
    admission_.seeOff(std::move(connection));
  };
  if ((isEnding_ || isOverForIdle()) && isSealed)
    return emit();
  std::vector<Report> faults = admission_.findFaults(hello, ranks_);
  bool isTaken = options_.elastic && isRunning_ && hello.relayPort == 0 && faults.empty() &&
                 rankAt_[static_cast<size_t>(hello.rank)] >= 0;
  if (isRunning_ && (!options_.elastic || !faults.empty() || isTaken))
    return admission_.refuse(std::move(connection), Refusal::Complete);
  if (!faults.empty()) {
    fail({-1, StatusCode::InvalidInput, kInputStatus, std::move(faults)});
    return emit();
  }
  if (hello.relayPort == 0)
    return admit(std::move(connection));
  if (Connection *relay = admission_.admitRelay(std::move(connection), relays_, places()))
    serveRelay(*relay); // it may have sent messages already
}

void RendezvousServer::admit(std::unique_ptr<Connection> connection) {
  Connection &rank = *connection;
  rank.wire.setBytesMax(kRankFrameBytesMax);
  if (rank.via)
    admitted_.push_back(static_cast<int>(rank.place));
  else
    rank.queue(MessageKind::Admitted, "");
  if (options_.elastic)
    return admitPlace(std::move(connection));
  ranks_[static_cast<size_t>(rank.place)] = std::move(connection);
  ++joined_;
  if (!rank.via)
    serve(rank); // it may have sent messages already
}

/// Admits a place. If two processes have the same place, the later one replaces the earlier one,
/// which may have vanished without a message.
void RendezvousServer::admitPlace(std::unique_ptr<Connection> connection) {
  options_.elastic->came(connection->place, connection->hello->machine);
  std::unique_ptr<Connection> &idle = idle_[static_cast<size_t>(connection->place)];
  if (idle && idle->via != connection->via)
    idle->close();
  idle = std::move(connection);
  serveIdle(idle);
}

void RendezvousServer::beginIfAllAreThere() {
  if (!options_.elastic && !isRunning_ && !isEnding_ && joined_ == options_.worldSize)
    welcomeAll();
}

/// Begins the attempt once there are enough places for a size.
void RendezvousServer::chooseRanks() {
  std::optional<Crew> crew = options_.elastic->begin(clock_);
  if (!crew)
    return;
  joined_ = options_.worldSize = std::ssize(*crew);
  exchange_ = Exchange(options_.worldSize);
  progress_.reset();
  for (int64_t place : *crew) {
    ranks_.push_back(std::move(idle_[static_cast<size_t>(place)]));
    rankAt_[static_cast<size_t>(place)] = ranks_.back()->hello->rank = std::ssize(ranks_) - 1;
  }
  if (options_.begins)
    options_.begins(*crew);
  welcomeAll();
}

/// Tells rank 0 to end this start of the ranks at its next save, if the job can continue with more
/// ranks.
void RendezvousServer::reportGrowth() {
  int64_t growsTo = options_.elastic->growsTo();
  if (growsTo == growsTo_ || ranks_.front()->isDone || !ranks_.front()->isOpen())
    return;
  growsTo_ = growsTo;
  ranks_.front()->queue(MessageKind::Grow, Packer().number(growsTo).take());
}

void RendezvousServer::reportIdleOver() {
  if (areIdleReported_)
    return;
  areIdleReported_ = true;
  endedAt_ = clock_;
  for (const std::unique_ptr<Connection> &idle : idle_)
    if (idle)
      sendOver(*idle);
}

/// Tells every rank its number, how many ranks share its machine, and the attempt. Ranks behind a
/// relay with equal welcomes get one message together.
void RendezvousServer::welcomeAll() {
  isRunning_ = true;
  Welcome welcome;
  welcome.nonce = randomBytes32();
  welcome.attempt = options_.attempt.number;
  welcome.savedStep = options_.attempt.savedStep;
  std::map<std::string, int64_t> count;
  for (const std::unique_ptr<Connection> &rank : ranks_)
    ++count[rank->hello->machine];
  // Choose the rank that reports the loss of this process: one on another machine, since this
  // machine may fail as a whole.
  auto speaker = std::ranges::find_if(ranks_, [&](const std::unique_ptr<Connection> &rank) {
    return rank->hello->machine != ranks_.front()->hello->machine;
  });
  if (speaker == ranks_.end())
    speaker = ranks_.begin() + (ranks_.size() > 1 ? 1 : 0);
  welcome.worldSize = options_.worldSize;
  using Group = std::tuple<Connection *, int64_t, bool>; // ranks whose welcomes are alike
  std::map<Group, std::pair<std::vector<int>, std::vector<int>>> behindRelays;
  for (const std::unique_ptr<Connection> &rank : ranks_) {
    welcome.rank = rank->hello->rank;
    welcome.localSize = count[rank->hello->machine];
    welcome.isSpeaker = rank == *speaker;
    rank->heardAt = clock_;
    if (!rank->via) {
      rank->queue(MessageKind::Welcome, packed(welcome));
    } else if (rank->isOpen()) {
      auto &[places, ranks] = behindRelays[{rank->via, welcome.localSize, welcome.isSpeaker}];
      places.push_back(static_cast<int>(rank->place));
      ranks.push_back(static_cast<int>(welcome.rank));
    }
  }
  for (auto &[group, members] : behindRelays) {
    auto &[places, ranks] = members;
    std::tie(std::ignore, welcome.localSize, welcome.isSpeaker) = group;
    std::get<0>(group)->wire.queue(
        MessageKind::Down,
        packed(RelayedMessage{std::move(places), MessageKind::Welcome,
                              packed(RelayedWelcome{std::move(ranks), welcome})}));
  }
}

/// Sends a connection that knows the secret the message that the job is over or about to end.
void RendezvousServer::sendOver(Connection &connection) {
  Abort abort;
  abort.exitStatus = isEnding_ || areAllDone() ? exitStatus_ : kInputStatus;
  connection.queue(MessageKind::Abort, packed(abort));
  connection.wire.flush();
}

/// Handles the loss of a rank, once.
void RendezvousServer::lose(Connection &rank) {
  rank.close();
  if (rank.isDone || rank.isGone)
    return;
  rank.isGone = true;
  fail({rank.hello->rank, StatusCode::Unavailable, kFailureStatus, {}});
}

void RendezvousServer::serve(Connection &rank) {
  bool isAlive = rank.wire.serve([&](const Message &message) {
    rank.heardAt = clock_;
    handle(rank, message);
  });
  if (!isAlive)
    lose(rank);
}

/// Serves the connection of a spare place, which has no rank: its messages are only signs of life.
/// For a place behind a relay, the messages of the relay count.
void RendezvousServer::serveIdle(std::unique_ptr<Connection> &idle) {
  if (idle->via) {
    if (!idle->isOpen() || clock_ - idle->via->heardAt > kIdleSilentSeconds)
      dropIdle(idle);
    return;
  }
  bool isAlive = idle->wire.serve([&](const Message &message) {
    idle->heardAt = clock_;
    if (message.kind != MessageKind::Progress)
      idle->wire.close();
  });
  if (!isAlive || clock_ - idle->heardAt > kIdleSilentSeconds)
    dropIdle(idle);
}

void RendezvousServer::dropIdle(std::unique_ptr<Connection> &idle) {
  if (!isEnding_) // otherwise it is expected to connect again
    options_.elastic->left(idle->place);
  idle->close();
  idle.reset();
}

void RendezvousServer::handle(Connection &rank, const Message &message) {
  switch (message.kind) {
  case MessageKind::Gather:
    return handleGather(rank, message.body);
  case MessageKind::Progress:
    if (std::optional<RankProgress> position = unpacked<RankProgress>(message.body)) {
      progress_.note(rank.hello->rank, *position, clock_);
      if (!rank.via)
        late_.note(rank.hello->rank, *position, clock_);
      return;
    }
    return rank.close();
  case MessageKind::Lost:
    return handleLost(rank, message.body);
  case MessageKind::Fail:
    return handleFailure(rank, message.body);
  case MessageKind::Bye:
    return handleBye(rank, message.body);
  case MessageKind::Rest:
    return handleRest(rank);
  default:
    return rank.close();
  }
}

/// Handles a rank's part in an exchange. Ranks that wait for each other in different exchanges
/// disagree about the program.
void RendezvousServer::handleGather(Connection &rank, const std::string &body) {
  int64_t number = rank.hello->rank;
  std::optional<GatherPart> part = unpacked<GatherPart>(body, options_.worldSize);
  if (!part || !isRunning_ || !exchange_.add(number, std::move(*part), clock_))
    return rank.close();
  endExchange(number);
}

/// Answers an exchange that a rank has joined, or reports why it cannot end.
void RendezvousServer::endExchange(int64_t number) {
  auto failed = [&](int64_t of, const Report &why) {
    fail({of, StatusCode::Internal, kFailureStatus, {why}});
  };
  if (std::optional<int64_t> other = exchange_.findOther(number))
    return failed(*other,
                  makeReport(report::ExchangesDiffer,
                             fmt::format("it is at '{}', rank {} at '{}'", exchange_.nameOf(*other),
                                         number, exchange_.nameOf(number))));
  std::string name = exchange_.nameOf(number);
  std::optional<Exchange::Done> done = exchange_.take(number);
  if (!done)
    return;
  if (done->body.size() > kGatheredBytesMax)
    return failed(number, makeStatus(StatusCode::Internal,
                                     "the parts of '{}' have {} bytes; the limit is {}", name,
                                     done->body.size(), kGatheredBytesMax)
                              .report());
  sendTo(done->members, MessageKind::Gathered, done->body);
}

void RendezvousServer::handleLost(Connection &rank, const std::string &body) {
  Unpacker in(body);
  auto lost = static_cast<int64_t>(in.bounded(1 << 20));
  std::string what = in.text();
  if (!in.isComplete())
    return rank.close();
  if (!isEnding_)
    rootCause_.addLost(rank.hello->rank, lost, what, clock_);
}

void RendezvousServer::handleFailure(const Connection &rank, const std::string &body) {
  std::optional<Failure> failure = unpacked<Failure>(body);
  if (!failure)
    return;
  if (failure->isReported && !isEnding_)
    return endByFault(failure->exitStatus, {});
  fail({rank.hello->rank, failure->code, failure->exitStatus, std::move(failure->reports)});
}

void RendezvousServer::handleBye(Connection &rank, const std::string &body) {
  Unpacker in(body);
  exitStatus_ = std::max(exitStatus_, static_cast<int>(in.bounded(255)));
  done_ += !rank.isDone;
  rank.isDone = true;
}

/// Only rank 0 sends this message, once all ranks have agreed on it.
void RendezvousServer::handleRest(Connection &rank) {
  if (rank.hello->rank != 0 || !options_.elastic || !options_.judge)
    return rank.close();
  if (isEnding_)
    return;
  bool goesOn = options_.judge({0, {}, lastStep(), /*isInOrder=*/true}).startsAgain;
  end(goesOn ? kAgainStatus : 0, {}); // 0: it was asked to end in the meantime
}

void RendezvousServer::showLife() {
  if (clock_ - aliveAt_ < kAliveSeconds)
    return;
  aliveAt_ = clock_;
  for (Connection *each : everyone(/*withRelays=*/true))
    if (each->wire.isOpen() && !each->wire.hasUnsent())
      each->wire.queue(MessageKind::Alive, "");
}

Standing RendezvousServer::standing() const {
  std::vector<const Connection *> near;
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (rank && !rank->via)
      near.push_back(rank.get());
  return progress_.standingOf(near, relays_, clock_);
}

/// Checks all time limits. Ranks are asked for their positions only if a message needs them.
void RendezvousServer::checkTimes() {
  if (!isRunning_)
    return checkJoining();
  Standing all = standing();
  if (std::optional<Answer> answer = survey_.finish(clock_))
    takeAnswer(*answer);
  else if (progress_.isStuck(all, exchange_, clock_) &&
           !(survey_.isUnderWay() && survey_.ask().what == Ask::Positions))
    ask(Ask::Positions);
  else if (!survey_.isUnderWay() && lateJudge_.isDue(clock_, all.stepsLeast))
    ask(Ask::Waits);
}

void RendezvousServer::ask(Ask::What what) {
  Answer own;
  if (what == Ask::Waits)
    own.waits = late_.take(clock_, options_.stageOf);
  survey_.begin({what, survey_.ask().number + 1, kAnswerSeconds}, std::move(own), relays_, clock_);
  if (std::optional<Answer> answer = survey_.finish(clock_)) // at once if there are no relays
    takeAnswer(*answer);
}

void RendezvousServer::takeAnswer(const Answer &answer) {
  if (survey_.ask().what == Ask::Waits)
    return reportLate(answer.waits);
  for (const auto &[rank, position] : answer.positions)
    progress_.note(rank, position, clock_);
  if (std::optional<Report> stuck = progress_.find(standing(), exchange_, clock_))
    endByFault(kFailureStatus, {located(*stuck)});
}

/// Ends the job after the limit, and names the ranks that have not joined.
void RendezvousServer::checkJoining() {
  if (options_.elastic ? !options_.elastic->isHopeless(clock_) : clock_ <= options_.joinSeconds)
    return;
  const Connections &all = options_.elastic ? idle_ : ranks_;
  std::vector<int64_t> missing;
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r])
      missing.push_back(static_cast<int64_t>(r));
  endByFault(kInputStatus, {makeReport(report::RanksMissing, rangesOf(missing), options_.worldSize,
                                       options_.where, options_.joinSeconds)});
}

/// Reports ranks that are late step after step. The job continues.
void RendezvousServer::reportLate(const Waits &waits) {
  for (const LateRank &late : lateJudge_.judge(waits, clock_, standing().stepsLeast)) {
    const Hello &hello = *ranks_[static_cast<size_t>(late.rank)]->hello;
    options_.emit(makeReport(report::RankLate, late.rank, 100 * late.share, late.seconds,
                             late.steps, 100 * late.others, hello.host,
                             hello.gpu.empty() ? "" : ", " + hello.gpu));
    if (options_.noteLate)
      options_.noteLate(late, lastStep(), hello);
  }
}

void RendezvousServer::rankEnded(int64_t pid, const std::string &how) {
  rootCause_.noteEnd(pid, how);
  for (Connection *each : everyone())
    if (each->hello->pid == pid)
      return; // its connection reports the rest
  if (options_.elastic && isRunning_)
    return; // in a running elastic job, a process that has not joined has no rank
  fail({-1,
        StatusCode::Unavailable,
        kFailureStatus,
        {makeReport(report::RankEnded,
                    fmt::format("process {} {} before it joined the other ranks", pid, how))}});
}

void RendezvousServer::stopAtOnce() {
  if (!isEnding_)
    end(kFailureStatus, {});
}

void RendezvousServer::stopBeforeSteps() {
  if (!isEnding_)
    end(0, {});
}

void RendezvousServer::fail(RootCause::Failure failure) {
  if (!isEnding_)
    rootCause_.add(std::move(failure), clock_);
}

int64_t RendezvousServer::lastStep() const {
  return std::max(
      {options_.attempt.savedStep, int64_t{0}, static_cast<int64_t>(standing().stepsMost)});
}

/// Adds to a stall's report the process of the rank that the others wait for, which is where to
/// look for the fault.
Report RendezvousServer::located(Report stall) const {
  std::optional<int64_t> rank = rankNamedBy(stall.text);
  if (!rank || *rank >= std::ssize(ranks_) || !ranks_[static_cast<size_t>(*rank)])
    return stall;
  const Hello &hello = *ranks_[static_cast<size_t>(*rank)]->hello;
  stall.text += fmt::format("; rank {} is process {} on {}{}{}", *rank, hello.pid, hello.host,
                            hello.gpu.empty() ? "" : ", ", hello.gpu);
  return stall;
}

void RendezvousServer::endByFault(int exitStatus, const std::vector<Report> &reports) {
  Aftermath after;
  if (options_.judge)
    after = options_.judge({exitStatus, reports, lastStep()});
  if (after.startsAgain)
    return end(kAgainStatus, {});
  std::vector<Report> all = reports;
  if (after.last)
    all.push_back(*after.last);
  end(exitStatus, all);
}

void RendezvousServer::end(int exitStatus, const std::vector<Report> &reports) {
  isEnding_ = true;
  endedAt_ = clock_;
  exitStatus_ = exitStatus;
  for (const Report &report : reports)
    options_.emit(report);
  Abort abort;
  abort.exitStatus = exitStatus;
  for (Connection *each : everyone())
    if (each->wire.isOpen() && !each->isDone && clock_ - each->heardAt > kSilentSeconds)
      abort.silent.push_back({each->hello->machine, each->hello->pid});
  std::string body = packed(abort);
  for (Connection *each : everyone(/*withRelays=*/true)) { // relays forward it
    if (!each->wire.isOpen())
      continue;
    each->wire.queue(MessageKind::Abort, body);
    each->wire.flush();
  }
}

/// Kills ranks of this machine that neither leave nor respond.
void RendezvousServer::endSilent() {
  if (hasEndedSilent_ || clock_ - endedAt_ < kSilentSeconds)
    return;
  hasEndedSilent_ = true;
  std::string here = machineId();
  for (Connection *each : everyone())
    if (each->wire.isOpen() && each->hello->machine == here && each->heardAt < endedAt_)
      endRank(static_cast<pid_t>(each->hello->pid), ownEndOf(each->wire.socket()));
}

bool RendezvousServer::isOver() const {
  auto isOpen = [](const auto &each) { return each && each->isOpen(); };
  if (!isEnding_)
    return areAllDone() && (std::ranges::none_of(idle_, isOpen) ||
                            (areIdleReported_ && clock_ - endedAt_ > kLeaveSeconds));
  bool isAskedAgain = options_.hasFollowers && exitStatus_ != kAgainStatus;
  bool areAllTold =
      !isAskedAgain && joined_ == options_.worldSize && std::ranges::none_of(everyone(), isOpen);
  return areAllTold || clock_ - endedAt_ > kLeaveSeconds;
}

} // namespace shardc::launch
