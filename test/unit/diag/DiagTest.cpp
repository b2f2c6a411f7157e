#include "compiler/diag/Diag.h"
#include "compiler/diag/Remarks.h"

#include <set>

#include <gtest/gtest.h>

#include "llvm/ADT/StringExtras.h"

namespace shardc {
namespace {

TEST(DiagText, PutsArgumentsIn) {
  EXPECT_EQ(formatDiagText("'{0}' ({1})", {DiagArg("heads"), DiagArg(30)}), "'heads' (30)");
  EXPECT_EQ(formatDiagText("{{ {0} }}", {DiagArg("x")}), "{ x }");
  EXPECT_EQ(formatDiagText("{1}{0}", {DiagArg("a"), DiagArg("b")}), "ba");
}

TEST(DiagText, SelectsWordsAndPlurals) {
  auto text = [](int n) { return formatDiagText("{0} byte{0:s} {0?none|one|many}", {DiagArg(n)}); };
  EXPECT_EQ(text(0), "0 bytes none");
  EXPECT_EQ(text(1), "1 byte one");
  EXPECT_EQ(text(7), "7 bytes many");
  EXPECT_EQ(text(-1), "-1 bytes many");
}

TEST(DiagText, KeepsWhatIsNoPlaceholder) {
  EXPECT_EQ(formatDiagText("{1} {x} {", {DiagArg("a")}), "{1} {x} {");
}

TEST(DiagText, ArgumentsAreNotReadAgain) {
  EXPECT_EQ(formatDiagText("{0}{1}", {DiagArg("{1}"), DiagArg("b")}), "{1}b");
}

TEST(DiagText, ChecksPlaceholders) {
  EXPECT_EQ(checkDiagText("'{0}' {1:s} {{}}", 2), "");
  EXPECT_NE(checkDiagText("{0}", 0), "");
  EXPECT_NE(checkDiagText("{0}", 2), "");
  EXPECT_NE(checkDiagText("{x}", 0), "");
  EXPECT_NE(checkDiagText("a } b", 0), "");
}

/// What the table promises to readers of messages.
TEST(DiagTable, RowsKeepTheRules) {
  std::set<llvm::StringRef> ids;
  for (const DiagRow &row : diagTable()) {
    SCOPED_TRACE(row.name.str());
    EXPECT_TRUE(ids.insert(row.info.id).second) << "the id is used twice";
    EXPECT_EQ(checkDiagText(row.info.text, row.numArgs), "");
    EXPECT_TRUE(llvm::all_of(row.info.id, [](char c) {
      return llvm::isDigit(c) || (c >= 'a' && c <= 'z') || c == '-';
    })) << "ids are kebab-case";
    EXPECT_FALSE(row.info.text.endswith("."));
    bool hasGroup = row.info.severity == Severity::Warning || row.info.severity == Severity::Remark;
    EXPECT_EQ(row.info.group.empty(), !hasGroup) << "warnings and remarks have a group";
    EXPECT_TRUE(row.info.severity != Severity::Remark || findRemarkKind(row.info.group))
        << "RemarkKinds.def has its group";
  }
}

} // namespace
} // namespace shardc
