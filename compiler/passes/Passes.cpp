// Looks passes up by flag, checks that a plan has what a pass needs, and runs it.
#include "compiler/passes/Passes.h"

#include <array>

#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

constexpr PassInfo kPasses[] = {
#define PASS(enumerator, flag, level, doc) {#enumerator, flag, plan::Level::level, doc},
#include "compiler/passes/Passes.def"
};

Status missingCell(const PassInfo &pass, const plan::Role &role, plan::CellKind kind,
                   const plan::Block &block) {
  return makeStatus(StatusCode::InvalidInput, "--{} needs a cell '{} of {}'; role '{}' has none",
                    pass.flag, plan::cellKindInfo(kind).word, block.name, role.name);
}

/// Each block has its weights and its gradient in the roles that have it, one at least.
Status checkBlockCells(const PassInfo &pass, const plan::Plan &plan) {
  size_t count = plan.blocks.size();
  std::vector<uint8_t> found(count);
  for (const plan::Role &role : plan.roles) {
    std::vector<uint32_t> weights = plan::findCells(role, plan::CellKind::Weight, count);
    std::vector<uint32_t> gradients = plan::findCells(role, plan::CellKind::Gradient, count);
    for (size_t b = 0; b < count; ++b) {
      bool hasWeight = weights[b] != plan::kNone, hasGradient = gradients[b] != plan::kNone;
      if (hasWeight != hasGradient)
        return missingCell(pass, role,
                           hasWeight ? plan::CellKind::Gradient : plan::CellKind::Weight,
                           plan.blocks[b]);
      found[b] |= static_cast<uint8_t>(hasWeight);
    }
  }
  for (size_t b = 0; b < count && !plan.roles.empty(); ++b)
    if (found[b] == 0)
      return missingCell(pass, plan.roles.front(), plan::CellKind::Weight, plan.blocks[b]);
  return Status::ok();
}

/// The update continues the step state, which lowering has given each role.
Status checkStepCell(const PassInfo &pass, const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles)
    if (plan::findCell(role, plan::CellKind::Step) == plan::kNone)
      return makeStatus(StatusCode::InvalidInput, "--{} needs a cell '{}'; role '{}' has none",
                        pass.flag, plan::cellKindInfo(plan::CellKind::Step).word, role.name);
  return Status::ok();
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
  // The table has the order of the pipeline, which begins with a logical plan.
  plan::Level taken = id == PassId{} ? plan::Level::Logical : (&pass - 1)->level;
  if (plan.level != taken)
    return makeStatus(StatusCode::InvalidInput, "--{} needs a plan that is {}; '{}' is {}",
                      pass.flag, plan::toString(taken), plan.name, plan::toString(plan.level));
  for (const plan::Param &param : plan.params)
    if (param.block < 0 || plan.blocks[static_cast<size_t>(param.block)].unit < 0)
      return makeStatus(StatusCode::InvalidInput,
                        "--{} needs parameters in blocks of units; '{}' is in no block", pass.flag,
                        param.name);
  if (id == PassId::BuildUpdate)
    return checkStepCell(pass, plan);
  return id == PassId::InsertCollectives ? checkBlockCells(pass, plan) : Status::ok();
}

size_t countForwardOps(const plan::Segment &segment) {
  for (size_t i = 0; i < segment.ops.size(); ++i)
    if (segment.ops[i].phase == plan::Phase::Backward)
      return i;
  return segment.ops.size();
}

void runPass(PassId id, plan::Plan &plan, Notes &notes) {
  switch (id) {
#define PASS(enumerator, flag, level, doc)                                                         \
  case PassId::enumerator:                                                                         \
    run##enumerator(plan, notes);                                                                  \
    break;
#include "compiler/passes/Passes.def"
  }
  // Passes that rewrite ops leave unreferenced values behind.
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      plan::dropUnusedValues(segment);
  plan.level = std::max(plan.level, passInfo(id).level);
}

} // namespace shardc::passes
