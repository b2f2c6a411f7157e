// What simulated worlds share: events in simulated time, and chances, by a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace shardc::launch {

class SimulatedEvents {
protected:
  explicit SimulatedEvents(uint64_t seed) : random_(seed) {}

  /// Runs events until there are none, or a test has failed, as it does if there are more than
  /// `most`.
  void runEvents(int64_t most) {
    while (!events_.empty()) {
      ASSERT_LT(++count_, most) << "an endless loop";
      Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
      if (::testing::Test::HasFailure())
        return;
    }
  }

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  double uniform(double least, double most) {
    return least + (most - least) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  bool happens(double chance) { return uniform(0, 1) < chance; }
  void after(double seconds, std::function<void()> run) {
    events_.push({now_ + seconds, number_++, std::move(run)});
  }
  /// Most messages are fast, some are very late.
  double delay() { return happens(0.05) ? uniform(0, 20) : uniform(0, 0.2); }

  double now_ = 0;

private:
  struct Event {
    double at;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event &other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };

  std::mt19937_64 random_;
  std::priority_queue<Event> events_;
  uint64_t number_ = 0;
  int64_t count_ = 0;
};

} // namespace shardc::launch
