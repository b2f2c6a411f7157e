// Runs the cases of test/config in this process, and checks that each rule and message has one.
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Rules.h"
#include "runtime/base/Io.h"
#include "test/unit/config/Cases.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::config::test {
namespace {

TEST(Cases, MessagesAreThoseExpected) {
  std::vector<Case> cases = allCases();
  EXPECT_GT(cases.size(), 300u);
  for (const Case &one : cases) {
    SourceManager sources;
    DiagEngine diags(sources);
    diags.setErrorLimit(0);
    BufferId buffer = sources.addBuffer(one.file, one.part.text, one.part.firstLine);
    VerifyConsumer consumer(sources, buffer, /*ignoreRemarks=*/true);
    diags.addConsumer(consumer);
    loadConfig(sources, diags, buffer, {});
    diags.finish();
    std::string text;
    llvm::raw_string_ostream out(text);
    EXPECT_TRUE(consumer.check(out)) << text;
  }
}

/// The rules that some case proves to report something (`[id]` in the case's comment), or to stay
/// silent (`[!id]`).
struct Shown {
  std::set<std::string> speaking, silent;
};

Shown showAll() {
  Shown shown;
  for (const Case &one : allCases()) {
    auto loaded = loadText(one.part.text);
    llvm::StringRef head = llvm::StringRef(one.part.text).split("\nrecipe ").first;
    for (const RuleInfo &rule : rules()) {
      std::string id = rule.id.str();
      if (head.contains("[" + id + "]") && loaded->has(id))
        shown.speaking.insert(id);
      if (head.contains("[!" + id + "]") && !loaded->has(id))
        shown.silent.insert(id);
    }
  }
  return shown;
}

/// Rules without messages are tested in DerivedTest.cpp by what they derive.
TEST(Cases, EveryRuleThatSpeaksHasOneWhereItDoesAndOneWhereItDoesNot) {
  Shown shown = showAll();
  for (const RuleInfo &rule : rules()) {
    if (rule.kind == RuleKind::Derive && rule.text.empty())
      continue;
    EXPECT_TRUE(shown.speaking.count(rule.id.str()))
        << "no case of test/config headed [" << rule.id.str() << "] is reported by the rule";
    EXPECT_TRUE(shown.silent.count(rule.id.str()))
        << "no case of test/config headed [!" << rule.id.str() << "] is left alone by the rule";
  }
}

TEST(Cases, EverySilentRuleIsNamedByATest) {
  Result<std::string> text =
      readFile(SHARDC_SOURCE_DIR "/test/unit/config/DerivedTest.cpp", kRecipeBytesMax);
  ASSERT_TRUE(text.isOk());
  for (const RuleInfo &rule : rules()) {
    bool isSilent = rule.kind == RuleKind::Derive && rule.text.empty();
    bool isNamed = text->find("\"" + rule.id.str() + "\"") != std::string::npos;
    EXPECT_TRUE(!isSilent || isNamed) << "DerivedTest.cpp does not name rule " << rule.id.str();
  }
}

} // namespace
} // namespace shardc::config::test
