// The orders in which runs take samples, compared with torch and Megatron's samplers. The expected
// numbers were printed by torch.randperm and by MegatronPretrainingRandomSampler, one for each
// data-parallel rank, under torch 1.7.1.
#include "runtime/data/SampleOrder.h"

#include <map>
#include <tuple>

#include "runtime/base/Reports.h"
#include "runtime/data/BatchFeeder.h"
#include "runtime/data/TorchRandom.h"
#include "test/unit/data/TestData.h"
#include "test/unit/support/Long.h"

namespace shardc::data {
namespace {

std::vector<uint32_t> permutation(uint64_t seed, size_t count) {
  std::vector<uint32_t> order(count);
  torchPermutation(seed, order);
  return order;
}

TEST(TorchRandom, PermutesAsTorchDoes) {
  using Order = std::vector<uint32_t>;
  EXPECT_EQ(permutation(0, 0), Order{});
  EXPECT_EQ(permutation(0, 1), Order{0});
  EXPECT_EQ(permutation(0, 12), (Order{8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6}));
  EXPECT_EQ(permutation(1, 17), (Order{2, 12, 11, 13, 10, 6, 0, 8, 16, 9, 14, 4, 3, 7, 15, 5, 1}));
  EXPECT_EQ(permutation(5, 12), (Order{11, 0, 9, 6, 10, 3, 4, 5, 8, 7, 1, 2}));
  EXPECT_EQ(permutation((uint64_t{1} << 32) + 5, 12), permutation(5, 12));
  Order many = permutation(3, 1000003);
  many.resize(5);
  EXPECT_EQ(many, (Order{651891, 760443, 468698, 553670, 427613}));
}

/// With this many elements, torch draws 64 bits for each. Takes seconds and a gigabyte.
TEST(TorchRandom, PermutesManyAsTorchDoes) {
  if (!test::isLong())
    GTEST_SKIP() << "only with SHARDC_LONG=1";
  std::vector<uint32_t> order = permutation(3, kTorchWideFrom);
  EXPECT_EQ(std::vector<uint32_t>(order.begin(), order.begin() + 4),
            (std::vector<uint32_t>{3426982, 89012686, 34994671, 171579894}));
  EXPECT_EQ(order.back(), 166871477u);
  EXPECT_EQ(order[100'000'000], 173571626u);
}

TEST(TorchRandom, IsAPermutationAlsoWithWideDraws) {
  std::vector<uint32_t> order(1000);
  torchPermutation(7, order, /*wideFrom=*/1000);
  EXPECT_NE(order, permutation(7, 1000));
  std::ranges::sort(order);
  for (uint32_t i = 0; i < order.size(); ++i)
    EXPECT_EQ(order[i], i);
}

/// A source whose sample i contains i everywhere.
class Numbers : public DataSource {
public:
  explicit Numbers(int64_t count) : count_(count) {}
  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return count_; }
  int64_t sequenceLength() const override { return 1; }
  Status sample(int64_t index, Sample &out) const override {
    if (index < 0 || index >= count_)
      return makeStatus(report::DataRefused, "no sample {}", index);
    std::ranges::fill(out.tokens, static_cast<int32_t>(index));
    fillTargets(out, 0, 1, {});
    return Status::ok();
  }

private:
  int64_t count_;
  std::string name_ = "numbers";
};

struct Taken {
  std::vector<int64_t> samples;
  std::vector<bool> counts;
};

/// Takes `count` microbatches from number `first` on, of each rank in turn. A step has one
/// microbatch.
Taken take(const BatchFeeder &feeder, int64_t first, int64_t count) {
  Taken taken;
  MicroBatchBuffer buffer(feeder.shape().microBatch, 1);
  for (int64_t i = first; i < first + count; ++i)
    for (int64_t rank = 0; rank < feeder.shape().dataParallel; ++rank) {
      MicroBatch batch = buffer.view();
      bool isWhole = feeder.numMicrobatches() > 1;
      Status status = feeder.fill(isWhole ? 0 : i, isWhole ? i : 0, rank, batch);
      EXPECT_TRUE(status.isOk()) << status.message();
      for (size_t row = 0; row < batch.tokens.size(); ++row) {
        taken.samples.push_back(batch.tokens[row]);
        taken.counts.push_back(batch.lossMask[row] != 0);
      }
    }
  return taken;
}

Result<BatchFeeder> feederOf(const DataSource &source, OrderKind kind, int64_t micro, int64_t ranks,
                             bool isSharded = true) {
  return BatchFeeder::create(source, {micro * ranks, micro, ranks}, {kind, isSharded});
}

TEST(SampleOrder, CyclicTakesTheSamplesOfMegatronsSampler) {
  struct Case {
    int64_t samples, micro, ranks;
    bool isSharded;
    std::vector<int64_t> expected;
  };
  const Case cases[] = {
      {23, 2, 2, true, {4,  1,  14, 11, 7,  5,  17, 15, 3,  9,  13, 19, 0,  8,  10, 18, 6,  2, 16,
                        12, 5,  6,  15, 16, 1,  2,  11, 12, 0,  8,  10, 18, 9,  3,  19, 13, 7, 4,
                        17, 14, 8,  7,  18, 17, 1,  5,  11, 15, 6,  9,  16, 19, 0,  4,  10, 14}},
      {23, 2, 2, false, {10, 15, 4,  3,  11, 9, 5,  20, 19, 2,  13, 0,  18, 7,  16, 8,  6,  17, 14,
                         1,  11, 6,  18, 0,  3, 17, 12, 1,  15, 9,  7,  5,  10, 19, 21, 20, 16, 8,
                         4,  2,  14, 3,  4,  7, 12, 5,  8,  17, 1,  16, 20, 0,  21, 19, 11, 10}},
      {10, 1, 3, true, {2, 5, 8, 0, 3, 6, 1, 4, 7, 1, 4, 7, 2, 5, 8, 0, 3, 6, 0, 3, 6}},
      {10, 3, 1, false, {8, 0, 2, 3, 7, 1, 4, 5, 6, 4, 0, 6, 5, 7, 2, 8, 3, 1, 0, 8, 6}},
  };
  for (const Case &one : cases) {
    Numbers source(one.samples);
    Result<BatchFeeder> feeder =
        feederOf(source, OrderKind::Cyclic, one.micro, one.ranks, one.isSharded);
    ASSERT_OK(feeder);
    int64_t round = one.micro * one.ranks;
    auto rounds = static_cast<int64_t>(one.expected.size()) / round;
    EXPECT_EQ(take(*feeder, 0, rounds).samples, one.expected);
    // A run that resumes in the middle takes the remaining samples.
    for (int64_t begin : {int64_t{3}, rounds - 1})
      EXPECT_EQ(take(*feeder, begin, rounds - begin).samples,
                std::vector<int64_t>(one.expected.begin() + begin * round, one.expected.end()));
  }
}

/// The numbers were printed by MegatronPretrainingBatchSampler of Megatron-Bridge (067f987d) under
/// torch 2.8.0, microbatch by microbatch of each rank.
TEST(SampleOrder, BatchTakesTheSamplesOfBridgesSampler) {
  struct Case {
    int64_t samples, global, micro, ranks;
    uint64_t seed;
    std::vector<int64_t> expected;
  };
  const Case cases[] = {
      {23, 8, 2, 2, 1234, {6,  2,  12, 8, 13, 4,  21, 16, 18, 19, 3, 1, 22, 14,
                           15, 5,  9,  5, 19, 22, 11, 8,  10, 13, 1, 0, 6,  15,
                           14, 16, 2,  7, 17, 14, 18, 7,  3,  16, 0, 22}},
      {11, 3, 1, 3, 7, {3, 0, 9, 2, 5, 8, 4, 10, 1, 10, 9, 2, 4, 0, 1, 7, 3, 6, 4, 9, 2, 8, 3, 7}},
      {9, 4, 2, 1, 5678, {1, 8, 7, 5, 4, 3, 0, 6, 3, 1, 0, 2, 4, 5, 7, 6, 4, 7, 6, 0}},
  };
  for (const Case &one : cases) {
    Numbers source(one.samples);
    OrderSpec order;
    order.kind = OrderKind::Batch;
    order.seed = one.seed;
    auto feeder = BatchFeeder::create(source, {one.global, one.micro, one.ranks}, order);
    ASSERT_OK(feeder);
    std::vector<int64_t> taken;
    MicroBatchBuffer buffer(one.micro, 1);
    auto steps = static_cast<int64_t>(one.expected.size()) / one.global;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t micro = 0; micro < feeder->numMicrobatches(); ++micro)
        for (int64_t rank = 0; rank < one.ranks; ++rank) {
          MicroBatch batch = buffer.view();
          ASSERT_OK(feeder->fill(step, micro, rank, batch));
          taken.insert(taken.end(), batch.tokens.begin(), batch.tokens.end());
        }
    EXPECT_EQ(taken, one.expected);
  }
  Numbers source(7);
  OrderSpec order;
  order.kind = OrderKind::Batch;
  auto few = BatchFeeder::create(source, {8, 2, 2}, order);
  EXPECT_EQ(few.status().report().id, "data-too-short");
}

