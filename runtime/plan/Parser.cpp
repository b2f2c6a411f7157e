// Parses plans, and texts with several plans.
#include <algorithm>

#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Reports.h"
#include "runtime/plan/Form.h"
#include "runtime/plan/Reader.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

Result<Plan> parseAfter(std::string_view text, std::string_view fileName, int64_t linesBefore) {
  if (static_cast<int64_t>(text.size()) > limits::kTextBytesMax)
    return makeStatus(report::PlanRefused,
                      "{}: error: the plan has {} bytes; the limit is {} [plan-limit]", fileName,
                      text.size(), limits::kTextBytesMax);
  Reader reader(text, fileName, linesBefore);
  Plan plan;
  reader.head(plan);
  Form<Reader>(reader, plan).constructs();
  RETURN_IF_ERROR(reader.status());
  for (Source &source : plan.sources)
    source.text = withoutSecrets(source.text);
  return plan;
}

} // namespace

Result<Plan> parse(std::string_view text, std::string_view fileName) {
  return parseAfter(text, fileName, 0);
}

std::vector<std::string_view> plansOf(std::string_view text) {
  static constexpr std::string_view kBegin = "\nshardc.plan ";
  constexpr size_t kNone = std::string_view::npos;
  std::vector<std::string_view> plans;
  for (size_t next = 0; next != kNone; text.remove_prefix(plans.back().size())) {
    // Text before the first line of the first plan belongs to that plan.
    size_t own = text.starts_with(kBegin.substr(1)) ? 0 : text.find(kBegin);
    next = own == kNone ? kNone : text.find(kBegin, own + 1);
    plans.push_back(text.substr(0, next == kNone ? kNone : next + 1));
  }
  return plans;
}

Result<std::vector<Plan>> parseJob(std::string_view text, std::string_view fileName) {
  std::vector<Plan> plans;
  int64_t lines = 0;
  for (std::string_view each : plansOf(text)) {
    ASSIGN_OR_RETURN(Plan plan, parseAfter(each, fileName, lines));
    plans.push_back(std::move(plan));
    lines += std::ranges::count(each, '\n');
  }
  return plans;
}

} // namespace shardc::plan
