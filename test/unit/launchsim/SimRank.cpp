#include "test/unit/launchsim/SimRank.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "runtime/launch/Rendezvous.h"
#include "test/unit/launchsim/FakeNetwork.h"

namespace shardc::launch {
namespace {

using Fold = hal::Peers::Fold;

constexpr double kAgain = 0.2, kFinder = 0.5, kShake = 10, kBeat = 0.5;

} // namespace

SimRank::SimRank(SimJob &job, int64_t place, bool isSpeaker, double patience)
    : job_(job), place_(place), isSpeaker_(isSpeaker), patience_(patience),
      end_(place, job.places, job.secret, "m" + std::to_string(place / job.perMachine)) {}

void SimRank::step(double now) {
  if (hasEnded_)
    return;
  if (killedAt_ >= 0) {
    if (now >= killedAt_)
      kill();
    return;
  }
  save(now);
  if (endsAt_ >= 0) {
    if (now >= endsAt_)
      kill();
    return;
  }
  end_.step();
  if (end_.heard != heard_)
    heardAt_ = now;
  heard_ = end_.heard;
  if (end_.aborted)
    return hear(*end_.aborted, now);
  switch (state_) {
  case State::Starting:
    if (readyAt_ < 0)
      readyAt_ = now + job_.uniform(1);
    if (now < readyAt_)
      return;
    beganAt_ = job_.beganAt = now;
    state_ = State::Looking;
    return;
  case State::Looking:
    return look(now);
  case State::Finding:
    return find(now);
  case State::Joining:
    return join(now);
  case State::Working:
    return work(now);
  case State::Leaving:
    if (!end_.wire().hasUnsent() || !end_.isConnected())
      endAt(now + job_.uniform(1), true);
    return;
  }
}

/// If the job was asked to end, or if it finds no server, the rank gives up. One rank of each
/// machine reports it.
void SimRank::look(double now) {
  if (now < readyAt_)
    return;
  bool isOverdue = now - beganAt_ > patience_;
  if (isOverdue || (job_.isAsked && now - beganAt_ > 5)) {
    job_.goneReported += isOverdue && (place_ % job_.perMachine == 0 || isSpeaker_);
    return endAt(now, true);
  }
  if (place_ < job_.perMachine)
    return connect(job_.port, now);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::string name = job_.relayName(place_ / job_.perMachine);
  name.copy(address.sun_path + 1, name.size());
  finder_ = Socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(finder_.fd(), reinterpret_cast<sockaddr *>(&address), bytes) != 0)
    return again(now);
  state_ = State::Finding;
  since_ = now;
}

void SimRank::find(double now) {
  char text[256];
  ssize_t count = ::recv(finder_.fd(), text, sizeof text, 0);
  std::string where(text, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count > 0 && !where.starts_with(kNotYet)) {
    finder_.close();
    return connect(std::atoi(where.c_str() + where.rfind(':') + 1), now);
  }
  if (count >= 0 || now - since_ > kFinder)
    again(now);
}

void SimRank::again(double now) {
  finder_.close();
  end_.close();
  readyAt_ = now + kAgain;
  state_ = State::Looking;
}

void SimRank::connect(int port, double now) {
  end_ =
      SocketRank(place_, job_.places, job_.secret, "m" + std::to_string(place_ / job_.perMachine));
  heard_ = 0;
  if (!end_.connect("127.0.0.1", port, 0).isOk())
    return again(now);
  state_ = State::Joining;
  since_ = heardAt_ = now;
}

void SimRank::join(double now) {
  if (end_.isRefused || (!end_.isAdmitted() && (!end_.isConnected() || now - since_ > kShake)))
    return again(now);
  if (!end_.isAdmitted())
    return;
  hasHeard_ = true;
  beat(now);
  bool isTooLong = !job_.isElastic && now - since_ > job_.timeout + 30;
  if (!end_.isConnected() || isTooLong || now - heardAt_ > std::max(job_.timeout, 10.0))
    return lose(now);
  if (job_.isElastic && job_.isAsked && now - since_ > 5)
    return endAt(now, true);
  if (!end_.welcome())
    return;
  ++job_.welcomed;
  job_.metAt = now;
  isSpeaker_ = end_.welcome()->isSpeaker;
  step_ = std::max<int64_t>(end_.welcome()->savedStep, 0);
  state_ = State::Working;
  readyAt_ = now;
}

void SimRank::beat(double now) {
  if (now - beatAt_ < kBeat)
    return;
  beatAt_ = now;
  if (end_.welcome() || job_.isElastic)
    end_.progress(static_cast<uint32_t>(step_ * 4 + phase_ + 1), static_cast<uint64_t>(step_));
}

void SimRank::work(double now) {
  beat(now);
  if (!end_.isConnected() || now - heardAt_ > std::max(job_.timeout, 10.0))
    return lose(now);
  if (isResting_ || now < readyAt_)
    return;
  if (isWaiting_)
    return takeParts(now);
  exchange();
}

