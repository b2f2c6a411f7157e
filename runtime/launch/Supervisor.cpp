#include "runtime/launch/Supervisor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <sys/socket.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/EndSignals.h"
#include "runtime/base/ExitStatus.h"
#include "runtime/base/Notice.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Socket.h"
#include "runtime/base/Status.h"
#include "runtime/launch/Machine.h"
#include "runtime/launch/RankReports.h"

namespace shardc::launch {
namespace {

ssize_t readByte(int fd) {
  char byte = 0;
  ssize_t got = 0;
  do
    got = ::read(fd, &byte, 1);
  while (got < 0 && errno == EINTR);
  return got;
}

/// Waits for the end of the supervisor and does nothing else. Signals that end the run do not
/// concern it.
[[noreturn]] void watch(int end, const std::function<void()> &emit) {
  for (int number : endSignals())
    ::signal(number, SIG_IGN);
  if (readByte(end) == 0)
    emit();
  ::_exit(0);
}

/// A process that watches a supervisor that starts all ranks of a run. If the supervisor is killed,
/// its ranks are killed with it, and none of them could report it.
class Witness {
public:
  Witness() = default;
  Witness(const Witness &) = delete;
  Witness &operator=(const Witness &) = delete;

  /// Tells the process that the supervisor ends by itself.
  ~Witness() {
    if (!end_.isOpen())
      return;
    if (::send(end_.fd(), "", 1, MSG_NOSIGNAL) == 1)
      readByte(end_.fd()); // returns once the witness is gone
  }

