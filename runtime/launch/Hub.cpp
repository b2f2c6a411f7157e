#include "runtime/launch/Hub.h"

#include <algorithm>

#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/Machine.h"
#include "runtime/launch/RankReports.h"
#include "runtime/launch/StallClock.h"

namespace shardc::launch {
namespace {

constexpr double kHelloSeconds = 10; ///< until a connection has said who it is
constexpr double kCauseSeconds =
    0.5; ///< until a first failure is reported: causes may arrive later than effects
constexpr double kEffectSeconds = 2; ///< the same where only effects were heard of
constexpr double kAccusedSeconds =
    20; ///< longer still for a rank that another has lost to say why, if it lives
constexpr double kLeaveSeconds = 5;  ///< for ranks to leave once the job has failed
constexpr double kSilentSeconds = 2; ///< a rank says something this often
constexpr double kLostSeconds =
    10; ///< silence alone ends no job before this, however short its time limit is
constexpr double kMakingSeconds =
    30; ///< nor does the making of a channel, which loads libraries and waits for contexts
constexpr double kPauseSeconds = 1;  ///< beyond this between two steps this process was stopped
constexpr double kAliveSeconds = 1;  ///< this process says something this often
constexpr double kFullSeconds = 0.1; ///< until it looks again where it can have no more connections
constexpr double kShakeSeconds = 1;  ///< within which a rank has said who it is, as a rule
constexpr int64_t kStrangersMax = 128; ///< at once; more push the oldest out

} // namespace

/// A connection, and the rank behind it once it has said so.
struct Hub::Client {
  Wire wire;
  std::string address; ///< the other end's
  Nonce challenge{};
  std::optional<Hello> hello;
  bool isLeaving = false;  ///< was refused: closed once the refusal is sent
  size_t entry = SIZE_MAX; ///< among what is waited for
  double since = 0;        ///< connected
  double heardAt = 0;
  bool isDone = false, isGone = false;
  StallClock stall;
  double movedAt = 0;              ///< what it says of itself has changed
  std::optional<std::string> part; ///< in the exchange under way
  std::string gatherName;
  double gatherSince = 0;
  bool isRank() const { return hello.has_value(); }
};

/// A failure that was heard of.
struct Hub::Cause {
  int64_t rank;
  StatusCode code;
  int exitStatus;
  std::vector<Report> reports; ///< none if the rank ended without one
  bool isEffect() const { return code == StatusCode::Aborted; }
  /// An error of a device or a link. Such errors do not say which op they belong to.
  bool isOfDevice() const { return code == StatusCode::Aborted || code == StatusCode::Internal; }
};

Hub::Hub(Socket listener, HubOptions options)
    : options_(std::move(options)), listener_(std::move(listener)),
      byRank_(static_cast<size_t>(options_.worldSize)) {}

Hub::~Hub() = default;

void Hub::addTo(std::vector<pollfd> &entries) {
  entries.push_back({clock_ < acceptsFrom_ ? -1 : listener_.fd(), POLLIN, 0});
  for (const std::unique_ptr<Client> &client : clients_) {
    client->entry = entries.size();
    if (client->wire.isOpen())
      entries.push_back({client->wire.fd(),
                         static_cast<short>(POLLIN | (client->wire.hasUnsent() ? POLLOUT : 0)), 0});
  }
}

void Hub::step(double seconds, std::span<const pollfd> entries) {
  if (lastSeconds_ >= 0)
    clock_ += std::min(std::max(seconds - lastSeconds_, 0.0), kPauseSeconds);
  lastSeconds_ = seconds;
  if (options_.problem && !isEnding_)
    end(kInputStatus, {*options_.problem});
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client &client = *clients_[i];
    bool isReady = client.entry < entries.size() && entries[client.entry].revents != 0;
    if (client.wire.isOpen() && (isReady || client.wire.hasUnsent() || !client.isRank()))
      serve(client);
  }
  accept();
  std::erase_if(clients_, [](const std::unique_ptr<Client> &client) {
    return !client->wire.isOpen() && !client->isRank();
  });
  strangers_ = std::ranges::count_if(
      clients_, [](const std::unique_ptr<Client> &client) { return !client->isRank(); });
  if (isEnding_)
    return endSilent();
  showLife();
  checkTimes();
  decide();
}

