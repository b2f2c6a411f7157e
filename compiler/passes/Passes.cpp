// Looks up passes by flag, checks that a plan meets the requirements of a pass, and runs the pass.
#include "compiler/passes/Passes.h"

#include <string_view>
#include <unordered_set>

#include <fmt/format.h>

#include "compiler/passes/PassInputs.h"
#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

constexpr PassInfo kPasses[] = {
#define PASS(enumerator, flag, level, runs, doc)                                                   \
  {#enumerator, flag, plan::Level::level, PassRuns::runs, doc},
#include "compiler/passes/Passes.def"
};

/// Renames each value that has the name of an earlier one. Passes make names from names: a second
/// gradient of `x` and a piece of its first one may both be called `d.x.2`.
void makeNamesUnique(plan::Segment &segment) {
  std::unordered_set<std::string_view> names(2 * segment.values.size());
  for (plan::Value &value : segment.values) {
    const std::string name = value.name;
    for (int n = 2; !names.insert(value.name).second; ++n)
      value.name = fmt::format("{}.{}", name, n);
  }
}

} // namespace

const PassInfo &passInfo(PassId id) { return kPasses[static_cast<size_t>(id)]; }

std::optional<PassId> findPass(std::string_view flag) {
  for (PassId id : allPasses())
    if (passInfo(id).flag == flag)
      return id;
  return std::nullopt;
}

std::vector<PassId> allPasses() {
  std::vector<PassId> ids;
  for (size_t i = 0; i < std::size(kPasses); ++i)
    ids.push_back(static_cast<PassId>(i));
  return ids;
}

Status checkInput(PassId id, const plan::Plan &plan) {
  const PassInfo &pass = passInfo(id);
  // The first pass needs a logical plan.
  plan::Level taken = id == PassId{} ? plan::Level::Logical : (&pass - 1)->level;
  if (plan.level != taken)
    return makeStatus(report::PassRefusesPlan, "--{} needs a plan that is {}; '{}' is {}",
                      pass.flag, plan::toString(taken), plan.name, plan::toString(plan.level));
  if (std::optional<std::string> needed = findNeeded(id, plan))
    return makeStatus(report::PassRefusesPlan, "--{} needs {}", pass.flag, *needed);
  return Status::ok();
}

size_t countForwardOps(const plan::Segment &segment) {
  for (size_t i = 0; i < segment.ops.size(); ++i)
    if (segment.ops[i].phase == plan::Phase::Backward)
      return i;
  return segment.ops.size();
}

void runPass(PassId id, plan::Plan &plan, Notes &notes) {
  switch (id) {
#define PASS(enumerator, ...)                                                                      \
  case PassId::enumerator:                                                                         \
    run##enumerator(plan, notes);                                                                  \
    break;
#include "compiler/passes/Passes.def"
  }
  // Removes the values that passes no longer reference after they have rewritten ops.
  const bool makesNames = plan.level < passInfo(id).level || id == PassId::OverlapTensorCollectives;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments) {
      plan::dropUnusedValues(segment);
      if (makesNames)
        makeNamesUnique(segment);
    }
  plan.level = std::max(plan.level, passInfo(id).level);
}

} // namespace shardc::passes