  /// Starts the process. It calls `emit` once the calling process, and every process that this one
  /// starts later, is gone without having announced its end. Must be called while the calling
  /// process has one thread.
  Status start(const std::function<void()> &emit) {
    int ends[2] = {-1, -1};
    pid_t child = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? ::fork() : -1;
    Socket own(ends[0]), other(ends[1]);
    if (child < 0)
      return makeStatus(StatusCode::Exhausted, "cannot start a process: {}", std::strerror(errno));
    if (child == 0) { // its child has no parent, so that this process waits only for ranks
      own.close();
      if (::fork() == 0)
        watch(other.fd(), emit);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    end_ = std::move(own);
    return Status::ok();
  }

private:
  Socket end_;
};

constexpr double kKillSeconds = 6; ///< longest wait for processes to end after a failure
constexpr int kPollMilliseconds = 100;
/// Longest time in seconds for which a restarted rank waits for rank 0's supervisor, which normally
/// answers within seconds.
constexpr double kAskAgainSeconds = 120;

double secondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string howEnded(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

/// The times at which the job first reached each step, as far as its ranks have reported. They
/// report a few times a second, so the times are slightly late, and some steps are missing.
class StepLog {
public:
  /// Begins, or begins again, after a step.
  void begin(int64_t step, double now) { at_ = {{step, now}}; }
  void reached(int64_t step, double now) {
    if (step <= at_.rbegin()->first)
      return;
    at_.emplace_hint(at_.end(), step, now);
    if (at_.size() > kStepsMax)
      at_.erase(at_.begin());
  }
  /// Returns the last known time at which the job had not advanced beyond this step.
  double lastAt(int64_t step) const {
    auto next = at_.upper_bound(step);
    return next == at_.begin() ? next->second : std::prev(next)->second;
  }

private:
  static constexpr size_t kStepsMax = 100'000;
  std::map<int64_t, double> at_ = {{0, secondsNow()}};
};

class Supervisor {
public:
  explicit Supervisor(const SupervisorOptions &options)
      : options_(options), isLaunched_(options.position.launcher != Launcher::Plain),
        leader_(options.restarts.restartsMax), follower_(options.restarts.restartsMax > 0) {
    if (options.elastic.isElastic() && holdsServer())
      elastic_.emplace(options.elastic);
  }

  /// Starts everything in the order in which it can fail: listener, signals, witness, memory,
  /// ranks. Then it waits for events until the job is over, and returns the exit status.
  int run(const std::function<int(RendezvousClientOptions &)> &work) {
    if (Status status = openListener(); !status.isOk()) {
      options_.emit(status.report());
      return kInputStatus;
    }
    if (!blockSignals()) {
      options_.emit(makeReport(report::ProcessNotStarted,
                               fmt::format("cannot wait for signals: {}", std::strerror(errno))));
      return kFailureStatus;
    }
    if (Status status = startWitness(); !status.isOk()) {
      options_.emit(makeReport(report::ProcessNotStarted, status.message()));
      return kFailureStatus;
    }
    if (Status status = mapHeldMemory(); !status.isOk()) {
      options_.emit(status.report());
      return kFailureStatus;
    }
    work_ = &work;
    startRanks();
    // Signals have been blocked since blockSignals, so none is lost between the two ways of
    // handling them.
    if (options_.isAsked && options_.isAsked()) // processes started since then know it too
      takeRequest();
    while (!isOver()) {
      wait();
      goOn();
    }
    return exitStatus();
  }

private:
  struct Child {
    pid_t pid = 0;
    int status = 0;
    bool hasEnded = false;
    double stoppedAt = -1;
  };

  void startRanks() {
    children_.clear();
    failedAt_ = -1;
    int64_t first = isLaunched_ ? options_.position.rank : 0;
    int64_t count = isLaunched_ ? 1 : options_.processes();
    for (int64_t rank = first; rank < first + count; ++rank)
      if (!(elastic_ && !isLaunched_ && elastic_->isLeftOut(rank)) && !start(rank))
        break;
  }

  /// Carries out the decisions of the state machines of restarts.
  void goOn() {
    if (leader_.state() == RestartLeader::State::Ends && isAttemptOver())
      prepareRestart();
    if (leader_.startsNow(secondsNow()))
      startRanks();
    if (follower_.startsNow(secondsNow())) {
      worker_.connectSeconds = std::min(options_.timeoutSeconds, kAskAgainSeconds);
      startRanks();
    }
  }

  /// Opens the server of the next attempt before its own ranks start, so that others find it.
  void prepareRestart() {
    Attempt attempt = leader_.ended(secondsNow(), options_.restarts.newestSave());
    int64_t step = std::max<int64_t>(attempt.savedStep, 0);
    double now = secondsNow();
    if (!leader_.isInOrder()) {
      lostSince_ = log_.lastAt(step);
      options_.restarts.note({cause_, attempt, options_.restarts.restartsMax, now - lostSince_});
      if (leftOut_)
        options_.emit(makeReport(report::PlaceLeftOut, *leftOut_));
      leftOut_.reset();
    }
    log_.begin(step, now);
    failedAt_ = -1;
    children_.clear();
    openServer(attempt);
  }

  /// Decides on an event that ends the attempt.
  Aftermath judge(const Downfall &fall) {
    if (fall.isInOrder) {
      lostSince_ = secondsNow();
      return {.startsAgain = leader_.resizes(), .last = {}};
    }
    cause_ = fall.reports.empty()
                 ? makeReport(report::RankEnded, "a rank ended on account of another one")
                 : fall.reports.front();
    bool isFinal = fall.exitStatus != kFailureStatus;
    // The ranks' reports of their steps may be older than a save.
    int64_t step = std::max(fall.step, options_.restarts.newestSave());
    bool isMended = !isFinal && leavesOut(rankNamedBy(cause_.text));
    switch (leader_.faulted({std::string(cause_.id), step, isFinal, isMended})) {
    case RestartLeader::Verdict::Again:
      return {.startsAgain = true, .last = {}};
    case RestartLeader::Verdict::UsedUp:
      return {.startsAgain = false,
              .last = makeReport(report::RestartsUsedUp, leader_.restartsMax())};
    case RestartLeader::Verdict::CameBack:
      return {.startsAgain = false, .last = makeReport(report::FaultCameBack, step)};
    case RestartLeader::Verdict::NoRestarts:
    case RestartLeader::Verdict::Final:
    case RestartLeader::Verdict::Asked:
      break;
    }
    return {};
  }

  /// Whether the job continues without the place of this rank from now on.
  bool leavesOut(std::optional<int64_t> rank) {
    if (!elastic_ || !rank || *rank >= std::ssize(elastic_->crew()))
      return false;
    int64_t place = elastic_->crew()[static_cast<size_t>(*rank)];
    if (!elastic_->accuse(*rank, options_.restarts.newestSave()))
      return false;
    leftOut_ = place;
    return true;
  }

  /// Reports that the ranks run at other places than before.
  void begins(const Crew &crew, const Attempt &attempt) {
    Crew before = std::exchange(crew_, crew);
    if (before.empty()) {
      before.resize(static_cast<size_t>(options_.worldSize));
      std::iota(before.begin(), before.end(), 0);
    }
    if (crew != before)
      options_.noteCrew(
          {before, crew, whyOther(before, crew), attempt.savedStep, secondsNow() - lostSince_});
  }

  static std::string whyOther(const Crew &before, const Crew &now) {
    Crew gone, come;
    std::ranges::set_difference(before, now, std::back_inserter(gone));
    std::ranges::set_difference(now, before, std::back_inserter(come));
    std::string text;
    if (!gone.empty())
      text = fmt::format("process{} {} missing", gone.size() == 1 ? "" : "es",
                         rangesOf(gone) + (gone.size() == 1 ? " is" : " are"));
    if (!come.empty())
      text += fmt::format("{}process{} {} connected", text.empty() ? "" : ", ",
                          come.size() == 1 ? "" : "es",
                          rangesOf(come) + (come.size() == 1 ? " has" : " have"));
    return text;
  }

  bool holdsServer() const { return !isLaunched_ || options_.position.rank == 0; }

  /// Opens the port of rank 0 at the address that the others connect to. Without a launcher, all
  /// processes meet on this machine.
  Status openListener() {
    worker_.job = launchName(options_.position);
    worker_.secret = isLaunched_ ? options_.secret.key : randomBytes32();
    worker_.secretSource = isLaunched_ ? options_.secret.source : "this start";
    worker_.rank = options_.position.rank;
    worker_.worldSize = isLaunched_ ? options_.position.worldSize : options_.processes();
    worker_.planHash = options_.planHash;
    worker_.emit = options_.emit;
    worker_.joinSeconds = worker_.timeoutSeconds = options_.timeoutSeconds;
    worker_.problem = options_.problem;
    worker_.hasWitness = !isLaunched_;
    worker_.isElastic = options_.elastic.isElastic();
    worker_.startsAgain = isLaunched_ && options_.restarts.restartsMax > 0;
    if (worker_.startsAgain && !holdsServer())
      RETURN_IF_ERROR(makeHeard());
    worker_.address = isLaunched_ ? options_.position.masterAddress : "127.0.0.1";
    worker_.port = isLaunched_ ? options_.rendezvousPort : 0;
    nameRelay();
    if (!holdsServer())
      return Status::ok();
    raiseFileLimit();
    Result<Socket> listener = listenOn(worker_.address, worker_.port);
    if (!listener.isOk())
      return listenError(listener.status());
    worker_.port = portOf(*listener);
    listener_ = std::move(*listener);
    openServer({});
    return Status::ok();
  }

  /// Ranks of other machines than rank 0's connect through a relay that one of their supervisors
  /// runs.
  void nameRelay() {
    const JobPosition &position = options_.position;
    // Ranks of a node need not be consecutive, so the node's number is used if it is known.
    int64_t node = position.node >= 0 ? position.node : position.rank - position.localRank;
    if (!isLaunched_ || node <= 0)
      return;
    AuthCode code = authCode(worker_.secret, {"relay", worker_.job, std::to_string(node),
                                              worker_.address, std::to_string(worker_.port)});
    worker_.relayName = "shardc-";
    for (uint8_t byte : code)
      worker_.relayName += fmt::format("{:02x}", byte);
    openRelay();
  }

  void openRelay() {
    RelayOptions relay{worker_};
    relay.localSize = options_.position.localSize;
    relay.stageOf = options_.stageOf;
    relay_.emplace(std::move(relay));
  }

  /// Serves the relay. Each start of the ranks has its own. Other supervisors of this machine may
  /// need one as long as their ranks look for it.
  void serveRelay(std::span<const pollfd> entries) {
    if (!relay_)
      return;
    bool isLast = std::ranges::all_of(children_, &Child::hasEnded) && !follower_.isPausing();
    if (isLast)
      relay_->rankEnded();
    relay_->step(secondsNow(), entries);
    if (relay_->hasGivenUp()) {
      failedToStart_ = true;
      follower_.over();
      return killAll();
    }
    if (relay_->isJobOver())
      follower_.over();
    else if (relay_->isOver() && worker_.startsAgain && !isLast)
      openRelay();
  }

  /// Creates the memory for the events that a rank of this supervisor has seen. Both processes
  /// share it.
  Status makeHeard() {
    void *page = ::mmap(nullptr, sizeof(std::atomic<uint32_t>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
      return makeStatus(StatusCode::Exhausted, "cannot share memory with a rank: {}",
                        std::strerror(errno));
    // One rank reports if rank 0's supervisor is lost. Until that supervisor has chosen it, it is
    // rank 1.
    bool isSpeaker = options_.position.rank == 1;
    worker_.heard = new (page) std::atomic<uint32_t>(isSpeaker ? uint32_t{kHeardSpeaker} : 0);
    return Status::ok();
  }

  /// Maps the memory held for ranks, which is zero until it is written. The processes of ranks
  /// inherit it, and it outlives them.
  Status mapHeldMemory() {
    int64_t ranks = isLaunched_ ? 1 : options_.processes();
    if (options_.held.bytes() == 0)
      return Status::ok();
    auto bytes = static_cast<size_t>(options_.held.bytes() * ranks);
    void *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return makeStatus(StatusCode::Exhausted, "cannot map {} bytes for saves in memory: {}", bytes,
                        std::strerror(errno));
    held_ = {static_cast<uint8_t *>(memory), bytes};
    return Status::ok();
  }

  /// Opens the server of an attempt. All attempts use one port, which stays open in between.
  void openServer(const Attempt &attempt) {
    RendezvousOptions server{options_};
    server.worldSize = worker_.worldSize;
    server.secret = worker_.secret;
    server.job = worker_.job;
    server.where = endpoint(worker_.address, worker_.port);
    // A rank that cannot reach this address knows more than this process, so it may report first.
    server.joinSeconds = options_.timeoutSeconds + 2 + attempt.pause;
    server.attempt = attempt;
    if (options_.restarts.restartsMax > 0)
      server.judge = [this](const Downfall &fall) { return judge(fall); };
    if (elastic_) {
      elastic_->open(attempt.pause, attempt.savedStep, leader_.isInOrder());
      server.elastic = &*elastic_;
      server.begins = [this, attempt](const Crew &crew) { begins(crew, attempt); };
    }
    server.hasFollowers = isLaunched_ && options_.restarts.restartsMax > 0;
    if (options_.stageOf)
      server.stageOf = [this](int64_t rank) {
        return options_.stageOf(rank, crew_.empty() ? options_.worldSize : std::ssize(crew_));
      };
    server_.emplace(Socket(::fcntl(listener_.fd(), F_DUPFD_CLOEXEC, 0)), std::move(server));
  }

  Status listenError(const Status &status) const {
    std::string way = "MASTER_ADDR must be an address of the machine that rank 0 runs on";
    if (status.code() == StatusCode::Exhausted) {
      std::string holder = portHolder(worker_.port);
      way = fmt::format("{}choose another port by dist.rendezvous_port",
                        holder.empty() ? "" : "it is held by " + holder + "; ");
    } else if (status.code() == StatusCode::Io) {
      way = "it needs a descriptor for each rank of this machine and each relay ('ulimit -n')";
    }
    return makeStatus(report::CannotListen, "rank 0 {}; {}", status.message(), way);
  }

  /// Raises the limit of open files: each rank of this machine needs a connection, and in a plain
  /// start all ranks are on this machine.
  static void raiseFileLimit() {
    rlimit limit = {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
      return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }

  bool blockSignals() {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGCHLD);
    for (int number : endSignals())
      ::sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, &oldMask_);
    signals_ = Socket(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    return signals_.isOpen();
  }

  /// Starts the witness of a plain start. If ranks have supervisors of their own, the supervisors
  /// of other ranks report that one is gone.
  Status startWitness() {
    if (isLaunched_)
      return Status::ok();
    return witness_.start(
        [pid = ::getpid(), emit = options_.emit, whatIsLeft = options_.whatIsLeft] {
          emit(makeReport(report::RunKilled, pid, whatIsLeft ? whatIsLeft() : "nothing was saved"));
        });
  }

  /// Forks the process of a rank. The child closes what belongs to the supervisor, restores the
  /// signal mask and calls the work; it is killed if the supervisor ends.
  bool start(int64_t rank) {
    if (worker_.heard)
      worker_.heard->fetch_and(kHeardSpeaker);
    std::fflush(nullptr);
    pid_t parent = ::getpid();
    pid_t pid = ::fork();
    if (pid < 0) {
      options_.emit(makeReport(
          report::ProcessNotStarted,
          fmt::format("cannot start a process for rank {}: {}", rank, std::strerror(errno))));
      failedToStart_ = true;
      if (server_)
        server_->stopAtOnce();
      return false;
    }
    if (pid > 0) {
      children_.push_back({pid});
      return true;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) // it ended in the meantime
      ::_exit(kFailureStatus);
    server_.reset();
    relay_.reset();
    listener_.close();
    signals_.close();
    ::sigprocmask(SIG_SETMASK, &oldMask_, nullptr);
    worker_.rank = rank;
    worker_.localRank = isLaunched_ ? options_.position.localRank : rank;
    if (options_.gpuOf)
      worker_.gpu = options_.gpuOf(worker_.localRank);
    if (!held_.empty()) {
      auto own = static_cast<size_t>(options_.held.ownBytes);
      auto bytes = static_cast<size_t>(options_.held.bytes());
      std::span<uint8_t> mine =
          held_.subspan(isLaunched_ ? 0 : bytes * static_cast<size_t>(rank), bytes);
      worker_.heldOwn = mine.first(own);
      worker_.heldGuest = mine.subspan(own);
    }
    std::exit((*work_)(worker_));
  }

  void wait() {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    if (server_)
      server_->addTo(entries);
    if (relay_)
      relay_->addTo(entries);
    ::poll(entries.data(), entries.size(), kPollMilliseconds);
    takeSignals();
    reap();
    serveRelay(entries);
    if (!server_)
      return;
    server_->step(secondsNow(), entries);
    log_.reached(server_->lastStep(), secondsNow());
    if (server_->hasFailed() && failedAt_ < 0)
      failedAt_ = secondsNow();
    if (failedAt_ >= 0 && secondsNow() - failedAt_ > kKillSeconds)
      killAll();
  }

  void takeSignals() {
    signalfd_siginfo info = {};
    while (::read(signals_.fd(), &info, sizeof info) == sizeof info)
      if (auto number = static_cast<int>(info.ssi_signo);
          number != SIGCHLD && (countsTwice(number) || requests_ == 0)) {
        for (const Child &child : children_)
          if (!child.hasEnded)
            ::kill(child.pid, number);
        takeRequest();
      }
  }

  /// Handles a request to end. After the first one, all ranks agree on the step after which they
  /// end. The second one ends them at once. Before all ranks have arrived, there is no step to
  /// finish.
  void takeRequest() {
    ++requests_;
    leader_.asked();
    follower_.asked();
    if (askedAt_ < 0)
      askedAt_ = secondsNow();
    if (!holdsServer())
      return;
    if (server_->hasFailed()) { // nothing is left to finish or to report
      isHurried_ = true;
    } else if (!server_->isRunning()) {
      writeNotice(report::StoppedBeforeSteps);
      server_->stopBeforeSteps();
    } else if (requests_ == 1) {
      writeNotice(report::EndsAfterStep);
    } else if (requests_ == 2) {
      writeNotice(report::StoppedAtOnce);
      server_->stopAtOnce();
    }
  }

  void reap() {
    int status = 0;
    while (pid_t pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) {
      if (pid < 0)
        break;
      for (Child &child : children_)
        if (child.pid == pid)
          note(child, status);
    }
    // A process is killed if it stays stopped longer than a collective may take, or after it was
    // asked to end. The other ranks report it.
    for (Child &child : children_) {
      bool isLong = secondsNow() - child.stoppedAt > options_.timeoutSeconds + kKillSeconds;
      bool isAsked = askedAt_ >= 0 && secondsNow() - std::max(askedAt_, child.stoppedAt) >
                                          kAskedSeconds + kKillSeconds; // it cannot react
      if (child.stoppedAt >= 0 && (isLong || isAsked))
        ::kill(child.pid, SIGKILL);
    }
  }

  void note(Child &child, int status) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      child.stoppedAt = WIFSTOPPED(status) ? secondsNow() : -1;
      return;
    }
    child.hasEnded = true;
    child.stoppedAt = -1;
    child.status = status;
    bool isWell = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (server_ && !isWell)
      server_->rankEnded(child.pid, howEnded(status));
    if (server_)
      return;
    uint32_t heard = worker_.heard ? worker_.heard->load() : kHeardOver;
    follower_.rankEnded({(heard & kHeardOver) != 0, (heard & kHeardLeader) != 0}, secondsNow());
  }

  void killAll() {
    for (const Child &child : children_)
      if (!child.hasEnded)
        ::kill(child.pid, SIGKILL);
  }

  bool isOver() const {
    bool isBetween = leader_.isBetweenAttempts() && !isHurried_ && !failedToStart_;
    bool isStoppedBetween = leader_.isBetweenAttempts() && requests_ > 0;
    return isAttemptOver() && !follower_.isPausing() && (!isBetween || isStoppedBetween);
  }

  bool isAttemptOver() const {
    for (const Child &child : children_)
      if (!child.hasEnded)
        return false;
    if (relay_ && !relay_->isOver() && !isHurried_ && !failedToStart_)
      return false; // other ranks of the machine still run
    return !server_ || server_->isOver() || failedToStart_ || isHurried_;
  }

  int exitStatus() const {
    if (server_) {
      int status = server_->exitStatus(); // kAgainStatus between attempts
      return failedToStart_ || status == kAgainStatus ? kFailureStatus : status;
    }
    int status = children_.empty() ? kFailureStatus << 8 : children_.front().status;
    bool isOwn = WIFEXITED(status) && WEXITSTATUS(status) != kAgainStatus;
    return isOwn ? WEXITSTATUS(status) : kFailureStatus;
  }

  const SupervisorOptions &options_;
  bool isLaunched_, failedToStart_ = false;
  bool isHurried_ = false; ///< asked to end while it only waited for others to leave
  RendezvousClientOptions worker_;
  const std::function<int(RendezvousClientOptions &)> *work_ = nullptr;
  RestartLeader leader_;
  RestartFollower follower_;
  std::optional<ElasticLeader> elastic_; ///< only in the supervisor that leads an elastic job
  Crew crew_;                            ///< ranks of the attempt that began last
  std::optional<int64_t> leftOut_;       ///< place that the next attempt leaves out
  double lostSince_ = secondsNow();
  Report cause_; ///< cause of the last fault
  StepLog log_;
  Socket listener_;
  std::optional<RendezvousServer> server_;
  std::optional<Relay> relay_; ///< on machines other than rank 0's
  std::vector<Child> children_;
  /// Memory for images of all ranks that start here; lives as long as this process.
  std::span<uint8_t> held_;
  Witness witness_;
  Socket signals_;
  sigset_t oldMask_ = {};
  int requests_ = 0;
  double failedAt_ = -1, askedAt_ = -1;
};

} // namespace

int supervise(const SupervisorOptions &options,
              const std::function<int(RendezvousClientOptions &)> &work) {
  return Supervisor(options).run(work);
}

} // namespace shardc::launch
