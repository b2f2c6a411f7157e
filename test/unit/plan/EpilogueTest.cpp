// Ops with epilogues: their properties follow from the table rows of both ops.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

std::string signatureOf(OpKind kind, Epilogue epilogue) {
  const OpInfo &info = opInfo(kind, epilogue);
  return std::string(info.name) + ": " + std::string(info.operands) + " -> " +
         std::string(info.results);
}

TEST(Epilogues, OperandsAndResultsAreThoseOfBoth) {
  for (auto [kind, epilogue, want] :
       {std::tuple(OpKind::RmsNorm, Epilogue::QuantizeDelayed,
                   "rmsnorm.quantize_delayed: x w amax seen -> q scale seen rstd"),
        {OpKind::AddLayerNorm, Epilogue::QuantizeDelayed,
         "add_layernorm.quantize_delayed: a b w bias amax seen -> q scale seen sum mean rstd"},
        {OpKind::RmsNormAgain, Epilogue::QuantizeDelayed,
         "rmsnorm_again.quantize_delayed: x w rstd amax seen -> q scale seen t?"},
        {OpKind::SwiGlu, Epilogue::QuantizeDelayed,
         "swiglu.quantize_delayed: x amax seen -> q scale seen t?"},
        {OpKind::SwiGluBwd, Epilogue::QuantizeDelayed,
         "swiglu_bwd.quantize_delayed: dy x amax seen -> q scale seen t yt yscale"},
        {OpKind::SquaredReluBwd, Epilogue::QuantizeDelayed,
         "squared_relu_bwd.quantize_delayed: dy x amax seen -> q scale seen t?"},
        {OpKind::AddRmsNorm, Epilogue::Amax, "add_rmsnorm.amax: a b w -> sum rstd m"},
        {OpKind::SwiGluBwd, Epilogue::Amax, "swiglu_bwd.amax: dy x -> m"},
        {OpKind::LayerNormAgain, Epilogue::Quantize,
         "layernorm_again.quantize: x w bias mean rstd amax -> q scale t?"},
        {OpKind::GeGluBwd, Epilogue::Quantize,
         "geglu_bwd.quantize: dy x amax -> q scale t yt yscale"},
        {OpKind::AddRmsNorm, Epilogue::QuantizeBlocks,
         "add_rmsnorm.quantize_blocks: a b w -> q scale sum rstd"},
        {OpKind::RmsNormAgain, Epilogue::QuantizeBlocks,
         "rmsnorm_again.quantize_blocks: x w rstd -> t scale"},
        {OpKind::SquaredRelu, Epilogue::QuantizeBlocks,
         "squared_relu.quantize_blocks: x -> q scale"},
        {OpKind::SwiGluBwd, Epilogue::QuantizeBlocks,
         "swiglu_bwd.quantize_blocks: dy x -> q scale t tscale yt yscale"}})
    EXPECT_EQ(signatureOf(kind, epilogue), want);
}

TEST(Epilogues, ResultsKnowTheirScalesAndBuffers) {
  const OpInfo &info = opInfo(OpKind::SwiGluBwd, Epilogue::QuantizeDelayed);
  EXPECT_THAT(info.scaleOf, testing::ElementsAre(1, -1, -1, 1, 5, -1, -1));
  EXPECT_THAT(info.inPlace, testing::ElementsAre(-1, -1, 3, -1, -1, -1, -1));
  EXPECT_EQ(info.traits, OpTraits::None);
  const OpInfo &blocks = opInfo(OpKind::SwiGluBwd, Epilogue::QuantizeBlocks);
  EXPECT_THAT(blocks.scaleOf, testing::ElementsAre(1, -1, 3, -1, 5, -1, -1));
  EXPECT_EQ(blocks.traits, OpTraits::Pure);
}

TEST(Epilogues, WorkIsThatOfBoth) {
  auto work = [](OpKind kind, Epilogue epilogue) { return opInfo(kind, epilogue).work; };
  EXPECT_EQ(work(OpKind::AddRmsNorm, Epilogue::QuantizeDelayed).perResult, 10);
  EXPECT_EQ(work(OpKind::RmsNorm, Epilogue::Amax).perOperand, 7);
  EXPECT_EQ(work(OpKind::SwiGluBwd, Epilogue::Quantize).perResult, 15);
  EXPECT_EQ(work(OpKind::SwiGluBwd, Epilogue::QuantizeBlocks).perResult, 19.5);
}

TEST(Epilogues, EachFormHasItsNameAndIndex) {
  for (size_t i = 0; i < allOpForms().size(); ++i) {
    OpForm form = allOpForms()[i];
    const OpInfo &info = opInfo(form.kind, form.epilogue);
    EXPECT_EQ(info.index, i);
    std::optional<OpForm> parsed = parseOpForm(info.name);
    ASSERT_TRUE(parsed) << info.name;
    EXPECT_EQ(parsed->kind, form.kind);
    EXPECT_EQ(parsed->epilogue, form.epilogue);
  }
  EXPECT_FALSE(parseOpForm("rmsnorm.quantize")) << "whose rows would be made twice";
  EXPECT_FALSE(parseOpForm("swiglu_amax"));
}

/// A plan that contains ops with epilogues.
Plan planWithEpilogue() { return test::parsed(test::planText("quantized")); }

Op &firstWithEpilogue(Plan &plan) {
  for (Segment &segment : plan.roles[0].segments)
    for (Op &op : segment.ops)
      if (op.epilogue != Epilogue::None)
        return op;
  ADD_FAILURE() << "no op with an epilogue";
  return plan.roles[0].segments[0].ops[0];
}

TEST(Epilogues, APlanWithThemIsPrintedAsItIsRead) {
  Plan plan = planWithEpilogue();
  std::string name(opInfo(firstWithEpilogue(plan)).name);
  EXPECT_NE(name.find('.'), std::string::npos);
  EXPECT_NE(print(plan).find("= " + name + " "), std::string::npos);
}

TEST(Epilogues, OneThatTheOpDoesNotTakeIsRefused) {
  Plan plan = planWithEpilogue();
  firstWithEpilogue(plan).kind = OpKind::Cast;
  test::expectRefused(plan, Rule::Kind, "'cast' has an epilogue that it does not take");
}

TEST(Epilogues, AnOpThatNeedsOneIsRefusedWithout) {
  Plan plan = planWithEpilogue();
  Op &op = firstWithEpilogue(plan);
  op.kind = OpKind::RmsNormAgain;
  op.epilogue = Epilogue::None;
  test::expectRefused(plan, Rule::Kind, "'rmsnorm_again' stands without an epilogue");
}

} // namespace
} // namespace shardc::plan
