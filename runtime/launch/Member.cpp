#include "runtime/launch/Member.h"

#include <chrono>
#include <csignal>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/launch/Machine.h"

namespace shardc::launch {
namespace {

constexpr int kBeatMilliseconds = 250; ///< between two looks at the progress
constexpr int kBeatsUnchanged = 4;     ///< after so many it is sent again, as a sign of life
constexpr auto kAbortGrace = std::chrono::seconds(3);
constexpr auto kFailGrace = std::chrono::seconds(10);

void wake(const Socket &writer) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(writer.fd(), &one, sizeof one);
}

} // namespace

Result<std::unique_ptr<Member>> Member::join(const MemberOptions &options) {
  std::unique_ptr<Member> member(new Member(options));
  if (Status status = member->connect(); !status.isOk()) {
    options.say(options.problem.empty() ? status.message() : options.problem);
    return Status(StatusCode::Aborted, "");
  }
  member->wakeReader_ = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  member->wakeWriter_ = Socket(::dup(member->wakeReader_.fd()));
  member->thread_ = std::thread([raw = member.get()] { raw->run(); });
  std::unique_lock lock(member->mutex_);
  // The supervisor has its own end of this wait and says who is missing; this one is the last
  // resort.
  auto patience = std::chrono::milliseconds(static_cast<int64_t>(options.joinSeconds * 1e3)) +
                  std::chrono::seconds(30);
  member->changed_.wait_for(lock, patience, [&] { return member->isWelcome_ || member->isOver_; });
  if (!member->isWelcome_)
    return Status(StatusCode::Aborted, "");
  return member;
}

Status Member::connect() {
  machine_ = machineId();
  Result<Socket> socket = connectTo(options_.address, options_.port, options_.joinSeconds);
  if (!socket.isOk())
    return makeStatus(StatusCode::InvalidInput,
                      "rank {}: no word from rank 0 within {:.3g} s: {}; is MASTER_ADDR right, and "
                      "dist.rendezvous_port (MASTER_PORT + 1 unless set) the same everywhere?",
                      options_.rank, options_.joinSeconds, socket.status().message());
  ownAddress_ = ownAddressOf(*socket);
  wire_ = Wire(std::move(*socket));
  Hello hello;
  hello.rank = options_.rank;
  hello.worldSize = options_.worldSize;
  hello.planHash = options_.planHash;
  hello.pid = ::getpid();
  hello.supervisor = ::getppid();
  hello.machine = machine_;
  hello.host = hostName();
  hello.job = options_.job;
  hello.problem = options_.problem;
  wire_.queue(MessageKind::Hello, hello.pack());
  return Status::ok();
}

Member::~Member() {
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  wake(wakeWriter_);
  if (thread_.joinable())
    thread_.join();
}

void Member::run() {
  sigset_t all; // signals are the main thread's
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  int beats = 0;
  while (true) {
    pollfd entries[2] = {{wakeReader_.fd(), POLLIN, 0}, {}};
    {
      std::lock_guard lock(mutex_);
      bool hasUnsent = wire_.hasUnsent();
      if (isStopping_ && (!hasUnsent || isOver_))
        return;
      entries[1] = {wire_.fd(), static_cast<short>(POLLIN | (hasUnsent ? POLLOUT : 0)), 0};
    }
    int ready = ::poll(entries, 2, kBeatMilliseconds);
    uint64_t count;
    [[maybe_unused]] ssize_t got = ::read(wakeReader_.fd(), &count, sizeof count);
    if (ready == 0) {
      if (++beats % kBeatsUnchanged == 0)
        sent_.reset(); // sent again
      sendProgress();
    }
    if (!serve())
      return;
  }
}

void Member::sendProgress() {
  Snapshot now;
  {
    std::lock_guard lock(readMutex_);
    if (read_)
      now = read_();
  }
  if (now == sent_)
    return;
  sent_ = now;
  std::lock_guard lock(mutex_);
  if (isWelcome_ && !isLeaving_)
    wire_.queue(MessageKind::Progress, now.pack());
}

/// False once nothing more will come.
bool Member::serve() {
  std::vector<Message> messages;
  bool isAlive = false, isLeaving = false;
  {
    std::lock_guard lock(mutex_);
    isAlive = wire_.receive();
    while (std::optional<Message> message = wire_.next()) {
      messages.push_back(std::move(*message));
      isAlive = isAlive && wire_.receive();
    }
    isAlive = wire_.flush() && isAlive;
    isLeaving = isLeaving_;
  }
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
  // The supervisor of rank 0 is gone, and with it who could tell: the next rank does.
  if (options_.rank == 1)
    options_.say(fmt::format("rank 0's process at {} has ended without a word",
                             endpoint(options_.address, options_.port)));
  Abort abort;
  endProcessOf(abort);
}