/// The microbatches of all ranks cost about the same. A batch has the same samples for every
/// division, as their numbers in the run show.
TEST(SampleOrder, BatchBalancesCosts) {
  constexpr int64_t kSamples = 50, kGlobal = 16;
  Numbers source(kSamples);
  std::vector<int64_t> costs(kSamples);
  for (int64_t i = 0; i < kSamples; ++i)
    costs[static_cast<size_t>(i)] = (i * 37 % kSamples + 1) * (i * 37 % kSamples + 1);
  std::vector<std::map<int64_t, int64_t>> numbers; // each sample's number, for each division
  for (auto [micro, ranks, isBalanced] :
       {std::tuple(1, 1, false), {1, 4, true}, {2, 4, true}, {4, 2, true}}) {
    OrderSpec order;
    order.kind = OrderKind::Batch;
    order.seed = 3;
    if (isBalanced)
      order.costs = costs;
    auto feeder = BatchFeeder::create(source, {kGlobal, micro, ranks}, order);
    ASSERT_OK(feeder);
    std::map<int64_t, int64_t> &found = numbers.emplace_back();
    for (int64_t step = 4; step-- > 0;) // a pass has three steps
      for (int64_t m = 0; m < feeder->numMicrobatches(); ++m) {
        std::vector<int64_t> sums;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          MicroBatchBuffer buffer(micro, 1);
          MicroBatch batch = buffer.view();
          ASSERT_OK(feeder->fill(step, m, rank, batch));
          int64_t &sum = sums.emplace_back(0);
          for (int64_t row = 0; row < micro; ++row) {
            int64_t sample = batch.tokens[static_cast<size_t>(row)];
            sum += costs[static_cast<size_t>(sample)];
            found[feeder->sampleIndex(step, m, rank, row)] = sample;
          }
        }
        auto [least, most] = std::ranges::minmax(sums);
        if (isBalanced && m == 0) { // the largest
          EXPECT_LT(most, 2 * least);
        }
      }
    EXPECT_EQ(found.size(), 4u * kGlobal);
    EXPECT_EQ(found, numbers[0]);
  }
}

