// The reference pages in docs/ match the tables. SHARDC_REGENERATE=1 writes them.
#include <cstdlib>

#include <gtest/gtest.h>

#include "compiler/config/Explain.h"
#include "runtime/base/Io.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

void checkPage(const std::string &name, const std::string &text) {
  std::string path = SHARDC_SOURCE_DIR "/docs/" + name;
  if (std::getenv("SHARDC_REGENERATE"))
    writeText(path, text);
  Result<std::string> page = readFile(path, kRecipeBytesMax);
  ASSERT_TRUE(page.isOk()) << page.status().message();
  EXPECT_TRUE(*page == text) << path << " is out of date; run this test with SHARDC_REGENERATE=1";
}

TEST(Docs, OptionsAreUpToDate) { checkPage("options.md", optionReference()); }
TEST(Docs, RulesAreUpToDate) { checkPage("rules.md", ruleReference()); }

} // namespace
} // namespace shardc::config::test
