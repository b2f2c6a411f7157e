// Plans that carry their specification.
#include <fmt/format.h>

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
  std::optional<Finding> difference;
  if (Result<Plan> specification = unpacked(plan.specification); specification.isOk())
    difference = compare(*specification, plan).difference;
  else
    difference = Finding{.rule = Rule::Specification,
                         .message = fmt::format("the specification that it carries is damaged: {}",
                                                specification.status().message())};
  return difference ? makeStatus(report::PlanRefused, render(plan, *difference)) : Status::ok();
}

} // namespace shardc::plan::spec