TEST(SampleOrder, CyclicHasNoEndAndTakesMicrobatchesInAnyOrder) {
  Numbers source(23);
  Result<BatchFeeder> feeder = feederOf(source, OrderKind::Cyclic, 2, 2);
  ASSERT_OK(feeder);
  std::vector<int64_t> far = take(*feeder, 1'000'000, 1).samples;
  EXPECT_EQ(far.size(), 4u);
  // Stages of a pipeline alternate between microbatches of two passes.
  std::vector<int64_t> fourth = take(*feeder, 4, 1).samples, fifth = take(*feeder, 5, 1).samples;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(take(*feeder, 5, 1).samples, fifth);
    EXPECT_EQ(take(*feeder, 4, 1).samples, fourth);
  }
  EXPECT_EQ(take(*feeder, 1'000'000, 1).samples, far);
}

TEST(SampleOrder, CyclicNeedsAMicrobatchOfAllRanks) {
  Numbers source(5);
  EXPECT_FAILS(feederOf(source, OrderKind::Cyclic, 2, 3).status(), InvalidInput,
               "numbers has 5 samples, fewer than the 6 of one microbatch of all ranks");
  OrderSpec spec{OrderKind::Cyclic, true, /*bytesMax=*/16};
  EXPECT_FAILS(BatchFeeder::create(source, {1, 1, 1}, spec).status(), Exhausted,
               "the random order of the 5 samples of numbers needs more than the limit of 16");
}

TEST(SampleOrder, WholeTakesEachSampleOnce) {
  for (int64_t samples : {1, 7, 12, 13})
    for (int64_t ranks : {1, 2, 3})
      for (int64_t micro : {1, 2, 4}) {
        Numbers source(samples);
        Result<BatchFeeder> feeder = feederOf(source, OrderKind::Whole, micro, ranks);
        ASSERT_OK(feeder);
        int64_t round = micro * ranks, rounds = (samples + round - 1) / round;
        EXPECT_EQ(feeder->numMicrobatches(), rounds);
        Taken taken = take(*feeder, 0, rounds);
        std::vector<int64_t> counted, expected;
        for (size_t i = 0; i < taken.samples.size(); ++i)
          if (taken.counts[i])
            counted.push_back(taken.samples[i]);
        for (int64_t i = 0; i < samples; ++i)
          expected.push_back(i);
        EXPECT_EQ(counted, expected) << samples << " samples, " << ranks << " ranks of " << micro;
      }
}

TEST(SampleOrder, EachEvaluationOfTheWholeBeginsAnew) {
  Numbers source(7);
  Result<BatchFeeder> feeder = feederOf(source, OrderKind::Whole, 2, 1);
  ASSERT_OK(feeder);
  MicroBatchBuffer first(2, 1), second(2, 1);
  ASSERT_OK(feeder->fill(0, 3, 0, first.view()));
  ASSERT_OK(feeder->fill(9, 3, 0, second.view()));
  EXPECT_EQ(asInts(first.view().tokens), asInts(second.view().tokens));
  EXPECT_EQ(first.view().lossMask[0], 1.0f);
  EXPECT_EQ(first.view().lossMask[1], 0.0f);
}

} // namespace
} // namespace shardc::data
