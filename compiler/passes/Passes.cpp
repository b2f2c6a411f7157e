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

void runPass(PassId id, plan::Plan &plan, Notes &notes) {
  switch (id) {
#define PASS(enumerator, flag, level, doc)                                                         \
  case PassId::enumerator:                                                                         \
    run##enumerator(plan, notes);                                                                  \
    break;
#include "compiler/passes/Passes.def"
  }
  // Passes that rewrite ops leave values behind that nothing names any more.
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      plan::dropUnusedValues(segment);
  plan.level = std::max(plan.level, passInfo(id).level);
}

} // namespace shardc::passes
