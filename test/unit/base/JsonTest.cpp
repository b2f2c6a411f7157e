// Texts of JSON from files that anybody may have written.
#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Json.h"

namespace shardc {
namespace {

TEST(Json, RefusesTextsThatAreNestedTooDeep) {
  auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_FALSE(parseJson(nested(1000)).is_discarded());
  EXPECT_TRUE(parseJson(nested(1001)).is_discarded());
  EXPECT_TRUE(parseJson(std::string(500'000, '[')).is_discarded());
}

TEST(Json, CountsNoBracketsOfStrings) {
  std::string text = R"(["\")" + std::string(2000, '[') + R"("])";
  ASSERT_FALSE(parseJson(text).is_discarded());
  EXPECT_EQ(parseJson(text)[0].get<std::string>().size(), 2001u);
}

} // namespace
} // namespace shardc
