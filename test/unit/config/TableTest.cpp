// Consistency of the tables: defaults match their types, names are unique, texts can be formatted.
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "compiler/config/Rules.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

TEST(Tables, PathsAreUniqueAndFound) {
  for (const OptionInfo &option : options()) {
    EXPECT_EQ(findOption(option.path), option.opt) << option.path.str();
    EXPECT_EQ(findAlias(option.path), nullptr) << option.path.str();
  }
  std::set<std::string> seen;
  for (const AliasInfo &alias : aliases()) {
    EXPECT_TRUE(seen.insert(alias.path.str()).second) << alias.path.str();
    EXPECT_EQ(findAlias(alias.path), &alias);
  }
}

TEST(Tables, DefaultsFitTheirOptions) {
  for (const OptionInfo &option : options()) {
    if (!option.hasDefault())
      continue;
    SCOPED_TRACE(option.path.str());
    Value value = parseTableValue(option.defaultText, option);
    EXPECT_FALSE(value.isNone());
    auto loaded = loadBody(option.path.str() + " = " + toRecipeText(value, option.type));
    for (const char *id : {"wrong-type", "value-out-of-range", "unknown-enumerator"})
      EXPECT_FALSE(loaded->has(id));
    EXPECT_EQ((*loaded->config)[option.opt].isPoisoned, false);
  }
}

TEST(Tables, DocsAreOneFragment) {
  for (const OptionInfo &option : options()) {
    EXPECT_EQ(option.doc.empty(), option.status != OptionStatus::Executed) << option.path.str();
    EXPECT_FALSE(summary(option).empty()) << option.path.str();
    EXPECT_FALSE(option.doc.endswith(".")) << option.path.str();
  }
}

TEST(Tables, EnumeratorsAreUnique) {
  for (const OptionInfo &option : options()) {
    if (option.type.type != ValueType::Enum && option.type.type != ValueType::EnumList)
      continue;
    std::set<llvm::StringRef> seen;
    llvm::ArrayRef<llvm::StringRef> spellings = enumSpellings(option.type.enumKind);
    EXPECT_LT(spellings.size(), 256u);
    for (size_t i = 0; i < spellings.size(); ++i) {
      EXPECT_TRUE(seen.insert(spellings[i]).second) << spellings[i].str();
      EXPECT_EQ(findEnumerator(option.type.enumKind, spellings[i]), i);
    }
  }
}

TEST(Tables, SectionsHaveOptionsAndKindsAreTheirOwn) {
  for (const SectionInfo &section : sections()) {
    size_t count = 0;
    for (const OptionInfo &option : options())
      count += option.section == section.section;
    EXPECT_GT(count, 0u) << section.name.str();
    EXPECT_TRUE(!section.kind || info(*section.kind).section == section.section);
  }
}

TEST(Tables, RuleIdsAreUniqueAndTextsWellFormed) {
  std::set<llvm::StringRef> seen;
  for (const RuleInfo &rule : rules()) {
    SCOPED_TRACE(rule.id.str());
    EXPECT_TRUE(seen.insert(rule.id).second);
    EXPECT_EQ(findRule(rule.id), &rule);
    EXPECT_FALSE(rule.text.endswith("."));
    bool needsGroup = rule.kind == RuleKind::Warning || rule.kind == RuleKind::Remark ||
                      rule.kind == RuleKind::Adjust ||
                      (rule.kind == RuleKind::Derive && !rule.text.empty());
    EXPECT_EQ(!rule.group.empty(), needsGroup);
    bool isChange = rule.kind == RuleKind::Derive || rule.kind == RuleKind::Adjust;
    EXPECT_TRUE(!isChange || !rule.reason.empty());
    EXPECT_TRUE(rule.kind != RuleKind::Adjust || checkDiagText(rule.text, 3).empty());
  }
}

TEST(Tables, MessagesOfRulesHaveNoOpenPlaceholder) {
  for (const Case &one : allCases()) {
    auto loaded = loadText(one.part.text);
    for (const Diagnostic &message : loaded->messages)
      EXPECT_EQ(message.text.find('{'), std::string::npos) << message.text;
  }
}

TEST(Tables, ShorthandIsNoEnumerator) {
  for (const ShorthandInfo &shorthand : shorthands()) {
    EXPECT_EQ(findEnumerator(info(shorthand.option).type.enumKind, shorthand.word), std::nullopt);
    EXPECT_FALSE(parseTableValue(shorthand.value, info(shorthand.option)).isNone());
    EXPECT_FALSE(parseTableValue(shorthand.otherValue, info(shorthand.other)).isNone());
  }
}

} // namespace
} // namespace shardc::config::test
