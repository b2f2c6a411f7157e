// Plans that carry their specification.
#include "runtime/base/Packed.h"
#include "runtime/base/Reports.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc::plan::spec {

std::string packed(const Plan &specification) { return packText(print(specification)); }

namespace {

Result<Plan> unpacked(const std::string &packed) {
  ASSIGN_OR_RETURN(std::string text, unpackText(packed, limits::kSourceBytesMax));
  ASSIGN_OR_RETURN(Plan specification, parse(text, "<specification>"));
  RETURN_IF_ERROR(verified(specification));
  return specification;
}

} // namespace

Status proved(const Plan &plan) {
  if (plan.specification.empty())
    return Status::ok();
  Result<Plan> specification = unpacked(plan.specification);
  if (!specification.isOk())
    return makeStatus(report::PlanRefused,
                      "plan: error: the specification that it carries is damaged: {} [{}]",
                      specification.status().message(), ruleId(Rule::Specification));
  Comparison compared = compare(*specification, plan);
  return compared.difference ? makeStatus(report::PlanRefused, render(plan, *compared.difference))
                             : Status::ok();
}

} // namespace shardc::plan::spec