/// Some at a time, so that ranks are served while others come by the thousand.
void Hub::accept() {
  for (int64_t i = 0; i < kStrangersMax && clock_ >= acceptsFrom_; ++i) {
    Result<Socket> socket = acceptOne(listener_);
    if (!socket.isOk()) {
      shutOut(socket.status());
      continue;
    }
    if (!socket->isOpen())
      return;
    if (strangers_ >= kStrangersMax)
      dropOldestStranger(0);
    auto client = std::make_unique<Client>();
    client->address = otherAddressOf(*socket);
    client->wire = Wire(std::move(*socket), kStrangerFrameBytesMax);
    client->since = client->heardAt = clock_;
    client->challenge = randomBytes32();
    client->wire.queue(MessageKind::Challenge, Challenge{.nonce = client->challenge}.pack());
    client->wire.flush();
    clients_.push_back(std::move(client));
    ++strangers_;
  }
}

/// A connection waits that cannot be accepted, usually because no descriptors are left. It has to
/// wait for connections that have not identified themselves. If there are none, it may be a rank,
/// as long as not all have arrived.
void Hub::shutOut(const Status &status) {
  if (status.code() == StatusCode::Exhausted && dropOldestStranger(kShakeSeconds))
    return;
  acceptsFrom_ = clock_ + kFullSeconds;
  if (strangers_ == 0 && !isRunning_ && !isEnding_)
    end(kInputStatus,
        {makeReport(report::CannotListen,
                    fmt::format("rank 0's supervisor: {}; {} of {} ranks have connected; it needs "
                                "a descriptor for each ('ulimit -n')",
                                status.message(), joined_, options_.worldSize))});
}

/// One that has been there for so long.
bool Hub::dropOldestStranger(double seconds) {
  for (const std::unique_ptr<Client> &client : clients_)
    if (!client->isRank() && client->wire.isOpen() && clock_ - client->since >= seconds) {
      turnAway(*client, "too many connections have not identified themselves");
      --strangers_;
      return true;
    }
  return false;
}

void Hub::serve(Client &client) {
  bool isAlive = client.wire.receive();
  while (std::optional<Message> message = client.wire.next()) {
    client.heardAt = clock_;
    handle(client, *message);
    isAlive = isAlive && client.wire.receive();
  }
  isAlive = client.wire.flush() && isAlive;
  if (client.isRank()) {
    if (isAlive)
      return;
    client.wire.close();
    return noteGone(client);
  }
  bool isLate = clock_ - client.since > kHelloSeconds;
  if (client.isLeaving && (!client.wire.hasUnsent() || !isAlive || isLate))
    client.wire.close();
  else if (!isAlive && client.wire.isOpen())
    turnAway(client, client.wire.hasUnread() ? "its data are not a message of a rank"
                                             : "it closed before it identified itself");
  else if (isLate && client.wire.isOpen())
    turnAway(client, "it did not identify itself within 10 s");
}

void Hub::handle(Client &client, const Message &message) {
  if (!client.isRank()) {
    if (message.kind == MessageKind::Hello && !client.isLeaving)
      return admit(client, message.body);
    return turnAway(client, "its data are not a message of a rank");
  }
  if (!hasCode(message.kind))
    return client.wire.close();
  int64_t rank = client.hello->rank;
  switch (message.kind) {
  case MessageKind::Gather:
    return gather(client, message.body);
  case MessageKind::Progress:
    return noteProgress(client, message.body);
  case MessageKind::Lost: {
    Unpacker in(message.body);
    auto lost = static_cast<int64_t>(in.bounded(1 << 20));
    std::string what = in.text();
    if (in.isComplete() && lost < options_.worldSize)
      lostIn_.emplace(lost, fmt::format("rank {} waited for it in '{}'", rank, what));
    return blame(rank, StatusCode::Aborted, kFailureStatus,
                 {makeReport(report::RankLost, lost, what)});
  }
  case MessageKind::Fail:
    if (std::optional<Failure> failure = Failure::unpack(message.body)) {
      if (failure->isTold && !isEnding_)
        return end(failure->exitStatus, {});
      blame(rank, failure->code, failure->exitStatus, std::move(failure->reports));
    }
    return;
  case MessageKind::Bye: {
    Unpacker in(message.body);
    exitStatus_ = std::max(exitStatus_, static_cast<int>(in.bounded(255)));
    done_ += !client.isDone;
    client.isDone = true;
    return;
  }
  default:
    return client.wire.close();
  }
}

