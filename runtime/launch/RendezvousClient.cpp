#include "runtime/launch/RendezvousClient.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Published.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/launch/Exchange.h"
#include "runtime/launch/Machine.h"
#include "runtime/launch/Rendezvous.h"

namespace shardc::launch {
namespace {

constexpr int kBeatMilliseconds = 250; ///< time between two reads of the progress
constexpr int kBeatsUnchanged = 4;     ///< reads without a change after which progress is sent
constexpr auto kAbortGrace = std::chrono::seconds(3);
constexpr auto kFailGrace = std::chrono::seconds(10);
constexpr double kListenerSeconds = 10; ///< time limit for a listener to identify itself
constexpr double kMisfitSeconds = 5;    ///< time for another launch's rank 0 to end
constexpr double kConnectSeconds = 5;   ///< limit of an attempt; then checks for a request to end
constexpr double kAskedJoinSeconds = 5; ///< time limit to find rank 0 after a request to end
constexpr auto kAgainPause = std::chrono::milliseconds(200);
constexpr double kFinderSeconds = 0.5;    ///< time limit for this machine's relay to answer
constexpr double kLeaderSeconds = 2;      ///< time limit to connect to rank 0's supervisor
constexpr double kSupervisorSeconds = 10; ///< least silence before it counts as lost
constexpr double kLookPauseSeconds = 1;   ///< most that the clock advances between two checks

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the status of a rank whose job ends for a reason that was already reported.
Status wasReported() { return Status(StatusCode::Aborted, "the job has failed before it began"); }

Status notRankZero(const std::string &where) {
  return makeStatus(StatusCode::Unavailable,
                    "the program that listens at {} is not rank 0 of a job", where);
}

} // namespace

Result<std::unique_ptr<RendezvousClient>>
RendezvousClient::join(const RendezvousClientOptions &options) {
  std::unique_ptr<RendezvousClient> client(new RendezvousClient(options));
  if (Status status = client->connect(); !status.isOk()) {
    client->note(kHeardOver);
    if (options.problem)
      options.emit(*options.problem);
    else if (status.code() != StatusCode::Aborted) // otherwise another rank reports it
      options.emit(status.report());
    return wasReported();
  }
  if (Status status = client->startThread(); !status.isOk()) {
    options.emit(std::move(status).withContext(fmt::format("rank {}", options.rank)).report());
    return wasReported();
  }
  client->awaitWelcome();
  std::unique_lock lock(client->mutex_);
  if (!client->isWelcome_) {
    if (!client->isOver_) // the message that ended it says whether the rank starts again
      client->note(kHeardOver);
    return wasReported();
  }
  return client;
}

void RendezvousClient::awaitWelcome() {
  std::unique_lock lock(mutex_);
  auto isHeard = [this] { return isWelcome_ || isOver_; };
  auto isAsked = [this] { return options_.isAsked && options_.isAsked(); };
  if (options_.isElastic) { // a spare may wait for days; rank 0's supervisor shows that it lives
    while (!changed_.wait_for(lock, std::chrono::milliseconds(kBeatMilliseconds), isHeard) &&
           !isAsked()) {
    }
    return;
  }
  // The supervisor has its own time limit for this wait and reports who is missing. This limit is
  // the last resort.
  auto patience = std::chrono::milliseconds(static_cast<int64_t>(options_.joinSeconds * 1e3)) +
                  std::chrono::seconds(30);
  changed_.wait_for(lock, patience, isHeard);
}

void RendezvousClient::note(uint32_t heard) {
  if (options_.heard)
    options_.heard->fetch_or(heard);
}

Status RendezvousClient::startThread() {
  ASSIGN_OR_RETURN(wakeup_, makeWakeup());
  return shardc::startThread(thread_, [this] { run(); });
}

/// Another job's rank 0, or another program, may use the port temporarily. Therefore this rank
/// reports it only when its own time is over. This job's rank 0 notices that its port is in use and
/// reports that immediately.
Status RendezvousClient::connect() {
  machine_ = machineId();
  double begin = now(), misfitSince = -1, askedSince = -1;
  double patience = options_.connectSeconds > 0 ? options_.connectSeconds : options_.joinSeconds;
  while (true) {
    Status place = findPlace();
    bool isHopeless = place.code() == StatusCode::Exhausted;
    Attempt attempt = {isHopeless ? Attempt::Failed : Attempt::Again, place};
    if (place.isOk())
      attempt = tryToJoin(patience - (now() - begin));
    if (attempt.outcome == Attempt::Joined)
      return Status::ok();
    if (attempt.outcome == Attempt::Failed)
      return std::move(attempt.reason).withContext(fmt::format("rank {}", options_.rank));
    if (attempt.outcome != Attempt::Misfit)
      misfitSince = -1;
    else if (misfitSince < 0)
      misfitSince = now();
    else if (now() - misfitSince > kMisfitSeconds)
      return misfit(std::move(attempt.reason));
    if (askedSince < 0 && options_.isAsked && options_.isAsked())
      askedSince = now();
    if (askedSince >= 0 && now() - askedSince > kAskedJoinSeconds)
      return wasReported(); // rank 0 was asked too, and has ended
    if (now() - begin > patience)
      return unanswered(patience, attempt.reason);
    std::this_thread::sleep_for(kAgainPause);
  }
}

/// Finds the address to connect to. A relay's answer is trusted once it has proved that it knows
/// the secret.
Status RendezvousClient::findPlace() {
  server_ = options_.address;
  serverPort_ = options_.port;
  if (options_.relayName.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(std::string where, findPublished(options_.relayName, kFinderSeconds));
  if (where.starts_with(kNotYet))
    return Status(StatusCode::Unavailable, where.substr(std::strlen(kNotYet)));
  size_t colon = where.rfind(':');
  if (colon == std::string::npos)
    return Status(StatusCode::Unavailable, "no supervisor of this machine has reached it");
  server_ = where.substr(0, colon);
  if (server_.starts_with('[') && server_.ends_with(']'))
    server_ = server_.substr(1, server_.size() - 2);
  serverPort_ = std::atoi(where.c_str() + colon + 1);
  return Status::ok();
}

/// Returns the status for an address that does not answer. A rank that was in the job before knows
/// that the address is right. One rank of each machine reports it: the first one, or, on rank 0's
/// machine, whose supervisor is gone, the rank that was chosen in advance.
Status RendezvousClient::unanswered(double seconds, const Status &reason) const {
  if (options_.connectSeconds == 0)
    return makeStatus(report::NoAnswer, options_.rank, seconds, reason.message());
  if (options_.localRank != 0 && !isSpeaker())
    return wasReported();
  return makeStatus(
      report::RankZeroGone,
      fmt::format("rank {}: rank 0's supervisor, which starts the ranks again, has not answered "
                  "for {:.3g} s: {}; it or its machine is gone",
                  options_.rank, seconds, reason.message()));
}

/// Whether this rank reports the end of rank 0's supervisor, in jobs whose supervisors restart
/// their ranks.
bool RendezvousClient::isSpeaker() const {
  return options_.heard && (options_.heard->load() & kHeardSpeaker) != 0;
}

/// Returns the status of a secret that does not match. All ranks of a machine have the same secret,
/// so one of them reports it; the status is Aborted on the others.
Status RendezvousClient::misfit(Status reason) const {
  return options_.localRank == 0
             ? std::move(reason).withContext(fmt::format("rank {}", options_.rank))
             : wasReported();
}

/// The server may send long messages only after the handshake, so that a stranger on its port
/// cannot make this rank allocate much memory.
RendezvousClient::Attempt RendezvousClient::tryToJoin(double seconds) {
  Result<Socket> socket =
      connectTo(server_, serverPort_, std::clamp(seconds, 0.0, kConnectSeconds));
  if (!socket.isOk())
    return {socket.status().code() == StatusCode::Exhausted ? Attempt::Failed : Attempt::Again,
            socket.status()};
  ownAddress_ = ownAddressOf(*socket);
  Wire wire(std::move(*socket), kStrangerFrameBytesMax);
  Attempt attempt = shakeHands(wire, std::clamp(seconds, 1.0, kListenerSeconds));
  if (attempt.outcome == Attempt::Joined) {
    note(kHeardLeader);
    wire.setBytesMax(kFrameBytesMax);
    wire_ = std::move(wire);
  }
  return attempt;
}

/// Exchanges messages until the other end has shown that it knows the secret and has a place for
/// this rank.
RendezvousClient::Attempt RendezvousClient::shakeHands(Wire &wire, double seconds) {
  std::string where = endpoint(options_.address, options_.port);
  bool hasSpoken = false;
  for (double begin = now(); now() - begin < seconds;) {
    pollfd entry = {wire.fd(), static_cast<short>(POLLIN | (wire.hasUnsent() ? POLLOUT : 0)), 0};
    ::poll(&entry, 1, kBeatMilliseconds);
    bool isAlive = wire.receive();
    while (std::optional<Message> message = wire.next()) {
      hasSpoken = true;
      Attempt attempt = answer(wire, *message);
      if (attempt.outcome != Attempt::Again || !attempt.reason.isOk())
        return attempt;
      isAlive = isAlive && wire.receive();
    }
    if (!wire.flush() || !isAlive)
      return {Attempt::Again,
              wire.hasUnread() || !wire.isOpen()
                  ? notRankZero(where)
                  : makeStatus(StatusCode::Unavailable,
                               "the program that listens at {} closed the connection", where)};
  }
  return {Attempt::Again, makeStatus(StatusCode::Unavailable,
                                     "the program that listens at {} has sent {} for {:.3g} s",
                                     where, hasSpoken ? "nothing more" : "nothing", seconds)};
}

RendezvousClient::Attempt RendezvousClient::refusedBy(const std::string &where,
                                                      const std::optional<Refusal> &refusal) const {
  if (!refusal)
    return {Attempt::Again, notRankZero(where)};
  switch (refusal->reason) {
  case Refusal::AnotherSecret:
    return {Attempt::Misfit,
            makeStatus(report::OtherSecret,
                       "rank 0 at {} uses another secret than this rank, which takes "
                       "its secret from {}; set SHARDC_JOB_SECRET to the same text "
                       "for all ranks, or copy the file to all machines",
                       where, options_.secretSource)};
  case Refusal::AnotherVersion:
    return {Attempt::Misfit,
            makeStatus(report::OtherVersion, "rank 0 at {} runs another version of this program",
                       where)};
  case Refusal::AnotherJob:
    return {Attempt::Again,
            makeStatus(StatusCode::Unavailable, "{} is used by another job", where)};
  case Refusal::Complete:
    return {Attempt::Again,
            makeStatus(StatusCode::Unavailable, "the job at {} has all of its ranks", where)};
  }
  return {};
}

/// One step of the handshake. Rank 0 sends a challenge; this rank answers with its description and
/// proves with it that it knows the secret. Misfit ends the attempts, Again repeats them later.
RendezvousClient::Attempt RendezvousClient::answer(Wire &wire, const Message &message) {
  std::string where = endpoint(options_.address, options_.port);
  if (message.kind == MessageKind::Challenge && !wire.isSealed()) {
    std::optional<Challenge> challenge = unpacked<Challenge>(message.body);
    if (!challenge)
      return {Attempt::Again, notRankZero(where)};
    if (challenge->version != kProtocolVersion)
      return {Attempt::Misfit,
              makeStatus(report::OtherVersion,
                         "rank 0 at {} runs another version of this program (protocol "
                         "{}, this one has {})",
                         where, challenge->version, kProtocolVersion)};
    Hello hello = ownHello(options_.job, options_.rank, options_.worldSize);
    hello.planHash = options_.planHash;
    hello.gpu = options_.gpu;
    if (options_.problem) {
      hello.problems.push_back(*options_.problem);
      std::string &text = hello.problems.back().text;
      text.resize(std::min(text.size(), kStrangerFrameBytesMax / 2));
    }
    wire.introduce(hello, options_.secret, challenge->nonce);
    return {};
  }
  if (message.kind == MessageKind::Refused)
    return refusedBy(where, unpacked<Refusal>(message.body));
  // A sealed wire delivers only frames with a valid code, so the sender knows the job's secret.
  if (message.kind == MessageKind::Abort)
    take(message);
  return {message.kind == MessageKind::Admitted ? Attempt::Joined : Attempt::Again, {}};
}

RendezvousClient::~RendezvousClient() {
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  wake(wakeup_);
  if (thread_.joinable())
    thread_.join();
}

/// The thread's loop: receives messages, sends progress every kBeatMilliseconds, and watches
/// whether rank 0's supervisor still answers. The lock is not held while it waits.
void RendezvousClient::run() {
  sigset_t all; // the main thread handles signals
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  int beats = 0;
  while (true) {
    pollfd entries[2] = {{wakeup_.fd(), POLLIN, 0}, {}};
    {
      std::lock_guard lock(mutex_);
      bool hasUnsent = wire_.hasUnsent();
      if (isStopping_ && (!hasUnsent || isOver_))
        return;
      entries[1] = {wire_.fd(), static_cast<short>(POLLIN | (hasUnsent ? POLLOUT : 0)), 0};
    }
    int ready = ::poll(entries, 2, kBeatMilliseconds);
    clearWakeup(wakeup_);
    if (ready == 0) {
      if (++beats % kBeatsUnchanged == 0)
        sent_.reset(); // so that it is sent again
      sendProgress();
    }
    if (!serve())
      return;
    watchServer(now());
  }
}

/// Detects silence of rank 0's machine: if it fails or freezes, nothing closes the connection.
void RendezvousClient::watchServer(double seconds) {
  if (lastSeconds_ >= 0)
    clock_ += std::clamp(seconds - lastSeconds_, 0.0, kLookPauseSeconds);
  lastSeconds_ = seconds;
  double silence = clock_ - heardAt_;
  if (silence <= std::max(options_.timeoutSeconds, kSupervisorSeconds))
    return;
  endWithoutServer(makeReport(
      report::RankZeroGone,
      fmt::format("rank 0's process at {} does not respond; the timeout of {:.4g} min "
                  "(dist.distributed_timeout_minutes) has expired",
                  endpoint(options_.address, options_.port), options_.timeoutSeconds / 60)));
}

/// Ends this process because rank 0's supervisor is gone. The supervisor reports failures, but
/// cannot report its own, so one of the ranks does. If the supervisor continues after all, it
/// reports nothing further.
void RendezvousClient::endWithoutServer(const Report &report) {
  if (options_.startsAgain) // it connects again, and reports then if nobody answers
    endProcessOf(Abort{.exitStatus = kAgainStatus});
  bool isSpeaker = false;
  {
    std::lock_guard lock(mutex_);
    isSpeaker = isWelcome_ ? welcome_.isSpeaker : options_.rank == 1;
    if (wire_.isOpen()) {
      wire_.queue(MessageKind::Fail, packed(Failure{.isReported = true}));
      wire_.flush();
    }
  }
  if (isSpeaker)
    options_.emit(report);
  endProcessOf(Abort{});
}

void RendezvousClient::sendProgress() {
  RankProgress now;
  {
    std::lock_guard lock(readMutex_);
    if (read_)
      now = read_();
  }
  if (now == sent_)
    return;
  sent_ = now;
  std::lock_guard lock(mutex_);
  if ((isWelcome_ || options_.isElastic) && !isLeaving_) // also shows that the place is there
    wire_.queue(MessageKind::Progress, packed(now));
}

/// Handles the messages that have arrived. Returns false if none will follow.
bool RendezvousClient::serve() {
  std::vector<Message> messages;
  bool isAlive = false, isLeaving = false;
  {
    std::lock_guard lock(mutex_);
    isAlive = wire_.serve([&](Message &message) { messages.push_back(std::move(message)); });
    isLeaving = isLeaving_;
  }
  if (!messages.empty())
    heardAt_ = clock_;
  for (const Message &message : messages)
    take(message);
  if (isAlive)
    return true;
  if (isLeaving) {
    std::lock_guard lock(mutex_);
    isOver_ = true;
    changed_.notify_all();
    return false;
  }
  // If only this machine's relay is gone, rank 0's supervisor still runs and reports it.
  bool isRelayGone = !options_.startsAgain && !options_.relayName.empty() &&
                     connectTo(options_.address, options_.port, kLeaderSeconds).isOk();
  if (options_.hasWitness || isRelayGone)
    endProcessOf(Abort{});
  endWithoutServer(makeReport(report::RankZeroGone,
                              fmt::format("rank 0's process at {} has ended without a message",
                                          endpoint(options_.address, options_.port))));
}

/// Handles a message of rank 0's supervisor. An abort ends this process here, since its main thread
/// may be stuck in a collective.
void RendezvousClient::take(const Message &message) {
  if (message.kind == MessageKind::Abort) {
    Abort abort = unpacked<Abort>(message.body).value_or(Abort{});
    note(abort.exitStatus == kAgainStatus ? kHeardLeader : kHeardLeader | kHeardOver);
    endProcessOf(abort);
  }
  if (message.kind == MessageKind::Grow)
    growsTo_.store(static_cast<int64_t>(Unpacker(message.body).bounded(1 << 20)));
  std::lock_guard lock(mutex_);
  if (message.kind == MessageKind::Welcome) {
    if (std::optional<Welcome> welcome = unpacked<Welcome>(message.body)) {
      welcome_ = *welcome;
      options_.rank = welcome->rank;
      options_.worldSize = welcome->worldSize;
      isWelcome_ = true;
      if (options_.heard)
        options_.heard->fetch_and(~uint32_t{kHeardSpeaker});
      if (welcome->isSpeaker)
        note(kHeardSpeaker);
    }
  } else if (message.kind == MessageKind::Gathered) {
    Unpacker in(message.body);
    gathered_.clear();
    while (!in.isComplete() && !in.hasFailed())
      gathered_.push_back(in.text());
    hasGathered_ = in.isComplete();
  }
  changed_.notify_all();
}

/// Kills the ranks of this machine that do not respond, then ends the waits of this process, then
/// the process itself. If the main thread waits for this in fail(), it exits by itself.
void RendezvousClient::endProcessOf(const Abort &abort) {
  std::string server = otherEndOf(wire_.socket());
  for (const Abort::Process &process : abort.silent)
    if (process.machine == machine_)
      endRank(static_cast<pid_t>(process.pid), server);
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    callback = std::move(onAbort_);
    isOver_ = true;
    isAborting_ = static_cast<bool>(callback);
    exitStatus_ = abort.exitStatus;
  }
  if (callback) {
    // The callback may hang, for example in the driver, so it has its own thread and limited time.
    auto done = std::make_shared<std::pair<std::mutex, std::condition_variable>>();
    auto isDone = std::make_shared<bool>(false);
    std::thread aborting;
    Status started = shardc::startThread(aborting, [callback, done, isDone] {
      callback();
      std::lock_guard lock(done->first);
      *isDone = true;
      done->second.notify_all();
    });
    if (started.isOk()) {
      aborting.detach();
      std::unique_lock lock(done->first);
      done->second.wait_for(lock, kAbortGrace, [&] { return *isDone; });
    }
    std::lock_guard own(mutex_);
    isAborting_ = !*isDone;
  }
  changed_.notify_all();
  ::_exit(abort.exitStatus);
}

void RendezvousClient::send(MessageKind kind, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    wire_.queue(kind, body);
  }
  wake(wakeup_);
}

