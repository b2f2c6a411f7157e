#include "Saves.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Positions.h"
#include "Splits.h"
#include "runtime/plan/HostCells.h"

namespace shardc::plan::oracle {
namespace {

/// Finds elements of a block's parameters that no rank has, and tensors with equal names.
std::string findUnsaved(const Plan &plan) {
  Positions positions(plan);
  Splits splits(plan, positions);
  std::set<std::string> names;
  for (const Param &param : plan.params) {
    if (param.block < 0)
      continue;
    const Block &block = plan.blocks[static_cast<size_t>(param.block)];
    int64_t tensors = param.isStacked() ? param.wholeType().shape[0] : 1;
    for (int64_t i = 0; i < tensors; ++i)
      if (!names.insert(param.name + (param.isStacked() ? std::to_string(i) : "")).second)
        return param.name + " has the name of another tensor";
    for (int64_t like = 0; like < plan.worldSize(); ++like) {
      bool isThere = std::ranges::any_of(ranksWith(plan, param.block), [&](int64_t rank) {
        bool hasPart = block.stateShard == block.numel ||
                       positions.in(block.stateGroup, rank) == positions.in(block.stateGroup, like);
        return hasPart && splits.areSame(param, rank, like);
      });
      if (!isThere)
        return fmt::format("nobody saves what rank {} would have of {}", like, param.name);
    }
  }
  return {};
}

} // namespace

std::string findSaveBreak(const Plan &plan) {
  return plan.job.checkpoint.save.empty() ? std::string() : findUnsaved(plan);
}

} // namespace shardc::plan::oracle
