// An example of how to use the plan library: reads a plan, verifies it, and prints its numbers of
// roles and ranks.
#include <cstdio>

#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: verify-plan P.plan\n");
    return 2;
  }
  shardc::Result<std::string> text = shardc::readFile(argv[1]);
  if (!text.isOk()) {
    std::fprintf(stderr, "%s\n", text.status().message().c_str());
    return 1;
  }
  shardc::Result<shardc::plan::Plan> plan = shardc::plan::parse(*text, argv[1]);
  if (!plan.isOk()) {
    std::fprintf(stderr, "%s\n", plan.status().message().c_str());
    return 1;
  }
  if (shardc::Status status = shardc::plan::verified(*plan); !status.isOk()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("%zu roles, %lld ranks, nothing is broken\n", plan->roles.size(),
              static_cast<long long>(plan->worldSize()));
  return 0;
}
