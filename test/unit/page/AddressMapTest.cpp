// Tests the map of addresses over a step of a placed plan, and the list of the largest values.
#include "compiler/page/AddressMap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"

namespace shardc::page {
namespace {

class AddressMapTest : public testing::Test {
protected:
  void SetUp() override {
    Result<std::string> text = readFile(SHARDC_TEST_PLANS "/ddp.plan");
    ASSERT_TRUE(text.isOk()) << text.status().message();
    Result<plan::Plan> parsed = plan::parse(*text, "ddp.plan");
    ASSERT_TRUE(parsed.isOk()) << parsed.status().message();
    plan_ = *parsed;
  }
  const plan::Role &role() const { return plan_.roles[0]; }

  static const Rect *find(const AddressMap &map, std::string_view name) {
    for (const Rect &rect : map.rects)
      if (rect.name == name)
        return &rect;
    return nullptr;
  }

  plan::Plan plan_;
};

TEST_F(AddressMapTest, HasTheSegmentsOfAStepOnceEach) {
  AddressMap map = addressMapOf(role(), 1000);
  ASSERT_EQ(map.segments.size(), 2u) << "three microbatches run one body; init is in no step";
  EXPECT_EQ(map.segments[0].name, "micro");
  EXPECT_EQ(map.segments[0].end, 18u);
  EXPECT_EQ(map.segments[1].name, "update");
  EXPECT_EQ(map.segments[1].end, 24u);
}

TEST_F(AddressMapTest, ShowsAValueFromItsOpToItsLastUse) {
  AddressMap map = addressMapOf(role(), 1000);
  const Rect *x = find(map, "x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->arena, plan::Arena::Work);
  EXPECT_EQ(x->offset, 512);
  EXPECT_EQ(x->bytes, 256);
  EXPECT_EQ(x->begin, 3u);
  EXPECT_EQ(x->end, 13u) << "the product of the last gradient reads it";
  EXPECT_EQ(x->madeBy, "embedding");
  EXPECT_FALSE(x->isKept);
  EXPECT_EQ(find(map, "v0"), nullptr) << "a view has no bytes of its own";
}

TEST_F(AddressMapTest, ShowsCellsWhileTheirContentIsNeeded) {
  AddressMap map = addressMapOf(role(), 1000);
  const Rect *weight = find(map, "w.layers.0"), *gradient = find(map, "g0");
  ASSERT_NE(weight, nullptr);
  ASSERT_NE(gradient, nullptr);
  EXPECT_TRUE(weight->isKept);
  EXPECT_EQ(weight->begin, 0u);
  EXPECT_EQ(weight->end, 24u) << "one buffer over both segments";
  EXPECT_EQ(gradient->begin, 0u) << "of microbatches before this one";
  EXPECT_EQ(gradient->end, 23u) << "up to the update of its layer";
}

TEST_F(AddressMapTest, LeavesTheSmallestOut) {
  AddressMap whole = addressMapOf(role(), 1000), part = addressMapOf(role(), 5);
  EXPECT_EQ(whole.omitted, 0u);
  EXPECT_EQ(part.rects.size(), 5u);
  EXPECT_EQ(part.omitted, whole.rects.size() - 5);
  EXPECT_NE(find(part, "w.layers.0"), nullptr);
  EXPECT_EQ(find(part, "n"), nullptr);
}

TEST_F(AddressMapTest, HoldersSumUpToMemoryByPurpose) {
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role()), sums;
  for (const Holder &holder : holdersOf(role()))
    (holder.isKept ? sums.cells : sums.transient)[static_cast<size_t>(holder.purpose)] +=
        holder.bytes;
  EXPECT_EQ(sums.cells, memory.cells);
  EXPECT_EQ(sums.transient, memory.transient);
  Holder first = holdersOf(role()).front();
  EXPECT_EQ(first.bytes, 512);
  EXPECT_EQ(first.count, 2u);
  EXPECT_THAT(first.pattern, testing::AnyOf("w.layers.*", "g*", "h*"));
}

TEST(Patterns, HaveAStarForEachNumberThatIsNoPartOfAWord) {
  EXPECT_EQ(patternOf("layers.12.h0"), "layers.*.h*");
  EXPECT_EQ(patternOf("d.l12.norm2.all.3"), "d.l*.norm2.all.*");
  EXPECT_EQ(patternOf("decoder.layers.0.mlp.linear_fc1.weight"),
            "decoder.layers.*.mlp.linear_fc1.weight");
  EXPECT_EQ(patternOf("head"), "head");
}

} // namespace
} // namespace shardc::page
