// Products of 8-bit operands: which plans the verifier refuses.
#include <functional>

#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

Segment &first(Plan &plan) { return plan.roles[0].segments[0]; }
Segment &second(Plan &plan) { return plan.roles[0].segments[1]; }
Segment &delayed(Plan &plan) { return plan.roles[0].segments[2]; }
Segment &fused(Plan &plan) { return plan.roles[0].segments[3]; }
Segment &blocks(Plan &plan) { return plan.roles[0].segments[4]; }

ValueId named(const Segment &segment, std::string_view name) {
  for (ValueId value = 0; value < segment.values.size(); ++value)
    if (segment.values[value].name == name)
      return value;
  ADD_FAILURE() << "no value " << name;
  return 0;
}

struct Case {
  const char *name;
  Rule rule;
  std::function<void(Plan &)> edit;
  const char *message; ///< a part of the first finding's message
};

void PrintTo(const Case &each, std::ostream *out) { *out << each.name; }

class Quantized : public testing::TestWithParam<Case> {};

TEST_P(Quantized, IsRefused) {
  Plan plan = parsed(planText("quantized"));
  ASSERT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  GetParam().edit(plan);
  test::expectRefused(plan, GetParam().rule, GetParam().message);
}

const Case kCases[] = {
    {"fusedAndTransposed", Rule::Shape,
     [](Plan &p) { fused(p).ops[0].set(AttrKey::transposed, int64_t{1}); },
     "a result that is not transposed"},
    {"noMagnitudeOfY", Rule::Shape,
     [](Plan &p) { fused(p).ops[0].set(AttrKey::y_slot, int64_t{3}); },
     "amaxes of f32[n] with one for its slot"},
    {"slotBeyondTheMagnitudes", Rule::Shape,
     [](Plan &p) { delayed(p).ops[1].set(AttrKey::slot, int64_t{3}); },
     "amaxes of f32[n] with one for its slot"},
    {"moreMagnitudesSeenThanExpected", Rule::Shape,
     [](Plan &p) {
       p.roles[0].cells[5].type.shape[0] = 4;
       for (const char *name : {"e", "e1"})
         delayed(p).values[named(delayed(p), name)].type.shape[0] = 4;
     },
     "needs the type of 'amax' in operand 'seen'"},
    {"historyOfOtherTensors", Rule::Shape,
     [](Plan &p) {
       p.roles[0].cells[4].type.shape[1] = 2;
       for (const char *name : {"h", "h1"})
         delayed(p).values[named(delayed(p), name)].type.shape[1] = 2;
     },
     "'amax.update' needs a = 2 in operand 'seen'"},
    {"noInterval", Rule::Attribute,
     [](Plan &p) { delayed(p).ops[3].set(AttrKey::interval, int64_t{0}); },
     "attribute 'interval' is 0; it takes 1 to"},
    {"twoFactorsOfE5m2", Rule::Shape,
     [](Plan &p) {
       for (const char *name : {"q", "t", "p"})
         first(p).values[named(first(p), name)].type.dtype = DType::F8E5M2;
       p.roles[0].cells[2].type.dtype = DType::F8E5M2;
       second(p).values[named(second(p), "xt")].type.dtype = DType::F8E5M2;
     },
     "needs one factor of f8e4m3 at least"},
    {"factorsOf16Bits", Rule::Shape,
     [](Plan &p) { first(p).ops[4].operands[0] = named(first(p), "x"); },
     "needs f8e4m3 or f8e5m2 in operand 'a'"},
    {"copyOfAnotherFormat", Rule::Shape,
     [](Plan &p) { first(p).values[named(first(p), "q")].type.dtype = DType::F8E5M2; },
     "needs the element type of 'q' in result 't'"},
    {"notTransposed", Rule::Shape, [](Plan &p) { second(p).ops[1].attrs.clear(); },
     "by its factors 'r c, a! -> transposed:r c, =1, c r'"},
    {"largestOfNumbersOf8Bits", Rule::Shape,
     [](Plan &p) { second(p).ops[0].operands[0] = named(second(p), "xt"); },
     "'amax' needs floating point of 16 bits or more in operand 'x'"},
    {"scaleOfWords", Rule::Shape,
     [](Plan &p) { second(p).values[named(second(p), "r")].type.dtype = DType::I32; },
     "needs f32 in result 'scale'"},
    {"blocksOfTwoKinds", Rule::Shape,
     [](Plan &p) {
       first(p).ops[8].operands[1] = named(first(p), "d");
       first(p).ops[8].operands[3] = named(first(p), "ds");
     },
     "scales of f32[1], or of blocks of both factors"},
    {"scalesOfTooManyBlocks", Rule::Shape,
     [](Plan &p) { first(p).values[named(first(p), "bs")].type.shape[1] = 2; },
     "'quantize_blocks' needs scales of f32[C/128,R], f32[R/128,C/128] or u8[R,C/32]"},
    {"formsOfTwoTypes", Rule::Shape,
     [](Plan &p) { blocks(p).values[named(blocks(p), "q")].type.dtype = DType::F8E4M3; },
     "needs the element type of 'q' in result 't'"},
    {"formNotTransposed", Rule::Shape,
     [](Plan &p) {
       Type &type = blocks(p).values[named(blocks(p), "yt")].type;
       std::swap(type.shape[0], type.shape[1]);
     },
     "needs f = 128 in result 'yt'"},
    {"blocksOfGateAndUp", Rule::Shape,
     [](Plan &p) {
       p.roles[0].cells[11].type.shape[1] = 120;
       p.roles[0].cells[12].type.shape[1] = 240;
       blocks(p).values[named(blocks(p), "dz")].type.shape[1] = 120;
       blocks(p).values[named(blocks(p), "z")].type.shape[1] = 240;
     },
     "rows of dy in whole blocks of 128"},
};

INSTANTIATE_TEST_SUITE_P(Plans, Quantized, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case> &info) {
                           return std::string(info.param.name);
                         });

} // namespace
} // namespace shardc::plan