/// 1. A connection that does not know the secret, or is of another launch, is refused and changes
/// nothing. 2. A rank of this job that arrives after all ranks is refused too. 3. Before that, a
/// rank that does not match ends the job: no rank begins.
void Hub::admit(Client &client, const std::string &body) {
  std::optional<std::string_view> opened = Hello::open(body, options_.secret, client.challenge);
  if (!opened)
    return refuse(client, Refusal::AnotherSecret);
  std::optional<Hello> hello = Hello::unpack(*opened);
  if (!hello)
    return turnAway(client, "its data are not a message of a rank");
  if (hello->job != options_.job)
    return refuse(client, Refusal::AnotherJob);
  if (hello->version == kProtocolVersion) {
    WireKeys keys(options_.secret, client.challenge, hello->nonce);
    client.wire.seal(keys.toRank, keys.toHub);
  }
  if (isEnding_ && client.wire.isSealed()) // a rank that arrives late also learns it
    return tellOver(client);
  if (isRunning_ || isEnding_)
    return refuse(client, Refusal::Complete);
  if (std::vector<Report> faults = findFaults(*hello); !faults.empty()) {
    blame(-1, StatusCode::InvalidInput, kInputStatus, std::move(faults));
    return client.wire.isSealed() ? tellOver(client) : refuse(client, Refusal::AnotherVersion);
  }
  client.hello = std::move(*hello);
  client.wire.setBytesMax(kRankFrameBytesMax);
  client.wire.queue(MessageKind::Admitted, "");
  byRank_[static_cast<size_t>(client.hello->rank)] = &client;
  if (++joined_ == options_.worldSize)
    welcomeAll();
}

std::vector<Report> Hub::findFaults(const Hello &hello) const {
  if (hello.version != kProtocolVersion)
    return {makeReport(
        report::OtherVersion,
        fmt::format("a rank runs another version of this program (protocol {}, rank 0 has {})",
                    hello.version, kProtocolVersion))};
  std::string who = fmt::format("process {} on {}", hello.pid, hello.host);
  auto disagree = [](std::string text) -> std::vector<Report> {
    return {makeReport(report::RanksDisagree, text)};
  };
  if (hello.worldSize != options_.worldSize)
    return disagree(fmt::format("rank {} ({}) was started as one of {} ranks, rank 0 as one of {}",
                                hello.rank, who, hello.worldSize, options_.worldSize));
  if (hello.rank >= options_.worldSize)
    return disagree(fmt::format("{} was started as rank {}; {} ranks are numbered 0 to {}", who,
                                hello.rank, options_.worldSize, options_.worldSize - 1));
  if (const Client *other = byRank_[static_cast<size_t>(hello.rank)])
    return disagree(fmt::format("two processes were started as rank {}: process {} on {} and {}",
                                hello.rank, other->hello->pid, other->hello->host, who));
  if (hello.problems.empty() && hello.planHash != options_.planHash)
    return {makeReport(report::OtherPlan, hello.rank, who)};
  std::vector<Report> problems = hello.problems;
  for (Report &problem : problems)
    problem.text = fmt::format("rank {}: {}", hello.rank, problem.text);
  return problems;
}

/// Closes a connection that is not a rank's.
void Hub::turnAway(Client &client, const char *why) {
  client.wire.close();
  warnOnce(client, why);
}

/// Only the first one is reported. It may be a rank that was started in a wrong way; the others may
/// be a flood.
void Hub::warnOnce(const Client &client, const char *why) {
  if (!hasWarned_)
    options_.tell(makeReport(report::ConnectionRefused, client.address, options_.where, why));
  hasWarned_ = true;
}

/// Where it has no code: the other end takes it for what somebody said, and no more.
void Hub::refuse(Client &client, Refusal::Reason reason) {
  client.wire.queue(MessageKind::Refused, Refusal{reason}.pack());
  client.wire.flush();
  client.isLeaving = true;
  if (reason == Refusal::AnotherSecret)
    warnOnce(client, "it does not know the job's secret");
}

/// Answers a connection that knows the secret when the job is over or about to end.
void Hub::tellOver(Client &client) {
  Abort abort;
  abort.exitStatus = isEnding_ ? exitStatus_ : kInputStatus;
  client.wire.queue(MessageKind::Abort, abort.pack());
  client.wire.flush();
  client.isLeaving = true;
}

