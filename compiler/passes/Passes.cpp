#include "compiler/passes/Passes.h"

#include <array>

#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

constexpr PassInfo kPasses[] = {
#define PASS(enumerator, flag, level, doc) {#enumerator, flag, plan::Level::level, doc},
#include "compiler/passes/Passes.def"
};

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
  if (id == PassId::InsertCollectives)
    for (const plan::Role &role : plan.roles) {
      size_t count = plan.blocks.size();
      std::vector<uint32_t> weights = plan::findCells(role, plan::CellKind::Weight, count);
      std::vector<uint32_t> gradients = plan::findCells(role, plan::CellKind::Gradient, count);
      for (size_t b = 0; b < count; ++b)
        if (weights[b] == plan::kNone || gradients[b] == plan::kNone) {
          plan::CellKind kind =
              weights[b] == plan::kNone ? plan::CellKind::Weight : plan::CellKind::Gradient;
          return makeStatus(StatusCode::InvalidInput,
                            "--{} needs a cell '{} of {}'; role '{}' has none", pass.flag,
                            plan::cellKindInfo(kind).word, plan.blocks[b].name, role.name);
        }
    }
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
