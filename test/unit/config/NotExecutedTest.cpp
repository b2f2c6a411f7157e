// Options that change training but are not executed refuse values other than the default. Rows of
// options that are only checked do not say that they change training.
#include <regex>

#include <gtest/gtest.h>

#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

std::vector<std::string> valuesOf(const OptionInfo &option) {
  switch (option.type.type) {
  case ValueType::Bool:
    return {"true", "false"};
  case ValueType::Enum: {
    std::vector<std::string> words;
    for (llvm::StringRef word : enumSpellings(option.type.enumKind))
      words.push_back('"' + word.str() + '"');
    return words;
  }
  case ValueType::Int:
    return {"3", "7"};
  case ValueType::Float:
    return {"0.5"};
  case ValueType::Duration:
    return {"7"};
  case ValueType::IntList:
    return {"[1]"};
  case ValueType::StringList:
    return {"[\"x\"]"};
  default:
    return {"\"x\""};
  }
}

/// The settings with which the option has an effect.
std::string beside(const OptionInfo &option) {
  std::vector<NeededSetting> settings = neededSettings(option);
  if (settings.empty())
    return "";
  std::string path = info(settings[0].opt).path.str();
  switch (settings[0].kind) {
  case NeededSetting::Kind::Above:
    return path + " = 2\n";
  case NeededSetting::Kind::Equal:
    return path + " = " + toRecipeText(settings[0].value, info(settings[0].opt).type) + "\n";
  case NeededSetting::Kind::Set:
    break;
  }
  return path == "model.fp8"   ? "model.fp8 = hybrid\n"
         : path == "model.fp4" ? "model.fp4 = e2m1\n"
                               : path + " = true\n";
}

bool isRefused(const OptionInfo &option, const std::string &value) {
  auto loaded = loadBody(beside(option) + option.path.str() + " = " + value);
  return llvm::any_of(loaded->messages, [&](const Diagnostic &message) {
    return message.id == "option-not-executed" && message.severity == Severity::Error &&
           message.text.find("'" + option.path.str() + "'") != std::string::npos;
  });
}

TEST(NotExecuted, AnotherValueThanTheDefaultIsRefused) {
  for (const OptionInfo &option : options()) {
    if (option.status != OptionStatus::NotExecuted)
      continue;
    bool isOnceRefused = false;
    for (const std::string &value : valuesOf(option))
      isOnceRefused |= isRefused(option, value);
    EXPECT_TRUE(isOnceRefused) << option.path.str();
    if (option.hasDefault()) {
      EXPECT_FALSE(isRefused(option, option.defaultText.str())) << option.path.str();
    }
  }
}

TEST(NotExecuted, UpstreamMayBeAskedForThem) {
  LoadOptions options;
  options.isForUpstream = true;
  EXPECT_FALSE(
      loadBody("checkpoint.custom_manager_class = \"Saver\"", options)->has("option-not-executed"));
}

/// Options that are not executed have a reason. Without the settings that it needs, such an option
/// has no effect and is not an error.
TEST(NotExecuted, SaysWhy) {
  for (const OptionInfo &option : options())
    EXPECT_TRUE(option.status != OptionStatus::NotExecuted || !option.why.empty())
        << option.path.str();
  EXPECT_TRUE(loadBody("model.pipeline_dtype = fp8")->has("option-without-effect"));
  EXPECT_FALSE(loadBody("model.pipeline_dtype = fp8")->has("option-not-executed"));
}

/// Options that are only checked have a reason that says what they concern instead of training; no
/// other options have one.
TEST(NotExecuted, WhatIsIgnoredSaysWhy) {
  for (const OptionInfo &option : options()) {
    bool isIgnored = option.status == OptionStatus::CheckedOnly;
    EXPECT_EQ(isIgnored, option.ignored != Ignored::Nothing) << option.path.str();
    EXPECT_EQ(isIgnored, !reasonOf(option.ignored).empty()) << option.path.str();
  }
}

/// A row whose name suggests that the option changes training must be marked as reviewed.
TEST(NotExecuted, WhatIsCheckedDoesNotSayThatItChangesTraining) {
  const std::regex words("skip|evaluat|decay|weight|batch|exit|epoch|threshold|loss|stop|seed|spik|"
                         "inject|quant|random|fp32|fp8|fp4|sample|grad|softmax|init|"
                         "shuffle|mask");
  for (const OptionInfo &option : options()) {
    bool sounds =
        option.status == OptionStatus::CheckedOnly && std::regex_search(option.name.str(), words);
    EXPECT_EQ(sounds, option.isReviewed) << option.path.str();
  }
}

} // namespace
} // namespace shardc::config::test
