#include "compiler/diag/WarningFlags.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

constexpr DiagInfo kWarning{Severity::Warning, "w", "fsdp", "w"};
constexpr DiagInfo kRemark{Severity::Remark, "r", "fsdp", "r"};
constexpr DiagInfo kError{Severity::Error, "e", "", "e"};

class WarningFlagsTest : public testing::Test {
protected:
  WarningFlagsTest() { flags.addGroup("fsdp"); }
  void apply(llvm::StringRef flag) { EXPECT_TRUE(flags.apply(flag).isOk()) << flag.str(); }

  WarningFlags flags;
};

TEST_F(WarningFlagsTest, ShowsAllAtFirst) {
  EXPECT_EQ(flags.effective(kWarning), Severity::Warning);
  EXPECT_EQ(flags.effective(kRemark), Severity::Remark);
  EXPECT_EQ(flags.effective(kError), Severity::Error);
}

TEST_F(WarningFlagsTest, TheLastFlagWins) {
  apply("-Wno-fsdp");
  EXPECT_EQ(flags.effective(kWarning), std::nullopt);
  EXPECT_EQ(flags.effective(kRemark), std::nullopt);
  apply("-Wfsdp");
  EXPECT_EQ(flags.effective(kWarning), Severity::Warning);
}

TEST_F(WarningFlagsTest, ErrorPromotesWarningsButNotRemarks) {
  apply("-Werror");
  EXPECT_EQ(flags.effective(kWarning), Severity::Error);
  EXPECT_EQ(flags.effective(kRemark), Severity::Remark);
  apply("-Wno-error=fsdp");
  EXPECT_EQ(flags.effective(kWarning), Severity::Warning);
  apply("-Wno-error");
  EXPECT_EQ(flags.effective(kWarning), Severity::Warning);
}

TEST_F(WarningFlagsTest, ErrorOfAGroupSwitchesItOn) {
  apply("-Wno-fsdp");
  apply("-Werror=fsdp");
  EXPECT_EQ(flags.effective(kWarning), Severity::Error);
}

TEST_F(WarningFlagsTest, AnUnknownGroupGetsASuggestion) {
  Status status = flags.apply("-Wno-fdsp");
  ASSERT_FALSE(status.isOk());
  EXPECT_EQ(status.message(), "unknown warning group 'fdsp' in '-Wno-fdsp'; did you mean 'fsdp'?");
  EXPECT_FALSE(flags.apply("-W").isOk());
  EXPECT_FALSE(flags.apply("-X").isOk());
}

TEST_F(WarningFlagsTest, AGroupLikeNoOtherGetsTheList) {
  std::string message = flags.apply("-Wzzz").message();
  EXPECT_EQ(message.rfind("unknown warning group 'zzz' in '-Wzzz'; the groups are 'advice', ", 0),
            0u)
      << message;
  for (const std::string &group : flags.groups())
    EXPECT_NE(message.find("'" + group + "'"), std::string::npos) << group;
}

TEST_F(WarningFlagsTest, KnowsTheGroupsOfPasses) { apply("-Wno-double-buffer"); }

} // namespace
} // namespace shardc