Result<std::vector<std::string>> RendezvousClient::exchange(std::string_view key,
                                                            const std::vector<int> &members,
                                                            std::string_view mine, Fold fold) {
  if (mine.size() > kBlobBytesMax)
    return makeStatus(StatusCode::Internal, "'{}': {} bytes exceed the limit of {} for an exchange",
                      key, mine.size(), kBlobBytesMax);
  {
    std::lock_guard lock(mutex_);
    hasGathered_ = false;
  }
  send(MessageKind::Gather, packed(GatherPart{std::string(key), fold, members, std::string(mine)}));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return hasGathered_ || isOver_; });
  if (!hasGathered_)
    return makeStatus(StatusCode::Aborted, "'{}': the job is over", key);
  size_t wanted = fold != Fold::Parts ? 1
                  : members.empty()   ? static_cast<size_t>(worldSize())
                                      : members.size();
  bool areKinds = fold == Fold::Kinds || fold == Fold::Repeated;
  if (areKinds ? gathered_.size() % 2 != 0 : gathered_.size() != wanted)
    return makeStatus(StatusCode::Internal, "'{}': {} parts instead of {}", key, gathered_.size(),
                      wanted);
  return std::move(gathered_);
}

/// Sends the current position of this rank before a report, since the last one that it sent may be
/// a beat old.
void RendezvousClient::sendPosition() {
  std::lock_guard lock(readMutex_);
  if (read_)
    send(MessageKind::Progress, packed(read_()));
}

