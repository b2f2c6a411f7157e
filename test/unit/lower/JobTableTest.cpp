// Job.def against Options.def: the job has every option that a plan holds, and nothing else; an
// option's default and range are said alike in both.
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Config.h"
#include "runtime/plan/Text.h"

namespace shardc::lower {
namespace {

using config::Constraint;
using config::OptionInfo;
using config::OptionStatus;
using config::ValueType;
using plan::JobField;
using plan::JobRange;

bool isDerived(JobField field) { return plan::jobInfo(field).path.starts_with("derived."); }

std::vector<JobField> optionFields() {
  std::vector<JobField> fields;
  for (size_t i = 0; i < plan::kJobFields; ++i)
    if (auto field = static_cast<JobField>(i); !isDerived(field))
      fields.push_back(field);
  return fields;
}

const OptionInfo &optionOf(JobField field) {
  std::string_view path = plan::jobInfo(field).path;
  std::optional<config::Opt> option = config::findOption({path.data(), path.size()});
  EXPECT_TRUE(option) << path;
  return config::info(option.value_or(config::Opt{}));
}

TEST(JobTable, HasTheExecutedOptionsOfItsSections) {
  std::set<config::Section> sections;
  std::set<config::Opt> held;
  for (JobField field : optionFields()) {
    const OptionInfo &option = optionOf(field);
    EXPECT_EQ(option.status, OptionStatus::Executed) << plan::jobInfo(field).path;
    sections.insert(option.section);
    held.insert(option.opt);
  }
  for (const OptionInfo &option : config::options())
    if (option.status == OptionStatus::Executed && !option.isCompiled &&
        sections.count(option.section) != 0) {
      EXPECT_EQ(held.count(option.opt), 1u) << option.path.str() << " is missing in Job.def";
    }
}

TEST(JobTable, HasTheOptionsDefaults) {
  for (JobField field : optionFields()) {
    const OptionInfo &option = optionOf(field);
    if (!option.hasDefault())
      continue;
    std::string text = option.defaultText.str();
    plan::JobValue value = plan::Job().value(field);
    if (option.type.type == ValueType::Size) {
      config::Value bytes = config::Value::ofInt(std::get<int64_t>(value));
      EXPECT_EQ(config::toRecipeText(bytes, option.type), text) << option.path.str();
      continue;
    }
    if (std::holds_alternative<std::string>(value))
      text = '"' + text + '"';
    if (std::holds_alternative<std::vector<std::string>>(value) && text != "[]") // of one item
      text = "[\"" + text.substr(1, text.size() - 2) + "\"]";
    auto said = plan::parse(
        "shardc.plan 2 logical \"t\" job { " + option.path.str() + " = " + text + " }", "t.plan");
    ASSERT_TRUE(said.isOk()) << said.status().message();
    EXPECT_EQ(said->job.value(field), value) << option.path.str();
  }
}

TEST(JobTable, HasTheOptionsRanges) {
  for (JobField field : optionFields()) {
    const OptionInfo &option = optionOf(field);
    JobRange range = plan::jobInfo(field).range;
    JobRange::Kind kind = JobRange::Kind::Any;
    switch (option.constraint.kind) {
    case Constraint::Kind::Any:
    case Constraint::Kind::Blend: // the datasets check lists and splits where they read them
    case Constraint::Kind::Split:
      break;
    case Constraint::Kind::AtLeast:
      kind = JobRange::Kind::AtLeast;
      break;
    case Constraint::Kind::Between:
      kind = JobRange::Kind::Between;
      break;
    case Constraint::Kind::HalfOpen:
      kind = JobRange::Kind::HalfOpen;
      break;
    case Constraint::Kind::Positive:
      kind = JobRange::Kind::Positive;
      break;
    }
    if (option.type.type == ValueType::Duration) { // tests of timeouts take shorter ones
      EXPECT_EQ(range.kind, JobRange::Kind::Positive) << option.path.str();
      continue;
    }
    EXPECT_EQ(range.kind, kind) << option.path.str();
    EXPECT_EQ(range.low, option.constraint.low) << option.path.str();
    EXPECT_EQ(range.high, option.constraint.high) << option.path.str();
  }
}

TEST(JobTable, HasTheOptionsTypes) {
  auto typeOf = [](const OptionInfo &option) -> std::string_view {
    switch (option.type.type) {
    case ValueType::Bool:
      return "true or false";
    case ValueType::Int:
    case ValueType::Size:
      return "a whole number";
    case ValueType::Float:
    case ValueType::Duration:
      return "a number";
    case ValueType::String:
      return "a string";
    case ValueType::Enum:
      return "a word in quotes";
    case ValueType::EnumList:
      return "a list of words in quotes";
    case ValueType::IntList:
    case ValueType::FloatList:
    case ValueType::StringList:
    case ValueType::Blend:
      return "a list of strings";
    }
    return "";
  };
  for (JobField field : optionFields()) {
    const OptionInfo &option = optionOf(field);
    const plan::JobFieldInfo &about = plan::jobInfo(field);
    EXPECT_EQ(about.type, typeOf(option)) << about.path;
    if (option.type.type != ValueType::Enum && option.type.type != ValueType::EnumList)
      continue;
    llvm::ArrayRef<llvm::StringRef> words = config::enumSpellings(option.type.enumKind);
    ASSERT_EQ(about.words.size(), words.size()) << about.path;
    for (size_t i = 0; i < words.size(); ++i)
      EXPECT_EQ(about.words[i], words[i].str()) << about.path;
  }
}

} // namespace
} // namespace shardc::lower
