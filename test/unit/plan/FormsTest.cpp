// Ops that also quantise what they make: their rows follow from the steps.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

TEST(Forms, HaveValuesOfBoth) {
  const OpInfo &info = opInfo(OpKind::SwiGluBwdQuantizeDelayed);
  EXPECT_EQ(info.name, "swiglu_bwd.quantize_delayed");
  EXPECT_EQ(info.operands, "dy x amax seen");
  EXPECT_EQ(info.results, "q scale seen t yt yscale");
  EXPECT_THAT(info.scaleOf, testing::ElementsAre(1, -1, -1, 1, 5, -1, -1));
  EXPECT_THAT(info.inPlace, testing::ElementsAre(-1, -1, 3, -1, -1, -1, -1));
  EXPECT_EQ(info.traits, OpTraits::None);
  EXPECT_EQ(info.form->producer, OpKind::SwiGluBwd);
  EXPECT_EQ(info.form->quantizer, OpKind::QuantizeDelayed);
  const OpInfo &blocks = opInfo(OpKind::SwiGluBwdQuantizeBlocks);
  EXPECT_THAT(blocks.scaleOf, testing::ElementsAre(1, -1, 3, -1, 5, -1, -1));
  EXPECT_EQ(blocks.traits, OpTraits::Pure);
  EXPECT_EQ(opInfo(OpKind::SwiGluBwd).quantised, 3) << "dx and y";
  EXPECT_EQ(opInfo(OpKind::AddRmsNorm).quantised, 2) << "y, but not the sum";
  EXPECT_EQ(opInfo(OpKind::Gelu).quantised, 0);
}

TEST(Forms, HaveTheAttributesThatStepsTake) {
  EXPECT_EQ(attrNames(opInfo(OpKind::RmsNormQuantizeDelayed).attrs), "eps, zero_centered and slot");
  EXPECT_EQ(attrNames(opInfo(OpKind::SwiGluQuantize).attrs), "transposed and slot");
  EXPECT_EQ(attrNames(opInfo(OpKind::SwiGluBwdQuantize).attrs), "slot and y_slot");
  EXPECT_TRUE(opInfo(OpKind::RmsNormAmax).needed.has(AttrKey::eps));
  EXPECT_TRUE(opInfo(OpKind::LmLoss).unmeant.has(AttrKey::chunk_rows));
  EXPECT_FALSE(opInfo(OpKind::LmLoss).attrs.has(AttrKey::trans_a)) << "the step keeps its default";
}

TEST(Forms, HaveTheTypesOfTheirSteps) {
  const OpTypes &types = typesOf(OpKind::SwiGluBwdQuantizeBlocks);
  EXPECT_EQ(types.operand(0).numbers, ValueType::Float) << "what is quantised has 16 bits";
  EXPECT_EQ(types.result(0).numbers, ValueType::Float8);
  EXPECT_EQ(types.result(1).rank, 2);
  EXPECT_EQ(types.result(2).like, 0) << "both copies of dx have one type";
  EXPECT_EQ(typesOf(OpKind::MatMulAdd).result(0).like, 2) << "the result takes over a buffer";
  EXPECT_EQ(typesOf(OpKind::SplitQkvNormRope).result(3).rank, 3) << "rows of heads";
}

TEST(Forms, HaveTheWorkOfTheirSteps) {
  auto work = [](OpKind kind) { return opInfo(kind).work; };
  EXPECT_EQ(work(OpKind::AddRmsNorm).perResult, 7);
  EXPECT_EQ(work(OpKind::AddRmsNormQuantizeDelayed).perResult, 10);
  EXPECT_EQ(work(OpKind::RmsNormAmax).perOperand, 7);
  EXPECT_EQ(work(OpKind::SwiGluAmax).perOperand, 5);
  EXPECT_EQ(work(OpKind::SwiGluBwdAmax).perOperand, 27);
  EXPECT_EQ(work(OpKind::SwiGluBwdQuantize).perResult, 15);
  EXPECT_EQ(work(OpKind::SwiGluBwdQuantizeBlocks).perResult, 19.5);
  EXPECT_EQ(work(OpKind::MatMulGeluBwd).perResult, 12);
  EXPECT_EQ(work(OpKind::AttentionQkvBwd).times, 2);
  EXPECT_EQ(opInfo(OpKind::AttentionQkvBwd).nodes, 6);
}

TEST(Forms, AreFoundByNameAndByWhatTheyDo) {
  for (size_t k = 0; k < kOpCount; ++k)
    EXPECT_EQ(parseOpKind(kOpInfos[k].name), static_cast<OpKind>(k)) << kOpInfos[k].name;
  EXPECT_FALSE(parseOpKind("rmsnorm.quantize")) << "whose rows would be made twice";
  EXPECT_FALSE(parseOpKind("swiglu_amax"));
  EXPECT_EQ(quantisingForm(OpKind::GeGlu, OpKind::Amax), OpKind::GeGluAmax);
  EXPECT_FALSE(quantisingForm(OpKind::RmsNorm, OpKind::Quantize));
}

/// A plan that contains forms.
Plan planWithForms() { return test::parsed(test::planText("quantized")); }

Op &firstForm(Plan &plan) {
  for (Segment &segment : plan.roles[0].segments)
    for (Op &op : segment.ops)
      if (opInfo(op).form)
        return op;
  ADD_FAILURE() << "no op also quantises";
  return plan.roles[0].segments[0].ops[0];
}

TEST(Forms, APlanWithThemIsPrintedAsItIsRead) {
  Plan plan = planWithForms();
  std::string name(opInfo(firstForm(plan)).name);
  EXPECT_NE(name.find('.'), std::string::npos);
  EXPECT_NE(print(plan).find("= " + name + " "), std::string::npos);
}

TEST(Forms, AnOpThatIsOnlyAStepIsRefusedAlone) {
  Plan plan = planWithForms();
  firstForm(plan).kind = OpKind::RmsNormAgain;
  test::expectRefused(plan, Rule::Kind, "'rmsnorm_again' stands alone");
}

} // namespace
} // namespace shardc::plan
