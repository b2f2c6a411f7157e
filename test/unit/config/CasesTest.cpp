// The cases of test/config, in process; and that each rule and message has one.
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

/// Rules that say nothing are shown by what they derive, in DerivedTest.cpp.
TEST(Cases, EveryRuleThatSpeaksHasOne) {
  std::string all;
  for (const Case &one : allCases())
    all += one.part.text;
  for (const RuleInfo &rule : rules()) {
    bool isSilent = rule.kind == RuleKind::Derive && rule.text.empty();
    bool isNamed = all.find("[" + rule.id.str() + "]") != std::string::npos;
    EXPECT_TRUE(isSilent || isNamed) << "no case of test/config names rule " << rule.id.str();
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