void Member::take(const Message &message) {
  if (message.kind == MessageKind::Abort) {
    std::optional<Abort> abort = Abort::unpack(message.body);
    endProcessOf(abort.value_or(Abort{}));
  }
  std::lock_guard lock(mutex_);
  if (message.kind == MessageKind::Welcome) {
    if (std::optional<Welcome> welcome = Welcome::unpack(message.body)) {
      welcome_ = *welcome;
      isWelcome_ = true;
    }
  } else if (message.kind == MessageKind::Gathered) {
    Unpacker in(message.body);
    gathered_.clear();
    for (int64_t r = 0; r < options_.worldSize; ++r)
      gathered_.push_back(in.text());
    hasGathered_ = in.isComplete();
  }
  changed_.notify_all();
}

/// Ends what shares this machine and does not answer, then whatever waits in this process, then the
/// process. If the main thread is waiting for this in fail() it leaves by itself.
void Member::endProcessOf(const Abort &abort) {
  if (!abort.isTold)
    options_.say(abort.text);
  for (const Abort::Process &process : abort.silent)
    if (process.machine == machine_) {
      endProcess(static_cast<pid_t>(process.pid));
      endIfStopped(static_cast<pid_t>(process.parent));
    }
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    callback = std::move(onAbort_);
    isOver_ = true;
    isAborting_ = static_cast<bool>(callback);
    exitStatus_ = abort.exitStatus;
  }
  if (callback) {
    auto done = std::make_shared<std::pair<std::mutex, std::condition_variable>>();
    auto isDone = std::make_shared<bool>(false);
    std::thread([callback, done, isDone] {
      callback();
      std::lock_guard lock(done->first);
      *isDone = true;
      done->second.notify_all();
    }).detach();
    std::unique_lock lock(done->first);
    done->second.wait_for(lock, kAbortGrace, [&] { return *isDone; });
    std::lock_guard own(mutex_);
    isAborting_ = !*isDone;
  }
  changed_.notify_all();
  ::_exit(abort.exitStatus);
}

void Member::send(MessageKind kind, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    wire_.queue(kind, body);
  }
  wake(wakeWriter_);
}

Result<std::vector<std::string>> Member::allGather(std::string_view what, std::string_view mine) {
  if (mine.size() > kBlobBytesMax)
    return makeStatus(StatusCode::Internal, "'{}': {} bytes are more than {} that ranks exchange",
                      what, mine.size(), kBlobBytesMax);
  {
    std::lock_guard lock(mutex_);
    hasGathered_ = false;
  }
  send(MessageKind::Gather, Packer().text(what).text(mine).take());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return hasGathered_ || isOver_; });
  if (!hasGathered_)
    return makeStatus(StatusCode::Aborted, "'{}': the job is over", what);
  return std::move(gathered_);
}

void Member::reportLost(int rank, std::string_view what) {
  send(MessageKind::Lost, Packer().number(static_cast<uint64_t>(rank)).text(what).take());
}

void Member::onAbort(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  onAbort_ = std::move(callback);
}

void Member::watch(std::function<Snapshot()> read) {
  std::lock_guard lock(readMutex_);
  read_ = std::move(read);
}

void Member::stopWatching() {
  std::lock_guard lock(readMutex_);
  read_ = nullptr;
}

void Member::reportFailure(const Status &status) {
  constexpr int kFailureStatus = 3;
  sendFailure(status, kFailureStatus);
}

void Member::sendFailure(const Status &status, int exitStatus) {
  Failure failure;
  failure.code = status.code();
  failure.exitStatus = exitStatus;
  failure.text = status.message().substr(0, kBlobBytesMax);
  {
    std::lock_guard lock(readMutex_);
    if (read_) // where this rank is now belongs to what is told
      send(MessageKind::Progress, read_().pack());
  }
  send(MessageKind::Fail, failure.pack());
}

int Member::fail(const Status &status, int exitStatus) {
  sendFailure(status, exitStatus);
  std::unique_lock lock(mutex_);
  // The process ends meanwhile. What is being ended must outlive that.
  changed_.wait_for(lock, kFailGrace, [&] { return isOver_ && !isAborting_; });
  return isOver_ ? exitStatus_ : exitStatus;
}

void Member::leave(int exitStatus) {
  {
    std::lock_guard lock(mutex_);
    isLeaving_ = true;
    wire_.queue(MessageKind::Bye, Packer().number(static_cast<uint64_t>(exitStatus)).take());
  }
  wake(wakeWriter_);
}

} // namespace shardc::launch
