// batch.load splits the microbatch's entry of the ring into fields.
#include "test/kernels/Harness.h"

#include <bit>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

/// A ring of `slots` entries for `batch` samples of `positions` positions. Word i of field f of
/// entry e is 1000·e + 100·f + i; the mask has the bits of that float, and samples have 2^33 more.
Array ring(int64_t slots, int64_t batch, int64_t positions) {
  Array feed = {DType::I32, {slots, 5 * batch * positions + 2 * batch}, {}};
  for (int64_t entry = 0; entry < slots; ++entry) {
    for (int64_t field = 0; field < 5; ++field)
      for (int64_t i = 0; i < batch * positions; ++i) {
        auto value = static_cast<int32_t>(1000 * entry + 100 * field + i);
        feed.values.push_back(field == 2 ? std::bit_cast<int32_t>(static_cast<float>(value))
                                         : value);
      }
    for (int64_t b = 0; b < batch; ++b) {
      feed.values.push_back(static_cast<double>(1000 * entry + 500 + b));
      feed.values.push_back(2);
    }
  }
  return feed;
}

KernelRun loadRun(int64_t slots, int64_t batch, int64_t positions) {
  KernelRun run("batch.load");
  run.in(ring(slots, batch, positions));
  for (int field = 0; field < 5; ++field)
    run.out(field == 2 ? DType::F32 : DType::I32, {batch, positions});
  run.out(DType::I64, {batch});
  return run;
}

TEST(Batch, TakesTheEntryOfTheMicrobatch) {
  struct Shape {
    int64_t slots, batch, positions;
  };
  for (Shape s : {Shape{1, 1, 1}, Shape{3, 3, 5}, Shape{5, 2, 64}}) {
    KernelRun run = loadRun(s.slots, s.batch, s.positions);
    run.step = 2;
    run.microbatch = 1;
    run.microbatches = 3;
    run.attrs.slots = s.slots;
    std::vector<Array> got = run.run();
    int64_t entry = 7 % s.slots;
    for (int64_t field = 0; field < 5; ++field)
      for (int64_t i = 0; i < s.batch * s.positions; ++i)
        ASSERT_EQ(got[static_cast<size_t>(field)][i],
                  static_cast<double>(1000 * entry + 100 * field + i));
    for (int64_t b = 0; b < s.batch; ++b)
      ASSERT_EQ(got[5][b], static_cast<double>(1000 * entry + 500 + b) + 0x1p33);
  }
}

/// The positions of tokens in their documents are the last field of an entry.
TEST(Batch, TakesPlacesWhereTheyAreAsked) {
  constexpr int64_t kSlots = 2, kBatch = 3, kPositions = 4;
  constexpr int64_t kWords = 6 * kBatch * kPositions + 2 * kBatch;
  Array feed = {DType::I32, {kSlots, kWords}, {}};
  for (int64_t i = 0; i < kSlots * kWords; ++i)
    feed.values.push_back(static_cast<double>(i));
  KernelRun run("batch.load");
  run.in(feed);
  for (int field = 0; field < 5; ++field)
    run.out(field == 2 ? DType::F32 : DType::I32, {kBatch, kPositions});
  run.out(DType::I64, {kBatch}).out(DType::I32, {kBatch, kPositions});
  run.microbatch = 1, run.microbatches = 2;
  Array places = run.run()[6];
  for (int64_t i = 0; i < kBatch * kPositions; ++i)
    ASSERT_EQ(places[i], static_cast<double>(2 * kWords - kBatch * kPositions + i));
}

TEST(Batch, RefusesARingOfAnotherShape) {
  KernelRun run = loadRun(2, 3, 5);
  run.attrs.slots = 3;
  EXPECT_STREQ(run.refusal(), "the ring does not have the number of entries that slots says");
  KernelRun other("batch.load");
  other.in(ring(2, 3, 4));
  for (int field = 0; field < 5; ++field)
    other.out(field == 2 ? DType::F32 : DType::I32, {3, 5});
  EXPECT_STREQ(other.out(DType::I64, {3}).refusal(),
               "an entry of the ring is not as long as a batch");
}

} // namespace
} // namespace shardc::kernels::test
