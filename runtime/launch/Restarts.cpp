#include "runtime/launch/Restarts.h"

#include <algorithm>

namespace shardc::launch {
namespace {

constexpr double kPauseSecondsMax = 60;
/// The leader answers within seconds, so a follower's rank tries about twice a second.
constexpr double kFollowSeconds = 0.5;
/// A rank whose processes end this many times in a row without having heard the leader fails by
/// itself.
constexpr int kUnheardMax = 3;

} // namespace

double restartPause(int64_t inRow) {
  constexpr int64_t kDoublingsMax = 6;
  return std::min(kPauseSecondsMax,
                  static_cast<double>(int64_t{1} << std::min(inRow, kDoublingsMax)));
}

RestartLeader::Verdict RestartLeader::faulted(const FaultSeen &fault) {
  auto give = [this](Verdict verdict) {
    state_ = verdict == Verdict::Again ? State::Ends : State::Over;
    return verdict;
  };
  if (restartsMax_ == 0)
    return give(Verdict::NoRestarts);
  if (isAsked_)
    return give(Verdict::Asked);
  if (fault.isFinal)
    return give(Verdict::Final);
  if (last_ && last_->isSame(fault) && !fault.isMended)
    return give(Verdict::CameBack);
  if (restarts_ >= restartsMax_)
    return give(Verdict::UsedUp);
  last_ = fault;
  ++restarts_;
  isInOrder_ = false;
  return give(Verdict::Again);
}

bool RestartLeader::resizes() {
  if (state_ != State::Runs || isAsked_)
    return false;
  isInOrder_ = true;
  state_ = State::Ends;
  return true;
}

Attempt RestartLeader::ended(double now, int64_t newestSave) {
  inRow_ = newestSave > attempt_.savedStep ? 0 : inRow_;
  attempt_ = {attempt_.number + 1, restarts_, newestSave, isInOrder_ ? 0 : restartPause(inRow_)};
  inRow_ += !isInOrder_;
  startsAt_ = now + attempt_.pause;
  state_ = State::Pauses;
  return attempt_;
}

bool RestartLeader::startsNow(double now) {
  if (state_ != State::Pauses || now < startsAt_ || isAsked_)
    return false;
  state_ = State::Runs;
  return true;
}

bool RestartFollower::rankEnded(const RankEnd &end, double now) {
  unheard_ = end.hasHeard ? 0 : unheard_ + 1;
  isPausing_ = mayRestart_ && !isAsked_ && !end.wasToldOver && unheard_ <= kUnheardMax;
  startsAt_ = now + kFollowSeconds;
  return isPausing_;
}

bool RestartFollower::startsNow(double now) {
  if (!isPausing_ || now < startsAt_)
    return false;
  isPausing_ = false;
  return true;
}

} // namespace shardc::launch
