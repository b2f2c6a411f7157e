#include "compiler/tools/GroupMapOf.h"

#include <iterator>
#include <set>

#include "compiler/tools/CkptTools.h"
#include "runtime/base/Io.h"
#include "runtime/checkpoint/GroupOrder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

checkpoint::GroupKey keyOf(const plan::Plan &plan, const plan::Param &param) {
  return {plan::isExpertParallel(plan.job, param), param.wdMult, param.lrMult, param.isDecoupled,
          plan::isOfRest(plan, param)};
}

} // namespace

checkpoint::GroupMap groupMapOf(const plan::Plan &plan) {
  std::set<checkpoint::GroupKey> groups;
  for (const plan::Param &param : plan.params)
    groups.insert(keyOf(plan, param));
  checkpoint::GroupMap map;
  for (const plan::Param &param : plan.params)
    for (int64_t i = 0; i < param.tensorCount(); ++i)
      map[param.tensorName(i)] = std::distance(groups.begin(), groups.find(keyOf(plan, param)));
  return map;
}

Status makeGroupMap(const std::string &folder, const checkpoint::GroupMap &groups) {
  checkpoint::FolderLock lock;
  RETURN_IF_ERROR(lockOutput(folder, lock));
  return checkpoint::writeGroupMapFolder(folder, groups);
}

Status dumpGroupMap(const std::string &folder, const plan::Plan &plan) {
  if (folder.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(JobRanks ranks, JobRanks::fromEnvironment());
  return ranks.isFirst() ? makeGroupMap(folder, groupMapOf(plan)) : Status::ok();
}

Status dumpGroupMapOf(const std::string &folder, const std::string &planPath) {
  if (folder.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(std::string text, readFile(planPath, plan::limits::kTextBytesMax));
  ASSIGN_OR_RETURN(std::vector<plan::Plan> plans, plan::parseJob(text, planPath));
  return dumpGroupMap(folder, plans.front()); // all have the same parameters
}

} // namespace shardc::tools
