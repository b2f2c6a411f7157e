// Options that change training and are not executed: a value that is not the default is refused,
// and the rows that are only checked do not say that they change it.
#include <regex>

#include <gtest/gtest.h>

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

bool isRefused(const OptionInfo &option, const std::string &value) {
  auto loaded = loadBody(option.path.str() + " = " + value);
  const Diagnostic *found = loaded->find("option-not-executed");
  return found != nullptr && found->severity == Severity::Error &&
         found->text.find("'" + option.path.str() + "'") != std::string::npos;
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
      loadBody("train.step_batch_size_schedule = \"0:4\"", options)->has("option-not-executed"));
}

/// What is only checked has a reason that says what it is about instead of training, and nothing
/// else has one.
TEST(NotExecuted, WhatIsIgnoredSaysWhy) {
  for (const OptionInfo &option : options()) {
    bool isIgnored = option.status == OptionStatus::CheckedOnly;
    EXPECT_EQ(isIgnored, option.ignored != Ignored::Nothing) << option.path.str();
    EXPECT_EQ(isIgnored, !reasonOf(option.ignored).empty()) << option.path.str();
  }
}

/// A row whose text sounds as if the option changed training is one that somebody has looked at.
TEST(NotExecuted, WhatIsCheckedDoesNotSayThatItChangesTraining) {
  const std::regex words(
      "skip|evaluat|decay|weights|batch|exit|epoch|threshold|loss|stop|seed|spik|"
      "inject|quantis|random|fp32|fp8|fp4|samples|gradients|softmax|initialis|"
      "shuffle|mask");
  for (const OptionInfo &option : options()) {
    bool sounds =
        option.status == OptionStatus::CheckedOnly && std::regex_search(option.doc.str(), words);
    EXPECT_EQ(sounds, option.isReviewed) << option.path.str() << ": " << option.doc.str();
  }
}

} // namespace
} // namespace shardc::config::test