/// The exchange of the present phase. It joins all ranks, or some ranks (the even or the odd ones,
/// or those of a machine), or is the exchange of all about the next step, which rank 0 decides.
SimRank::Part SimRank::partOfStep() const {
  Part part = {fmt::format("step {} {}", step_, phase_), {}, Fold::First};
  if (phase_ != 1)
    return part;
  int64_t rank = end_.welcome()->rank, first = rank % 2, last = end_.welcome()->worldSize, by = 2;
  if (job_.isPlain)
    first = rank / job_.perMachine * job_.perMachine, last = first + job_.perMachine, by = 1;
  part.fold = job_.isPlain || step_ % 2 == 0 ? Fold::Parts : Fold::First;
  for (; first < last; first += by)
    part.members.push_back(static_cast<int>(first));
  return part;
}

std::string SimRank::partOf(const Part &part, int rank) const {
  if (phase_ == 2 || (part.fold == Fold::First && rank % 3 == 1))
    return "";
  return fmt::format("attempt {} step {} rank {}", end_.welcome()->attempt, step_, rank);
}

void SimRank::exchange() {
  Part part = partOfStep();
  auto rank = static_cast<int>(end_.welcome()->rank);
  std::string mine = partOf(part, rank);
  if (phase_ == 2 && rank == 0) {
    bool isDue = step_ % job_.saveInterval == 0;
    mine = isDue && end_.growsTo > 0 && step_ < job_.steps ? "grow" : job_.isAsked ? "stop" : "on";
  }
  end_.gather(part.key, part.members, mine, part.fold);
  isWaiting_ = true;
}

const std::vector<std::string> &SimRank::expectedOf(const Part &part) const {
  int own = std::exchange(FakeNetwork::process, 0); // this memory belongs to no process
  std::string key = fmt::format("attempt {} {}", end_.welcome()->attempt, part.key);
  auto [known, isNew] =
      job_.expected.try_emplace({std::move(key), part.members.empty() ? 0 : part.members.front()});
  if (isNew) {
    std::vector<std::string> parts;
    auto count = part.members.empty() ? end_.welcome()->worldSize : std::ssize(part.members);
    for (int64_t i = 0; i < count; ++i)
      parts.push_back(partOf(part, part.members.empty() ? static_cast<int>(i)
                                                        : part.members[static_cast<size_t>(i)]));
    known->second = hal::Peers::folded(std::move(parts), part.fold);
  }
  FakeNetwork::process = own;
  return known->second;
}

void SimRank::takeParts(double now) {
  if (end_.gathered.empty())
    return;
  std::vector<std::string> given = std::move(end_.gathered.front());
  end_.gathered.pop_front();
  isWaiting_ = false;
  if (phase_ < 2) {
    if (given != expectedOf(partOfStep()))
      job_.wrong.push_back(fmt::format("place {} got other parts in step {}", place_, step_));
    ++phase_;
    return;
  }
  phase_ = 0;
  endStep(now, given[0]);
}

/// A save is written while steps go on, except one before the job grows.
void SimRank::endStep(double now, const std::string &next) {
  bool isFirst = end_.welcome()->rank == 0;
  if (isFirst && (!job_.trained.insert(step_).second || std::ssize(job_.trained) != step_ + 1))
    job_.wrong.push_back(
        fmt::format("the batch of step {} is read twice, or one before is lost", step_));
  ++step_;
  if (isFirst && step_ % job_.saveInterval == 0)
    saving_[step_] = next == "grow" ? now : now + job_.uniform(2);
  if (next == "grow") {
    save(now);
    if (isFirst)
      end_.send(MessageKind::Rest, "");
    isResting_ = true;
  } else if (next == "stop" || step_ >= job_.steps) {
    save(now + 1e9);
    end_.send(MessageKind::Bye, Packer().number(0).take());
    job_.isDone = true;
    state_ = State::Leaving;
  }
  readyAt_ = now + job_.uniform(0.5);
}

void SimRank::save(double now) {
  for (const auto &[step, when] : saving_)
    if (now >= when) {
      if (end_.welcome()->attempt != job_.attempt)
        job_.wrong.push_back(
            fmt::format("a save of start {} in start {}", end_.welcome()->attempt, job_.attempt));
      job_.saves.insert(step);
    }
  std::erase_if(saving_, [now](const auto &each) { return now >= each.second; });
}

void SimRank::hear(const Abort &abort, double now) {
  hasHeard_ = true;
  endAt(now + job_.uniform(3), abort.exitStatus != kAgainStatus);
}

/// The connection has ended, or the relay or server is silent. Messages that arrived before count.
void SimRank::lose(double now) {
  if (end_.welcome())
    isSpeaker_ = end_.welcome()->isSpeaker;
  if (job_.startsAgain)
    return endAt(now, false);
  bool isRelayGone = place_ >= job_.perMachine && connectTo("127.0.0.1", job_.port, 0).isOk();
  job_.goneReported += !isRelayGone && isSpeaker_;
  endAt(now, true);
}

void SimRank::endAt(double when, bool isOver) {
  wasToldOver_ = wasToldOver_ || isOver;
  endsAt_ = when;
}

} // namespace shardc::launch
