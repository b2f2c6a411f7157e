#include "compiler/predict/PipelineTime.h"

#include <algorithm>

namespace shardc::predict {
namespace {

/// The ends of the transfers of one channel, in the order in which they were issued.
struct Queue {
  std::vector<double> sends, receives; ///< times at which each end was ready
};

class Follower {
public:
  explicit Follower(const std::vector<std::vector<Pass>> &actors)
      : actors_(actors), state_(actors.size()), times_(actors.size()) {
    int32_t channels = 0;
    for (const std::vector<Pass> &passes : actors)
      for (const Pass &pass : passes)
        for (const Meeting &meeting : pass.meetings)
          channels = std::max(channels, meeting.channel + 1);
    queues_.resize(static_cast<size_t>(channels));
    for (size_t actor = 0; actor < actors.size(); ++actor)
      times_[actor].passes.reserve(actors[actor].size());
  }

  std::optional<std::vector<ActorTimes>> run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t actor = 0; actor < actors_.size(); ++actor)
        while (advance(actor))
          moves = true;
    }
    for (size_t actor = 0; actor < actors_.size(); ++actor)
      if (state_[actor].pass < actors_[actor].size())
        return std::nullopt;
    return std::move(times_);
  }

private:
  /// The position of an actor: its current pass, and the number of that pass's meetings that were
  /// issued.
  struct State {
    size_t pass = 0, issued = 0;
    double begin = 0, now = 0;  ///< start of the pass: the latest end of anything that it waits for
    std::vector<size_t> places; ///< index of each meeting in its queue
  };

  /// Advances an actor by one step. Returns false if it must wait or has finished.
  bool advance(size_t actor) {
    State &state = state_[actor];
    if (state.pass == actors_[actor].size())
      return false;
    const Pass &pass = actors_[actor][state.pass];
    if (state.issued < pass.meetings.size()) {
      // A transfer that blocks the pass must end before the next one is issued.
      if (state.issued > 0 && pass.meetings[state.issued - 1].isFirst) {
        std::optional<double> end = endOf(pass, state, state.issued - 1);
        if (!end)
          return false;
        state.now = std::max(state.now, *end);
      }
      issue(pass.meetings[state.issued], state);
      return true;
    }
    std::vector<double> &meetingEnds = times_[actor].meetingEnds;
    PassTime time{state.begin, state.now + pass.seconds, meetingEnds.size()};
    for (size_t i = 0; i < pass.meetings.size(); ++i) {
      std::optional<double> met = endOf(pass, state, i);
      if (!met) {
        meetingEnds.resize(time.firstMeeting);
        return false;
      }
      time.end = std::max(time.end, pass.meetings[i].isFirst ? *met + pass.seconds : *met);
      meetingEnds.push_back(*met);
    }
    ++state.pass;
    state.issued = 0;
    state.begin = state.now = time.end;
    state.places.clear();
    times_[actor].passes.push_back(time);
    return true;
  }

  void issue(const Meeting &meeting, State &state) {
    Queue &queue = queues_[static_cast<size_t>(meeting.channel)];
    std::vector<double> &ends = meeting.isSend ? queue.sends : queue.receives;
    state.places.push_back(ends.size());
    ends.push_back(state.now + meeting.after);
    ++state.issued;
  }

  std::optional<double> endOf(const Pass &pass, const State &state, size_t meeting) {
    const Queue &queue = queues_[static_cast<size_t>(pass.meetings[meeting].channel)];
    size_t place = state.places[meeting];
    if (place >= queue.sends.size() || place >= queue.receives.size())
      return std::nullopt;
    return std::max(queue.sends[place], queue.receives[place]) + pass.meetings[meeting].seconds;
  }

  const std::vector<std::vector<Pass>> &actors_;
  std::vector<State> state_;
  std::vector<ActorTimes> times_;
  std::vector<Queue> queues_; ///< by channel
};

} // namespace

std::optional<std::vector<ActorTimes>> timesOf(const std::vector<std::vector<Pass>> &actors) {
  return Follower(actors).run();
}

} // namespace shardc::predict
