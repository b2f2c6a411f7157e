// Simulates jobs with their tree of supervisors, by seeds. Messages are lost, late, changed, sent
// twice or swapped; ranks, supervisors and machines end, hang or come back at any moment; jobs have
// restarts, sizes and spares. Every job must end; no start of its ranks may have two decisions, or
// parts of another start; a job that ends with a failure must say why.
//
// A job of N ranks is measured: each process's bytes, messages, connections and memory, by level of
// the tree, and the simulated seconds until all have met, and from a rank's end to the message.
//
//     launch_simulation [--seeds FIRST LAST | --ranks N [PER_MACHINE]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "test/unit/launchsim/SimWorld.h"

using shardc::launch::SimWorld;

/// Bytes per connection of the busiest process (SimWorld::load); empty if something went wrong.
static std::optional<double> measure(int64_t ranks, int64_t perMachine) {
  SimWorld world(ranks, perMachine);
  std::vector<std::string> wrong = world.run();
  std::printf("%s", world.measured().c_str());
  for (const std::string &each : wrong)
    std::printf("%s; %s\n", each.c_str(), world.describe().c_str());
  return wrong.empty() ? std::optional(world.load()) : std::nullopt;
}

/// The load of a process depends on its connections, not on the number of ranks.
static bool doesNotGrow(bool isLong) {
  constexpr double kMost = 1.5; // the largest allowed ratio to the load with few ranks
  int64_t perMachine = isLong ? 8 : 2;
  std::optional<double> few = measure(64, perMachine);
  std::optional<double> more = measure(isLong ? 4096 : 1024, perMachine);
  std::optional<double> most = isLong ? measure(16384, perMachine) : more;
  bool isRight = few && more && most && std::max(*more, *most) < kMost * *few;
  std::printf("bytes of a connection of the busiest process: %.0f, with more ranks %.0f and %.0f\n",
              few.value_or(0), more.value_or(0), most.value_or(0));
  return isRight;
}

int main(int argc, char **argv) {
  if (argc >= 3 && std::strcmp(argv[1], "--ranks") == 0)
    return measure(std::atol(argv[2]), argc > 3 ? std::atol(argv[3]) : 8) ? 0 : 1;
  bool isOfSeeds = argc == 4 && std::strcmp(argv[1], "--seeds") == 0;
  const char *longRun = std::getenv("SHARDC_LONG");
  bool isLong = longRun && *longRun == '1' && !isOfSeeds;
  if (!isOfSeeds && !doesNotGrow(isLong)) {
    std::printf("some process has more to do with more ranks\n");
    return 1;
  }
  uint64_t first = 1, last = 300;
  if (isOfSeeds) {
    first = std::strtoull(argv[2], nullptr, 10);
    last = std::strtoull(argv[3], nullptr, 10);
  } else if (isLong) {
    last = 100'000;
  }
  uint64_t well = 0, deep = 0, attempts = 0, resized = 0, wrong = 0;
  for (uint64_t seed = first; seed <= last && wrong < 20; ++seed) {
    SimWorld world(seed);
    std::vector<std::string> found = world.run();
    for (const std::string &each : found)
      std::printf("seed %lu: %s; %s\n", static_cast<unsigned long>(seed), each.c_str(),
                  world.describe().c_str());
    wrong += !found.empty();
    well += world.endedWell();
    deep += world.isDeep();
    attempts += static_cast<uint64_t>(world.attempts());
    resized += static_cast<uint64_t>(world.resized());
  }
  std::printf(
      "seeds %lu to %lu: %lu wrong; %lu ended well, %lu had relays behind relays, %lu starts, "
      "%lu of them with another number of ranks\n",
      static_cast<unsigned long>(first), static_cast<unsigned long>(last),
      static_cast<unsigned long>(wrong), static_cast<unsigned long>(well),
      static_cast<unsigned long>(deep), static_cast<unsigned long>(attempts),
      static_cast<unsigned long>(resized));
  bool isVaried =
      last - first < 200 || (well > 0 && deep > 0 && attempts > last - first + 1 && resized > 0);
  if (!isVaried)
    std::printf("too little happens in these worlds\n");
  return wrong == 0 && isVaried ? 0 : 1;
}
