// Sets every attribute of every op to unexpected values: the verifier refuses or accepts them, but
// never crashes and never computes with values that do not fit. `plan-oracle --attributes` does the
// same with compiled plans.
#include <gtest/gtest.h>

#include "Attributes.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"
#include "test/unit/support/Long.h"

namespace shardc::plan {
namespace {

/// For attributes that an op does not have, only every n-th value is tried: there are many, and
/// most have no effect.
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
  EXPECT_GT(tally.total() - tally.refused, 1000) << "most attributes of most ops mean nothing";
  EXPECT_EQ(tally.changed, 0);
}

TEST(Attributes, OfEveryKindOfOpNeverCrash) {
  for (const OpForm &form : allOpForms()) {
    oracle::AttributeTally tally;
    oracle::setEveryAttribute(oracle::planOfOne(form), shardc::test::isLong() ? 1 : 23, tally);
    EXPECT_GT(tally.mutants[static_cast<size_t>(form.kind)], 10)
        << opInfo(form.kind, form.epilogue).name;
    EXPECT_EQ(tally.changed, 0) << opInfo(form.kind, form.epilogue).name;
  }
}

TEST(Attributes, HaveTheLimitsOfTheirRows) {
  auto message = [](AttrKey key, int64_t value) {
    Plan plan = test::parsed(test::planText("fsdp"));
    Op &op = plan.roles[0].segments[0].ops[0];
    op.attrs.clear();
    op.set(key, value);
    std::vector<Finding> findings = verify(plan);
    return findings.empty() || findings[0].rule != Rule::Attribute ? "" : findings[0].message;
  };
  EXPECT_EQ(message(AttrKey::outer, -1), "attribute 'outer' is -1; it takes 0 to 4398046511104");
  EXPECT_EQ(message(AttrKey::loss_copies, 0),
            "attribute 'loss_copies' is 0; it takes 1 to 1048576");
  EXPECT_EQ(message(AttrKey::seed, INT64_MIN), "");
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