void Hub::showLife() {
  if (clock_ - aliveAt_ < kAliveSeconds)
    return;
  aliveAt_ = clock_;
  for (Client *client : byRank_)
    if (client && client->wire.isOpen() && !client->wire.hasUnsent())
      client->wire.queue(MessageKind::Alive, "");
}

void Hub::welcomeAll() {
  isRunning_ = true;
  Welcome welcome;
  welcome.nonce = randomBytes32();
  std::map<std::string, int64_t> count;
  for (const Client *client : byRank_)
    ++count[client->hello->machine];
  // The rank that reports the end of this process: one on another machine, since this one may fail
  // completely.
  auto speaker = std::ranges::find_if(byRank_, [&](const Client *client) {
    return client->hello->machine != byRank_.front()->hello->machine;
  });
  if (speaker == byRank_.end())
    speaker = byRank_.begin() + (byRank_.size() > 1 ? 1 : 0);
  for (Client *client : byRank_) {
    welcome.localSize = count[client->hello->machine];
    welcome.isSpeaker = client == *speaker;
    client->wire.queue(MessageKind::Welcome, welcome.pack());
    client->heardAt = clock_;
  }
}

/// Parts of all ranks go back to all of them. Ranks that are in different exchanges at the same
/// time disagree about the program; a timeout or the failure of one of them reports it.
void Hub::gather(Client &client, const std::string &body) {
  Unpacker in(body);
  client.gatherName = in.text();
  client.part = in.text();
  client.gatherSince = clock_;
  if (!isRunning_ || !in.isComplete() || client.part->size() > kBlobBytesMax)
    return client.wire.close();
  for (const Client *other : byRank_)
    if (!other->part)
      return;
  Packer all;
  for (Client *other : byRank_) {
    if (other->gatherName != client.gatherName)
      return blame(other->hello->rank, StatusCode::Internal, kFailureStatus,
                   {makeReport(report::ExchangesDiffer,
                               fmt::format("it is at '{}', rank {} at '{}'", other->gatherName,
                                           client.hello->rank, client.gatherName))});
    all.text(*other->part);
    other->part.reset();
  }
  std::string text = all.take();
  for (Client *other : byRank_)
    other->wire.queue(MessageKind::Gathered, text);
}

void Hub::noteProgress(Client &client, const std::string &body) {
  std::optional<Snapshot> now = Snapshot::unpack(body);
  if (!now)
    return client.wire.close();
  if (*now != client.stall.last())
    client.movedAt = clock_;
  client.stall.update(*now, clock_);
}

void Hub::noteGone(Client &client) {
  if (client.isDone || client.isGone)
    return;
  client.isGone = true;
  blame(client.hello->rank, StatusCode::Unavailable, kFailureStatus, {});
}

void Hub::rankEnded(int64_t pid, const std::string &how) {
  howEnded_[pid] = how;
  for (const Client *client : byRank_)
    if (client && client->hello->pid == pid)
      return; // its connection says the rest
  blame(-1, StatusCode::Unavailable, kFailureStatus,
        {makeReport(report::RankEnded,
                    fmt::format("process {} {} before it joined the other ranks", pid, how))});
}

void Hub::blame(int64_t rank, StatusCode code, int exitStatus, std::vector<Report> reports) {
  if (isEnding_)
    return;
  for (Cause &cause : causes_)
    if (cause.rank == rank && rank >= 0) {
      if (cause.isEffect() && code != StatusCode::Aborted)
        cause = {rank, code, exitStatus, std::move(reports)};
      return;
    }
  causes_.push_back({rank, code, exitStatus, std::move(reports)});
  if (decideAt_ < 0)
    decideAt_ = clock_ + kEffectSeconds;
  if (causes_.back().isEffect())
    return;
  decideAt_ = std::min(decideAt_, clock_ + kCauseSeconds);
}

