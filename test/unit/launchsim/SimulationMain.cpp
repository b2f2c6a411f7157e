// Simulates jobs with their tree of supervisors, by seeds: messages that are lost, late, changed,
// sent twice or in another order, ranks, supervisors and machines that end, hang or come back at
// any moment, restarts, sizes and spares. Every job ends; no start of its ranks has two decisions
// or parts of another one; a job that does not end well says why.
//
//     launch_simulation [--seeds FIRST LAST]
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/unit/launchsim/SimWorld.h"

int main(int argc, char **argv) {
  using shardc::launch::SimWorld;
  uint64_t first = 1, last = 300;
  if (argc == 4 && std::strcmp(argv[1], "--seeds") == 0) {
    first = std::strtoull(argv[2], nullptr, 10);
    last = std::strtoull(argv[3], nullptr, 10);
  } else if (const char *isLong = std::getenv("SHARDC_LONG"); isLong && *isLong == '1') {
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
