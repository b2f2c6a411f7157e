// Sets every attribute of every op to unexpected values: the verifier refuses or accepts them, but
// never crashes and never computes with values that do not fit. `plan-oracle --attributes` does the
// same with compiled plans.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "Attributes.h"
#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "test/unit/support/Long.h"

namespace shardc::plan {
namespace {

/// For attributes that an op of the plan lacks, only every n-th value is tried: there are many, and
/// most are refused since the op cannot have them.
int64_t stride() { return shardc::test::isLong() ? 1 : 61; }

TEST(Attributes, OfEveryOpOfEachPlanNeverCrash) {
  oracle::AttributeTally tally;
  size_t each = shardc::test::isLong() ? 1 : 3, number = 0;
  for (const char *name :
       {"fsdp",   "zero",   "ddp",   "slots",     "roles",  "mesh", "every",  "exchange",
        "parts",  "starts", "split", "feed",      "saves",  "hsdp", "hybrid", "fsdp2",
        "tensor", "vocab",  "ring",  "quantized", "slices", "runs"})
    if (number++ % each == 0)
      oracle::setEveryAttribute(test::parsed(test::planText(name)), stride(), tally);
  EXPECT_GT(tally.refused, 1000);
  EXPECT_GT(tally.total() - tally.refused, 30);
  EXPECT_EQ(tally.changed, 0);
}

TEST(Attributes, OfEveryKindOfOpNeverCrash) {
  for (size_t k = 0; k < kOpCount; ++k) {
    oracle::AttributeTally tally;
    oracle::setEveryAttribute(oracle::planOfOne(static_cast<OpKind>(k)),
                              shardc::test::isLong() ? 1 : 23, tally);
    EXPECT_GT(tally.mutants[k], 10) << kOpInfos[k].name;
    EXPECT_EQ(tally.changed, 0) << kOpInfos[k].name;
  }
}

/// An attribute with a value other than its default.
Attr changed(AttrKey key) {
  Attr attr = {key, {}};
  const AttrInfo &info = attrInfo(key);
  if (info.type == AttrInfo::Float)
    attr.f = info.defaultValue + 1;
  else
    attr.i = info.type == AttrInfo::Int ? static_cast<int64_t>(info.defaultValue) + 1
                                        : int64_t{info.defaultValue == 0};
  return attr;
}

/// Parser and verifier accept the attributes of an op's row and no others, and refuse an op that
/// lacks one that it needs.
TEST(Attributes, OfEachOpAreThoseOfItsRow) {
  int accepted = 0, refused = 0, lacking = 0;
  for (size_t kind = 0; kind < kOpCount; ++kind) {
    const OpInfo &info = kOpInfos[kind];
    for (int k = 0; k < kAttrCount; ++k) {
      auto key = static_cast<AttrKey>(k);
      Plan plan = oracle::planOfOne(static_cast<OpKind>(kind));
      Op &op = plan.roles[0].segments[0].ops.back();
      auto at = std::ranges::lower_bound(op.attrs, key, {}, &Attr::key);
      bool isNeeded = at != op.attrs.end() && at->key == key;
      EXPECT_EQ(isNeeded, info.needed.has(key)) << info.name << ' ' << kAttrNames[k];
      isNeeded ? static_cast<void>(op.attrs.erase(at))
               : static_cast<void>(op.attrs.insert(at, changed(key)));
      std::string wanted;
      if (isNeeded)
        wanted = fmt::format("'{}' needs {}", info.name, kAttrNames[k]);
      else if (!info.attrs.has(key))
        wanted = fmt::format("'{}' has no attribute '{}'; it has {}", info.name, kAttrNames[k],
                             attrNames(info.attrs));
      ++(isNeeded ? lacking : wanted.empty() ? accepted : refused);
      std::vector<std::string> found;
      for (const Finding &finding : verify(plan))
        if (finding.rule == Rule::Attribute)
          found.push_back(finding.message);
      EXPECT_EQ(fmt::format("{}", fmt::join(found, "; ")), wanted);
      Result<Plan> read = parse(print(plan), "one.plan");
      std::string said = read.isOk() ? "" : std::string(read.status().message());
      EXPECT_EQ(read.isOk(), wanted.empty()) << said;
      EXPECT_NE(said.find(wanted), std::string::npos) << said;
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 20000);
  EXPECT_GT(lacking, 80);
}

TEST(Attributes, HaveTheLimitsOfTheirRows) {
  auto message = [](OpKind kind, AttrKey key, int64_t value) {
    Plan plan = oracle::planOfOne(kind);
    Op &op = plan.roles[0].segments[0].ops.back();
    op.set(key, value);
    std::vector<Finding> findings = verify(plan);
    return findings.empty() || findings[0].rule != Rule::Attribute ? "" : findings[0].message;
  };
  EXPECT_EQ(message(OpKind::Transpose, AttrKey::outer, -1),
            "attribute 'outer' is -1; it takes 0 to 4398046511104");
  EXPECT_EQ(message(OpKind::StepPack, AttrKey::loss_copies, 0),
            "attribute 'loss_copies' is 0; it takes 1 to 1048576");
  EXPECT_EQ(message(OpKind::InitBlock, AttrKey::seed, INT64_MIN), "");
}

TEST(Attributes, OfATransposeWithMorePartsThanRowsNeverCrash) {
  std::string text = test::planText("slices");
  EXPECT_TRUE(verify(test::parsed(text)).empty());
  Plan plan = test::parsed(test::replaced(text, "%l0.k.parts = transpose %l0.k {outer = 2",
                                          "%l0.k.parts = transpose %l0.k {outer = 4"));
  static_cast<void>(verify(plan));
}

} // namespace
} // namespace shardc::plan
