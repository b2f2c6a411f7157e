#include "Execute.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Reports.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/JobData.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/PieceIo.h"
#include "runtime/save/StateLayout.h"

namespace shardc::plan::oracle {
namespace {

class Recorder final : public run::RunObserver {
public:
  Recorder(std::vector<Training::Figures> &figures, bool evaluates)
      : figures_(figures), evaluates_(evaluates) {}

  void begin(int64_t, int64_t) override {}
  void step(const StepState &state) override {
    figures_.push_back({false, state.loss, state.gradNorm});
  }
  void evaluated(const StepState &state) override {
    if (evaluates_)
      figures_.push_back({true, state.evalLoss, 0});
  }

private:
  std::vector<Training::Figures> &figures_;
  bool evaluates_; ///< the plan computes losses of evaluations
};

bool evaluates(const Plan &plan) {
  return std::ranges::any_of(plan.roles, [](const Role &role) {
    return std::ranges::any_of(role.segments, [](const Segment &segment) {
      return std::ranges::any_of(segment.ops,
                                 [](const Op &op) { return op.kind == OpKind::EvalFinish; });
    });
  });
}

/// Reads the weights and moments of each rank.
Status readState(exec::Executable &executable, Training &training) {
  ASSIGN_OR_RETURN(save::StateLayout layout, save::StateLayout::create(executable.plan()));
  for (size_t rank = 0; rank < executable.rankCount(); ++rank) {
    int64_t world = executable.worldRank(rank);
    ASSIGN_OR_RETURN(std::vector<save::StatePiece> pieces, layout.pieces(world));
    for (const save::StatePiece &piece : pieces) {
      std::string name = fmt::format("part {} of '{}', {}", static_cast<int>(piece.part),
                                     layout.nameOf(piece), boxText(piece.box));
      RETURN_IF_ERROR(save::readPiece(executable, rank, layout, piece,
                                      training.state[{world, std::move(name)}]));
    }
  }
  return Status::ok();
}

Status trainInto(const Plan &plan, std::optional<uint64_t> schedule, Training &training) {
  host::Options options{.ranks = static_cast<int>(plan.worldSize()),
                        .workers = 1,
                        .scheduleSeed = schedule,
                        .poison = true,
                        .guards = true};
  ASSIGN_OR_RETURN(auto backend, host::makeBackend(options));
  exec::ExecutableOptions executableOptions;
  executableOptions.poisonBetweenSegments = schedule.has_value();
  ASSIGN_OR_RETURN(
      auto executable,
      exec::Executable::create(plan, *backend, kernels::findHostKernel, executableOptions));
  ASSIGN_OR_RETURN(auto source, run::openJobData(plan));
  Recorder recorder(training.figures, evaluates(plan));
  RETURN_IF_ERROR(run::runProgram(*executable, *source, recorder, {}).status());
  RETURN_IF_ERROR(backend->checkGuards());
  return readState(*executable, training);
}

/// Unlike ==, returns true for two NaN with the same bits.
template <typename T> bool areSameBits(const T &a, const T &b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

} // namespace

Training train(const Plan &plan, std::optional<uint64_t> schedule) {
  Training training;
  if (Status status = trainInto(plan, schedule, training); !status.isOk()) {
    training.problem = std::string(status.message());
    training.isRefused = status.report().id == report::PlanCannotRun.info().id;
  }
  return training;
}

std::string differenceOf(const Training &one, const Training &other) {
  if (one.problem != other.problem)
    return fmt::format("ends with '{}', not with '{}'", one.problem, other.problem);
  if (one.figures.size() != other.figures.size())
    return fmt::format("has {} steps and evaluations, not {}", one.figures.size(),
                       other.figures.size());
  for (size_t i = 0; i < one.figures.size(); ++i) {
    const Training::Figures &a = one.figures[i], &b = other.figures[i];
    if (a.isEvaluation != b.isEvaluation || !areSameBits(a.loss, b.loss) ||
        !areSameBits(a.gradNorm, b.gradNorm))
      return fmt::format("step or evaluation {} has loss {} and norm {}, not {} and {}", i + 1,
                         a.loss, a.gradNorm, b.loss, b.gradNorm);
  }
  if (one.state.size() != other.state.size())
    return fmt::format("ranks hold {} pieces of state, not {}", one.state.size(),
                       other.state.size());
  for (const auto &[piece, bytes] : one.state) {
    auto at = other.state.find(piece);
    if (at == other.state.end() || at->second != bytes)
      return fmt::format("rank {} ends with another {}", piece.first, piece.second);
  }
  return {};
}

Reference::Reference(const Plan &plan) : own_(train(plan, std::nullopt)), problem_(own_.problem) {
  if (problem_.empty() && (own_.figures.empty() || own_.state.empty()))
    problem_ = "the plan trains nothing";
  if (problem_.empty())
    problem_ = differenceOf(train(plan, 1), own_);
}

std::string Reference::findBreak(const Plan &mutant, bool meansTheSame, uint64_t seed) const {
  if (!run::checkJob(mutant).empty())
    return {}; // the plan does not fit its job, so no run begins
  Training first = train(mutant, std::nullopt);
  // In another schedule, another non-finite value may fail first, so messages are not compared.
  if (!first.problem.empty() && (first.isRefused || !meansTheSame))
    return {};
  if (!first.problem.empty())
    return fmt::format("does not run: {}", first.problem);
  for (uint64_t schedule : {seed, seed + 1})
    if (std::string difference = differenceOf(train(mutant, schedule), first); !difference.empty())
      return fmt::format("schedule {} {}", schedule, difference);
  return meansTheSame ? differenceOf(first, own_) : std::string();
}

} // namespace shardc::plan::oracle
