// The parser must refuse any text with a message, or return a plan that can be verified, summarised
// and printed safely, and whose printed text parses to the same plan. Small accepted plans run for
// a step, and must not access memory outside their arenas.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/run/Preflight.h"
#include "runtime/run/RunLoop.h"
#include "runtime/verify/Verify.h"

namespace shardc {
namespace {

// Limits so that a step takes milliseconds.
constexpr int64_t kRanksMax = 4;
constexpr int64_t kArenaBytesMax = 64 << 10;
constexpr int64_t kLaunchesMax = 2000; ///< launches of ops in a step

/// Number of ops that the nodes launch, at most kLaunchesMax + 1.
int64_t countLaunches(const plan::Role &role, const std::vector<plan::ProgramNode> &nodes) {
  int64_t launches = 0;
  for (const plan::ProgramNode &node : nodes) {
    bool isRun = node.kind == plan::ProgramNode::Run || node.kind == plan::ProgramNode::Start;
    auto ops = isRun ? static_cast<int64_t>(role.segments[node.segment].ops.size()) + 1 : 0;
    launches += std::min(node.count, kLaunchesMax) * ops + countLaunches(role, node.children);
    if (launches > kLaunchesMax)
      return kLaunchesMax + 1;
  }
  return launches;
}

bool isSmall(const plan::Plan &plan) {
  if (plan.roles.size() != 1 || plan.worldSize() > kRanksMax)
    return false;
  const plan::Role &role = plan.roles[0];
  return std::ranges::all_of(role.arenaBytes, [](int64_t n) { return n <= kArenaBytesMax; }) &&
         countLaunches(role, role.program) <= kLaunchesMax;
}

/// Batches that contain only token 0.
class ZeroSource final : public run::BatchSource {
public:
  Status fill(run::FeedKind, int64_t, int64_t, int64_t, int64_t,
              const run::FeedEntry &entry) override {
    int64_t words = run::FeedEntry::words(entry.batch, entry.sequence);
    std::fill_n(entry.tokens, words, 0);
    std::fill_n(entry.mask, entry.batch * entry.sequence, 1.0f);
    return Status::ok();
  }
};

class Quiet final : public run::RunObserver {
  void begin(int64_t, int64_t) override {}
  void step(const StepState &) override {}
  void evaluated(const StepState &) override {}
};

/// Runs a step. It may fail, and its numbers may be anything, but memory around arenas must not
/// change.
void runStep(const plan::Plan &plan) {
  if (!run::preflight(plan, "host", kernels::findHostKernel, {.isSimulation = true}).empty())
    return;
  host::Options options{.ranks = static_cast<int>(plan.worldSize()),
                        .workers = 1,
                        .scheduleSeed = 1,
                        .poison = true,
                        .guards = true};
  auto backend = host::makeBackend(options);
  SHARDC_CHECK(backend.isOk(), "{}", backend.status().message());
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  if (!executable.isOk())
    return;
  ZeroSource source;
  Quiet quiet;
  run::RunOptions run;
  run.stepsEnd = 1;
  static_cast<void>(run::runProgram(**executable, source, quiet, run));
  Status guards = (*backend)->checkGuards();
  SHARDC_CHECK(guards.isOk(), "{}", guards.message());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(data), size);
  Result<plan::Plan> read = plan::parse(text, "fuzz.plan");
  if (!read.isOk()) {
    SHARDC_CHECK(read.status().code() == StatusCode::InvalidInput &&
                     !read.status().message().empty(),
                 "refused without a reason");
    return 0;
  }
  std::string once = plan::print(*read, plan::summary(*read));
  Result<plan::Plan> again = plan::parse(once, "printed.plan");
  SHARDC_CHECK(again.isOk(), "what was printed is refused: {}", again.status().message());
  SHARDC_CHECK(plan::print(*again) == plan::print(*read), "printing is not the identity");
  std::vector<plan::Finding> findings = plan::verify(*read);
  for (const plan::Finding &finding : findings)
    SHARDC_CHECK(!plan::render(*read, finding).empty(), "a finding without text");
  if (findings.empty() && isSmall(*read))
    runStep(*read);
  return 0;
}

} // namespace shardc
