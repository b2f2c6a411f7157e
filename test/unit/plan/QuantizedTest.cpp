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
     "'amax.update' needs tensors = 2 in operand 'seen'"},
    {"noInterval", Rule::Attribute,
     [](Plan &p) { delayed(p).ops[3].set(AttrKey::interval, int64_t{0}); },
     "attribute 'interval' is 0; it takes 1 to"},
    {"factorsOf16Bits", Rule::Shape,
     [](Plan &p) { first(p).ops[4].operands[0] = named(first(p), "x"); },
     "needs f8e4m3 or f8e5m2 in operand 'a'"},
    {"copyOfAnotherFormat", Rule::Shape,
     [](Plan &p) { first(p).values[named(first(p), "q")].type.dtype = DType::F8E5M2; },
     "needs the element type of 'q' in result 't'"},
    {"notTransposed", Rule::Shape, [](Plan &p) { second(p).ops[1].attrs.clear(); },
     "by its factors 'rows channels, tensors -> rows channels, 1, channels rows'"},
    {"largestOfNumbersOf8Bits", Rule::Shape,
     [](Plan &p) { second(p).ops[0].operands[0] = named(second(p), "xt"); },
     "'amax' needs floating point of 16 bits or more in operand 'x'"},
    {"scaleOfWords", Rule::Shape,
     [](Plan &p) { second(p).values[named(second(p), "r")].type.dtype = DType::I32; },
     "needs f32 in result 'scale'"},
    {"formsOfTwoTypes", Rule::Shape,
     [](Plan &p) { blocks(p).values[named(blocks(p), "q")].type.dtype = DType::F8E4M3; },
     "needs the element type of 'q' in result 't'"},
    {"formNotTransposed", Rule::Shape,
     [](Plan &p) {
       Type &type = blocks(p).values[named(blocks(p), "yt")].type;
       std::swap(type.shape[0], type.shape[1]);
     },
     "needs ffn = 128 in result 'yt'"},
};

INSTANTIATE_TEST_SUITE_P(Plans, Quantized, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case> &info) {
                           return std::string(info.param.name);
                         });

} // namespace
} // namespace shardc::plan
