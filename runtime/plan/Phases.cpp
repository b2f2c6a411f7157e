// Compares the plans of a job with batch-size rampup: each must continue where its predecessor
// ends, with the same state at the same addresses.
#include "runtime/plan/JobFacts.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::plan {
namespace {

bool isSame(const Cell &a, const Cell &b) {
  return a.name == b.name && a.kind == b.kind && a.of == b.of && a.type == b.type &&
         a.place == b.place;
}

/// The cells of a role in arena `state`.
std::vector<const Cell *> stateOf(const Role &role) {
  std::vector<const Cell *> cells;
  for (const Cell &cell : role.cells)
    if (cell.arena == Arena::State)
      cells.push_back(&cell);
  return cells;
}

bool hasSameState(const Role &a, const Role &b) {
  constexpr auto kState = static_cast<size_t>(Arena::State);
  return a.arenaBytes[kState] == b.arenaBytes[kState] &&
         std::ranges::equal(stateOf(a), stateOf(b), [](const Cell *one, const Cell *other) {
           return isSame(*one, *other);
         });
}

bool isSame(const AxisRange &a, const AxisRange &b) {
  return a.axis == b.axis && a.begin == b.begin && a.end == b.end;
}

/// Whether the same ranks have the same state at the same addresses in both plans.
bool hasSameState(const Plan &a, const Plan &b) {
  auto areSame = [](const auto &one, const auto &other) { return isSame(one, other); };
  return a.needsBackend == b.needsBackend &&
         std::ranges::equal(a.mesh, b.mesh, {}, &MeshAxis::size, &MeshAxis::size) &&
         std::ranges::equal(a.groups, b.groups, {}, &Group::axes, &Group::axes) &&
         std::ranges::equal(a.roles, b.roles, [&](const Role &one, const Role &other) {
           return std::ranges::equal(one.where, other.where, areSame) && hasSameState(one, other);
         });
}

/// Why the next plan cannot follow; empty if it can.
std::string problemOf(const Plan &plan, int64_t firstStep, const Plan &next) {
  int64_t size = batchSizesOf(plan.job, /*isEval=*/false).global;
  int64_t steps = lastStepOf(plan) - firstStep, end = 0;
  if (steps < 1 || __builtin_mul_overflow(steps, size, &end) ||
      __builtin_add_overflow(end, plan.job.derived.samplesBefore, &end))
    return "the plan before it has no steps";
  if (end != next.job.derived.samplesBefore)
    return fmt::format("it begins after {} samples, and the plan before it ends after {}",
                       next.job.derived.samplesBefore, end);
  return hasSameState(plan, next) ? "" : "its state is not that of the plan before it";
}

} // namespace

int64_t lastStepOf(const Plan &plan) {
  if (!plan.roles.empty())
    for (const ProgramNode &node : plan.roles.front().program)
      if (node.kind == ProgramNode::Steps)
        return node.count;
  return 0;
}

int64_t samplesOfSteps(std::span<const Plan> plans, int64_t steps) {
  size_t phase = 0;
  while (phase + 1 < plans.size() && lastStepOf(plans[phase]) <= steps)
    ++phase;
  int64_t before = phase == 0 ? 0 : lastStepOf(plans[phase - 1]);
  const Job &job = plans[phase].job;
  return job.derived.samplesBefore + (steps - before) * batchSizesOf(job, /*isEval=*/false).global;
}

size_t phaseAfter(std::span<const Plan> plans, int64_t samples) {
  size_t phase = 0;
  while (phase + 1 < plans.size() && plans[phase + 1].job.derived.samplesBefore <= samples)
    ++phase;
  return phase;
}

Status checkPhases(std::span<const Plan> plans) {
  if (int64_t before = plans.front().job.derived.samplesBefore; before != 0)
    return makeStatus(report::PlanCannotRun,
                      "the first plan begins after {} samples; those of the steps before are "
                      "missing",
                      before);
  int64_t firstStep = 0;
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    if (std::string problem = problemOf(plans[i], firstStep, plans[i + 1]); !problem.empty())
      return makeStatus(report::PlanCannotRun, "plan {} of {} cannot follow: {}", i + 2,
                        plans.size(), problem);
    firstStep = lastStepOf(plans[i]);
  }
  int64_t steps = lastStepOf(plans.back()), meant = plans.back().job.train.trainIters;
  if (plans.size() > 1 && meant > 0 && steps != meant)
    return makeStatus(report::PlanCannotRun,
                      "the last plan ends after {} steps; train.train_iters is {}", steps, meant);
  return Status::ok();
}

} // namespace shardc::plan