/// Causes come before effects, what a rank says itself before its silence, lower ranks first.
void Hub::decide() {
  if (decideAt_ < 0)
    return;
  bool hasHeardAll = static_cast<int64_t>(causes_.size()) >= options_.worldSize;
  auto weight = [](const Cause &cause) {
    return cause.isEffect() ? 2 : cause.code == StatusCode::Unavailable ? 1 : 0;
  };
  auto first = std::ranges::min_element(causes_, [&](const Cause &a, const Cause &b) {
    return std::pair(weight(a), a.rank) < std::pair(weight(b), b.rank);
  });
  if (clock_ < decideAt_ && !hasHeardAll && weight(*first) != 0)
    return;
  if (clock_ < decideAt_ && !hasHeardAll && first->rank >= 0)
    return; // another rank may have failed alike
  if (clock_ < decideAt_ + kAccusedSeconds && first->isEffect() && isOneAccusedSilent())
    return;
  end(first->exitStatus, reportsOf(*first));
}

/// Whether a rank that another has lost has not said yet what happened to it: it closes its
/// connections first, and under load its own word may come much later.
bool Hub::isOneAccusedSilent() const {
  return std::ranges::any_of(lostIn_, [this](const auto &lost) {
    return std::ranges::none_of(causes_,
                                [&](const Cause &cause) { return cause.rank == lost.first; });
  });
}

std::vector<Report> Hub::reportsOf(const Cause &cause) const {
  if (cause.rank < 0)
    return cause.reports;
  const Client &client = *byRank_[static_cast<size_t>(cause.rank)];
  if (cause.reports.empty())
    return {reportOfEnded(client)};
  bool isCommon =
      options_.worldSize > 1 && static_cast<int64_t>(causes_.size()) == options_.worldSize &&
      std::ranges::all_of(causes_,
                          [&](const Cause &other) { return other.reports == cause.reports; });
  std::string place = cause.isOfDevice() && options_.describe
                          ? options_.describe(client.stall.last())
                          : std::string();
  std::vector<Report> reports = cause.reports;
  for (Report &report : reports) {
    if (report.text.starts_with("rank "))
      continue;
    if (!place.empty())
      report.text = fmt::format("rank {}: {}; it was {}", cause.rank, report.text, place);
    else if (!isCommon)
      report.text = fmt::format("rank {}: {}", cause.rank, report.text);
  }
  return reports;
}

Report Hub::reportOfEnded(const Client &client) const {
  auto how = howEnded_.find(client.hello->pid);
  std::string text = fmt::format("rank {} (process {} on {}) {}", client.hello->rank,
                                 client.hello->pid, client.hello->host,
                                 how != howEnded_.end() ? how->second : "ended without a message");
  std::string place = options_.describe ? options_.describe(client.stall.last()) : "";
  if (auto lost = lostIn_.find(client.hello->rank); lost != lostIn_.end())
    text += "; " + lost->second;
  else if (!place.empty())
    text += "; it was " + place;
  return makeReport(report::RankEnded, text);
}

void Hub::checkTimes() {
  if (!isRunning_ && clock_ > options_.joinSeconds)
    return end(kInputStatus, {makeReport(report::RanksMissing, missingRanks(), options_.worldSize,
                                         options_.where, options_.joinSeconds)});
  if (isRunning_)
    checkStall();
  if (isRunning_ && !isEnding_)
    checkAskedToEnd();
}

/// A job that was asked to end does so after a step that all ranks come to. If nobody moves any
/// more there is no such step.
void Hub::checkAskedToEnd() {
  bool isAsked = false;
  double movedAt = 0;
  for (const Client *client : byRank_) {
    isAsked = isAsked || client->stall.last().isAsked;
    movedAt = std::max(movedAt, client->movedAt);
  }
  if (!isAsked || clock_ - movedAt <= kAskedSeconds)
    return;
  std::vector<Snapshot> snapshots;
  for (const Client *client : byRank_)
    snapshots.push_back(client->stall.last());
  std::string text = options_.explainStall ? options_.explainStall(snapshots, -1) : "";
  end(kFailureStatus,
      {makeReport(report::RankStuck,
                  fmt::format("{}{}the job was asked to end, but it has made no progress for "
                              "{:.3g} s",
                              text, text.empty() ? "" : "; ", kAskedSeconds))});
}