void RendezvousClient::reportLost(int rank, std::string_view what) {
  sendPosition();
  send(MessageKind::Lost, Packer().number(rank).text(what).take());
}

void RendezvousClient::onAbort(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  onAbort_ = std::move(callback);
}

void RendezvousClient::watch(std::function<RankProgress()> read) {
  std::lock_guard lock(readMutex_);
  read_ = std::move(read);
}

void RendezvousClient::stopWatching() {
  std::lock_guard lock(readMutex_);
  read_ = nullptr;
}

void RendezvousClient::reportFailure(const Status &status) {
  sendFailure(Failure::of(status, kFailureStatus));
}

void RendezvousClient::sendFailure(const Failure &failure) {
  {
    std::lock_guard lock(mutex_);
    hasFailed_ = true;
  }
  sendPosition();
  send(MessageKind::Fail, packed(failure));
}

int RendezvousClient::fail(const Status &status, int exitStatus) {
  sendFailure(Failure::of(status, exitStatus));
  return awaitEnd(exitStatus);
}

int RendezvousClient::fail(std::vector<Report> errors, int exitStatus) {
  sendFailure(
      {.code = StatusCode::InvalidInput, .exitStatus = exitStatus, .reports = std::move(errors)});
  return awaitEnd(exitStatus);
}

int RendezvousClient::awaitEnd(int exitStatus) {
  std::unique_lock lock(mutex_);
  // Normally the process ends during this wait, so the objects that are being ended must stay valid
  // until then.
  changed_.wait_for(lock, kFailGrace, [&] { return isOver_ && !isAborting_; });
  return isOver_ ? exitStatus_ : exitStatus;
}

int RendezvousClient::rest() {
  if (options_.rank == 0)
    send(MessageKind::Rest, "");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return isOver_ && !isAborting_; });
  return exitStatus_;
}

void RendezvousClient::leave(int exitStatus) {
  {
    std::lock_guard lock(mutex_);
    if (!isOver_ && !hasFailed_) // otherwise rank 0's supervisor decides and sends its decision
      note(kHeardOver);
    isLeaving_ = true;
    wire_.queue(MessageKind::Bye, Packer().number(exitStatus).take());
  }
  wake(wakeup_);
}

} // namespace shardc::launch
