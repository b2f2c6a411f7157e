// Tests that data cannot close the HTML element that contains them, and that the page fetches
// nothing.
#include "compiler/page/Page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardc::page {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string dataOf(const std::string &page) {
  static const std::string kBegin = "<script type=\"application/json\" id=\"data\">";
  size_t begin = page.find(kBegin) + kBegin.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(Page, ReadsBackAnyText) {
  for (const char *text : {"</script><script>alert(1)</script>", "<!--", "]]>", "&lt;",
                           "\xe2\x80\xa8", "/*script*/ /*style*/ /*data*/"}) {
    std::string data = dataOf(htmlPage({{"name", text}}));
    EXPECT_THAT(data, Not(HasSubstr("<")));
    nlohmann::json json = parseJson(data);
    ASSERT_FALSE(json.is_discarded()) << data;
    EXPECT_EQ(json["name"], text);
  }
}

TEST(Page, HasItsStyleAndScriptInside) {
  std::string page = htmlPage(Json::object());
  EXPECT_THAT(page, HasSubstr("--c-forward"));
  EXPECT_THAT(page, HasSubstr("JSON.parse"));
  EXPECT_THAT(page, Not(HasSubstr(" src=")));
  EXPECT_THAT(page, Not(HasSubstr("<link")));
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_THAT(page, Not(HasSubstr("innerHTML")));
}

} // namespace
} // namespace shardc::page
