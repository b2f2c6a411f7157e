#include "TestPlans.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"

namespace shardc::plan::test {

std::string planText(std::string_view name) {
  Result<std::string> text =
      readFile(std::string(SHARDC_TEST_PLANS) + "/" + std::string(name) + ".plan");
  EXPECT_TRUE(text.isOk()) << text.status().message();
  return text.isOk() ? *text : "";
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "no '" << from << "' in the plan";
  if (at == std::string::npos)
    return text;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos)
      << "'" << from << "' stands twice in the plan";
  return text.replace(at, from.size(), to);
}

std::string edited(std::string_view name, const std::vector<Edit> &edits) {
  std::string text = planText(name);
  for (const Edit &edit : edits)
    text = replaced(std::move(text), edit.from, edit.to);
  return text;
}

void PrintTo(const WrongEdit &each, std::ostream *out) { *out << each.name; }

void expectAccepted(const Plan &plan) {
  std::vector<Finding> findings = verify(plan);
  EXPECT_TRUE(findings.empty()) << render(plan, findings[0]);
}

void expectRefused(const Plan &plan, Rule rule, std::string_view message) {
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(ruleId(findings[0].rule), ruleId(rule)) << render(plan, findings[0]);
  EXPECT_NE(findings[0].message.find(message), std::string::npos) << render(plan, findings[0]);
}

uint32_t cellNamed(const Plan &plan, std::string_view name) {
  const std::vector<Cell> &cells = plan.roles[0].cells;
  auto found = std::ranges::find(cells, name, &Cell::name);
  EXPECT_NE(found, cells.end()) << "no cell @" << name;
  return static_cast<uint32_t>(found - cells.begin());
}

void setGroup(Plan &plan, Op &op, int16_t group) {
  op.group = group;
  op.channel = static_cast<ChannelId>(plan.channels.size());
  plan.channels.push_back({"other", group});
}

Plan parsed(std::string_view text) {
  Result<Plan> plan = parse(text, "test.plan");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  return plan.isOk() ? *plan : Plan();
}

std::string parseError(std::string_view text) {
  Result<Plan> plan = parse(text, "test.plan");
  EXPECT_FALSE(plan.isOk());
  return plan.isOk() ? "" : plan.status().message();
}

} // namespace shardc::plan::test
