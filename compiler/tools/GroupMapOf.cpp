#include "compiler/tools/GroupMapOf.h"

#include <algorithm>

#include "compiler/tools/CkptTools.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Parser.h"

namespace shardc::tools {
namespace {

struct GroupKey {
  bool isExpert;
  double lrMult, wdMult;
  bool operator==(const GroupKey &) const = default;
};

GroupKey keyOf(const plan::Param &param) {
  bool isExpert = param.name.find(".mlp.experts.") != std::string::npos;
  return {isExpert, param.lrMult, param.wdMult};
}

} // namespace

checkpoint::GroupMap groupMapOf(const plan::Plan &plan) {
  std::vector<GroupKey> groups;
  for (const plan::Param &param : plan.params)
    if (std::ranges::find(groups, keyOf(param)) == groups.end())
      groups.push_back(keyOf(param));
  std::ranges::stable_sort(groups, {}, &GroupKey::isExpert);
  checkpoint::GroupMap map;
  for (const plan::Param &param : plan.params)
    map[param.name] = std::ranges::find(groups, keyOf(param)) - groups.begin();
  return map;
}

Status dumpGroupMap(const std::string &folder, const plan::Plan &plan) {
  if (folder.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(JobRanks ranks, JobRanks::fromEnvironment());
  return ranks.isFirst() ? checkpoint::writeGroupMapFolder(folder, groupMapOf(plan)) : Status::ok();
}

Status dumpGroupMapOf(const std::string &folder, const std::string &planPath) {
  if (folder.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(std::string text, readFile(planPath, plan::limits::kTextBytesMax));
  ASSIGN_OR_RETURN(plan::Plan plan, plan::parse(text, planPath));
  return dumpGroupMap(folder, plan);
}

} // namespace shardc::tools
