// Measures the load of each process of a simulated job of a given size.
#include <algorithm>

#include "test/unit/launchsim/HeapCount.h"
#include "test/unit/launchsim/SimWorld.h"

namespace shardc::launch {
namespace {

constexpr double kSteadySeconds = 3; // from the meeting to the kill of a rank

FakeNetwork &network() { return FakeNetwork::only(); }

} // namespace

/// Measures until all ranks have met, kills the rank in the middle, and measures until its end is
/// reported.
void SimWorld::killTheMiddle() {
  if (killedAt_ < 0 && job_.welcomed == job_.places) {
    if (measured_.empty()) {
      measure(fmt::format("until all have met, {:.2f} s after the last one has begun",
                          job_.metAt - job_.beganAt));
      for (const Supervisor &each : supervisors_)
        usageWhenMet_.push_back(network().usage(job_.supervisorAt(each.place)));
    }
    if (network().now < job_.metAt + kSteadySeconds)
      return;
    killedAt_ = network().now;
    supervisors_[supervisors_.size() / 2].rank->kill();
  } else if (killedAt_ >= 0 && saidAt_ >= 0 && !isMeasured_) {
    isMeasured_ = true;
    measure(fmt::format("{:.0f} s later, until the message, {:.2f} s after the rank's end",
                        kSteadySeconds, saidAt_ - killedAt_));
    for (const Supervisor &each : supervisors_) {
      Usage now = network().usage(job_.supervisorAt(each.place));
      const Usage &before = usageWhenMet_[static_cast<size_t>(each.place)];
      auto bytes =
          static_cast<double>(now.bytesIn + now.bytesOut - before.bytesIn - before.bytesOut);
      load_ = std::max(load_, before.connections ? bytes / before.connections : 0);
    }
  }
}

std::string SimWorld::levelOf(const Supervisor &each) const {
  if (each.place == 0)
    return "0: rank 0's supervisor";
  int level = 0;
  for (int of = job_.supervisorAt(each.place); of > job_.supervisorAt(0) && level < 9; ++level)
    of = network().usage(of).parent;
  bool isRelay = each.relay && each.relay->port() > 0;
  return isRelay ? fmt::format("{}: relays", level) : "other supervisors";
}

void SimWorld::measure(const std::string &until) {
  std::map<std::string, std::vector<int>> levels;
  for (const Supervisor &each : supervisors_) {
    levels[levelOf(each)].push_back(job_.supervisorAt(each.place));
    levels["ranks"].push_back(job_.rankAt(each.place));
  }
  measured_ += fmt::format("{} ranks, {} of a machine, {}:\n", job_.places, job_.perMachine, until);
  constexpr const char *kRow = "{:22} {:>6} {:>22} {:>22} {:>17} {:>17} {:>11} {:>14}\n";
  measured_ += fmt::format(kRow, "level", "nodes", "KB in", "KB out", "messages in", "messages out",
                           "connections", "KiB of heap");
  for (const auto &[level, processes] : levels) {
    auto spread = [&](auto number, int digits) {
      std::vector<double> all;
      for (int process : processes)
        all.push_back(static_cast<double>(number(process)));
      std::ranges::sort(all);
      return fmt::format("{:.{}f}/{:.{}f}/{:.{}f}", all.front(), digits, all[all.size() / 2],
                         digits, all.back(), digits);
    };
    auto of = [](auto field, double unit) {
      return
          [=](int process) { return static_cast<double>(network().usage(process).*field) / unit; };
    };
    measured_ += fmt::format(
        kRow, level, processes.size(), spread(of(&Usage::bytesIn, 1e3), 1),
        spread(of(&Usage::bytesOut, 1e3), 1), spread(of(&Usage::messagesIn, 1), 0),
        spread(of(&Usage::messagesOut, 1), 0), spread(of(&Usage::connectionsMost, 1), 0),
        spread([](int process) { return heapMost(process) / 1024; }, 0));
  }
}

} // namespace shardc::launch
