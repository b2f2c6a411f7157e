// Positions in the protocol's units, incremental changes, and URIs.
#include <gtest/gtest.h>

#include "compiler/lsp/Document.h"

namespace shardc::lsp {
namespace {

Document document(const std::string &text) {
  Document out;
  out.text = text;
  return out;
}

TEST(Document, CountsUtf16Units) {
  Document doc = document("a\u00e9\U0001F600b\nx\r\ny");
  EXPECT_EQ(doc.offsetOf({0, 1}), 1u);
  EXPECT_EQ(doc.offsetOf({0, 2}), 3u);
  EXPECT_EQ(doc.offsetOf({0, 4}), 7u);
  EXPECT_EQ(doc.positionOf(7), (Position{0, 4}));
  EXPECT_EQ(doc.positionOf(9), (Position{1, 0}));
}

TEST(Document, KeepsPlacesInsideOfTheText) {
  Document doc = document("ab\ncd");
  EXPECT_EQ(doc.offsetOf({0, 99}), 2u);
  EXPECT_EQ(doc.offsetOf({99, 0}), 5u);
  EXPECT_EQ(document("x\r\ny").offsetOf({0, 9}), 1u);
  EXPECT_EQ(document("\xF0\x9F").offsetOf({0, 5}), 2u); // half a character
}

TEST(Document, TakesIncrements) {
  Document doc = document("recipe r {\n}\n");
  doc.replace({1, 0}, {1, 0}, "  x\n");
  EXPECT_EQ(doc.text, "recipe r {\n  x\n}\n");
  doc.replace({1, 3}, {0, 10}, "");
  EXPECT_EQ(doc.text, "recipe r {\n}\n");
}

TEST(Document, ReadsAndWritesUris) {
  EXPECT_EQ(pathOfUri("file:///a%20b/c.recipe"), "/a b/c.recipe");
  EXPECT_EQ(pathOfUri("file://host/c.recipe"), "/c.recipe");
  EXPECT_EQ(pathOfUri("untitled:1"), "untitled:1");
  EXPECT_EQ(uriOfPath("/a b/c.recipe"), "file:///a%20b/c.recipe");
  EXPECT_EQ(uriOfPath("untitled:1"), "untitled:1");
  EXPECT_EQ(pathOfUri("file:///a%2"), "/a%2");
}

} // namespace
} // namespace shardc::lsp