/// Three things end a job whose work has stopped: a rank that stays in an exchange or a collective
/// too long, and one that is silent for as long. A rank may also wait for the last one without any
/// sign of it: libraries make connections before any collective.
void Hub::checkStall() {
  std::vector<Snapshot> snapshots;
  const Client *late = nullptr, *inExchange = nullptr, *quiet = nullptr;
  double silence = kSilentSeconds; // the longest, beyond what is usual
  bool missingWaits = false;       // one that is not in an exchange is not what holds it up
  for (const Client *client : byRank_) {
    snapshots.push_back(client->stall.last());
    if (client->part) // whichever rank is late, this one waits itself
      snapshots.back().words = {ProgressWord::kExchanging};
    else
      missingWaits =
          missingWaits || std::ranges::any_of(snapshots.back().words, ProgressWord::isInside);
    if (!client->isDone && clock_ - client->heardAt > silence) {
      silence = clock_ - client->heardAt;
      quiet = client;
    }
    if (client->part && (!inExchange || client->gatherSince < inExchange->gatherSince))
      inExchange = client;
    bool isLate =
        client->stall.longestStay(clock_) > options_.timeoutSeconds ||
        client->stall.longestMaking(clock_) > std::max(options_.timeoutSeconds, kMakingSeconds);
    if (!late && !client->isDone && isLate)
      late = client;
  }
  bool isExchangeLate = inExchange && clock_ - inExchange->gatherSince > options_.timeoutSeconds;
  bool isLost = quiet && silence > std::max(options_.timeoutSeconds, kLostSeconds);
  if (!late && !isExchangeLate && !isLost)
    return;
  std::string limit =
      fmt::format("the timeout of {:.4g} min (dist.distributed_timeout_minutes) has expired",
                  options_.timeoutSeconds / 60);
  if (!missingWaits && (isExchangeLate || (inExchange && isLost && !quiet->part)))
    return end(kFailureStatus,
               {makeReport(report::RankStuck,
                           fmt::format("rank {} did not reach '{}', where rank {} waits; {}",
                                       missingRanks(), inExchange->gatherName,
                                       inExchange->hello->rank, limit))});
  int silent = quiet ? static_cast<int>(quiet->hello->rank) : -1;
  std::string text = options_.explainStall ? options_.explainStall(snapshots, silent)
                     : late ? fmt::format("rank {} is stuck in a collective", late->hello->rank)
                            : fmt::format("rank {} does not respond", silent);
  end(kFailureStatus, {makeReport(report::RankStuck, fmt::format("{}; {}", text, limit))});
}

/// Ranks that have not joined or, while running, not come to the exchange.
std::string Hub::missingRanks() const {
  std::vector<int64_t> missing;
  for (size_t r = 0; r < byRank_.size(); ++r)
    if (!byRank_[r] || (isRunning_ && !byRank_[r]->part))
      missing.push_back(static_cast<int64_t>(r));
  return rangesOf(missing);
}

void Hub::stopAtOnce() {
  if (!isEnding_)
    end(kFailureStatus, {});
}

void Hub::end(int exitStatus, const std::vector<Report> &reports) {
  isEnding_ = true;
  endedAt_ = clock_;
  exitStatus_ = exitStatus;
  for (const Report &report : reports)
    options_.tell(report);
  Abort abort;
  abort.exitStatus = exitStatus;
  for (const Client *client : byRank_)
    if (client && client->wire.isOpen() && !client->isDone &&
        clock_ - client->heardAt > kSilentSeconds)
      abort.silent.push_back({client->hello->machine, client->hello->pid});
  std::string body = abort.pack();
  for (const std::unique_ptr<Client> &client : clients_) {
    if (client->wire.isOpen() && client->isRank()) {
      client->wire.queue(MessageKind::Abort, body);
      client->wire.flush();
    }
  }
}

/// Ranks of this machine that neither leave nor answer are ended from here.
void Hub::endSilent() {
  if (hasEndedSilent_ || clock_ - endedAt_ < kSilentSeconds)
    return;
  hasEndedSilent_ = true;
  std::string here = machineId();
  for (const Client *client : byRank_)
    if (client && client->wire.isOpen() && client->hello->machine == here &&
        client->heardAt < endedAt_)
      endRank(static_cast<pid_t>(client->hello->pid), ownEndOf(client->wire.socket()));
}

bool Hub::isOver() const {
  if (!isEnding_)
    return done_ == options_.worldSize;
  bool areAllTold = joined_ == options_.worldSize &&
                    std::ranges::all_of(clients_, [](const std::unique_ptr<Client> &client) {
                      return !client->isRank() || !client->wire.isOpen();
                    });
  return areAllTold || clock_ - endedAt_ > kLeaveSeconds;
}

} // namespace shardc::launch
