#include "runtime/data/BatchFeeder.h"

#include <filesystem>

#include "runtime/data/DataSets.h"
#include "test/unit/data/TestData.h"
#include "test/unit/host/AllocationCount.h"

namespace shardc::data {
namespace {

/// A source whose sample i contains i everywhere.
class CountingSource : public DataSource {
public:
  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return 100; }
  int64_t sequenceLength() const override { return 2; }
  Status sample(int64_t index, Sample &out) const override {
    std::fill(out.tokens.begin(), out.tokens.end(), static_cast<int32_t>(index));
    fillTargets(out, static_cast<int32_t>(index), 2, {});
    return Status::ok();
  }

private:
  std::string name_ = "numbers";
};

DataSets openTiny(const std::string &prefix, int64_t samples) {
  DataConfig config;
  config.sequenceLength = 8;
  config.split = "1";
  config.samples = {samples, 0, 0};
  config.blend = Blend{{prefix}, {}};
  Result<DataSets> sets = openDataSets(config);
  EXPECT_TRUE(sets.isOk()) << sets.status().message();
  return sets.isOk() ? std::move(*sets) : DataSets();
}

/// The samples of one step, in the order microbatch, rank, row.
std::vector<int64_t> stepOrder(const DataSource &source, const BatchShape &shape, int64_t step) {
  Result<BatchFeeder> feeder = BatchFeeder::create(source, shape);
  EXPECT_TRUE(feeder.isOk()) << feeder.status().message();
  std::vector<int64_t> order;
  MicroBatchBuffer buffer(shape.microBatch, source.sequenceLength());
  for (int64_t microbatch = 0; microbatch < feeder->numMicrobatches(); ++microbatch)
    for (int64_t rank = 0; rank < shape.dataParallel; ++rank) {
      MicroBatch batch = buffer.view();
      Status status = feeder->fill(step, microbatch, rank, batch);
      EXPECT_TRUE(status.isOk()) << status.message();
      for (size_t i = 0; i < batch.tokens.size(); i += 2)
        order.push_back(batch.tokens[i]);
    }
  return order;
}

TEST(BatchFeeder, TheOrderDoesNotDependOnTheRanks) {
  CountingSource source;
  std::vector<int64_t> expected;
  for (int64_t i = 24; i < 36; ++i)
    expected.push_back(i);
  for (int64_t dataParallel : {1, 2, 3, 4, 6, 12})
    for (int64_t microBatch : {1, 2, 3})
      if (12 % (microBatch * dataParallel) == 0) {
        EXPECT_EQ(stepOrder(source, {12, microBatch, dataParallel}, 2), expected)
            << dataParallel << " ranks, micro batch " << microBatch;
      }
}

TEST(BatchFeeder, FillsRowsWithTheSamplesOfTheSource) {
  DataSets sets = openTiny(fixture("tiny"), 24);
  const DataSource &source = *sets.source(Split::Train);
  Result<BatchFeeder> feeder = BatchFeeder::create(source, {8, 2, 2});
  ASSERT_OK(feeder);
  MicroBatchBuffer buffer(2, 8);
  MicroBatch batch = buffer.view();
  ASSERT_OK(feeder->fill(1, 1, 1, batch));
  for (int64_t row = 0; row < 2; ++row) {
    EXPECT_EQ(feeder->sampleIndex(1, 1, 1, row), 14 + row);
    SampleBuffer sample(8);
    Sample view = sample.view();
    ASSERT_OK(source.sample(14 + row, view));
    auto at = static_cast<size_t>(row) * 8;
    EXPECT_EQ(asInts(batch.tokens.subspan(at, 8)), asInts(sample.tokens));
    EXPECT_EQ(asInts(batch.labels.subspan(at, 8)), asInts(sample.labels));
    EXPECT_EQ(asInts(batch.lossMask.subspan(at, 8)), asInts(sample.lossMask));
    EXPECT_EQ(asInts(batch.positionIds.subspan(at, 8)), asInts(sample.positionIds));
    EXPECT_EQ(asInts(batch.documentStarts.subspan(static_cast<size_t>(row) * 9, 9)),
              asInts(sample.documentStarts));
    EXPECT_EQ(batch.numDocuments[static_cast<size_t>(row)], 1);
  }
}

/// When batches grow, batches of a new size may begin at any sample.
TEST(BatchFeeder, BeginsAfterTheSamplesBefore) {
  CountingSource source; // of 100
  Result<BatchFeeder> feeder = BatchFeeder::create(
      source, {.globalBatch = 12, .microBatch = 3, .dataParallel = 2, .samplesBefore = 20});
  ASSERT_OK(feeder);
  EXPECT_EQ(feeder->numSteps(), 6);
  EXPECT_EQ(feeder->sampleIndex(0, 0, 0, 0), 20);
  EXPECT_EQ(feeder->sampleIndex(2, 1, 1, 2), 20 + 24 + 9 + 2);
  MicroBatchBuffer buffer(3, 2);
  ASSERT_OK(feeder->fill(5, 1, 1, buffer.view()));
  EXPECT_FAILS(feeder->fill(6, 0, 0, buffer.view()), InvalidInput,
               "numbers has 100 samples, enough for 6 steps of 12 after the first 20");
}

TEST(BatchFeeder, AllocatesNothing) {
  TempFolder folder;
  for (int i = 0; i < 10; ++i)
    folder.write(fmt::format("text/{}", i), std::string(100, static_cast<char>('a' + i)));
  for (const std::string &path : {fixture("tiny"), folder / "text"}) {
    DataSets sets = openTiny(path, 24);
    Result<BatchFeeder> feeder = BatchFeeder::create(*sets.source(Split::Train), {8, 2, 2});
    ASSERT_OK(feeder);
    MicroBatchBuffer buffer(2, 8);
    MicroBatch batch = buffer.view();
    test::startCountingAllocations();
    bool fine = true;
    for (int64_t step = 0; step < 3; ++step)
      fine = fine && feeder->fill(step, 1, 0, batch).isOk();
    EXPECT_EQ(test::stopCountingAllocations(), 0u) << path;
    EXPECT_TRUE(fine);
  }
}

TEST(BatchFeeder, SizesMustDivide) {
  CountingSource source;
  EXPECT_FAILS(BatchFeeder::create(source, {12, 5, 1}).status(), InvalidInput,
               "a global batch of 12 is not divisible by micro batch 5 times data-parallel size 1 "
               "[batch-does-not-divide]");
  EXPECT_FAILS(BatchFeeder::create(source, {12, 2, 4}).status(), InvalidInput, "size 4");
  EXPECT_FAILS(BatchFeeder::create(source, {0, 1, 1}).status(), InvalidInput, "batch of 0");
  EXPECT_FAILS(BatchFeeder::create(source, {12, 0, 1}).status(), InvalidInput, "micro batch 0");
  EXPECT_FAILS(BatchFeeder::create(source, {12, INT64_MAX, 2}).status(), InvalidInput, "not div");
}

TEST(BatchFeeder, TheEndOfTheDataIsAMessage) {
  CountingSource source;
  Result<BatchFeeder> feeder = BatchFeeder::create(source, {12, 3, 1});
  ASSERT_OK(feeder);
  EXPECT_EQ(feeder->numSteps(), 8);
  MicroBatchBuffer buffer(3, 2);
  EXPECT_FAILS(feeder->fill(8, 0, 0, buffer.view()), InvalidInput,
               "numbers has 100 samples, enough for 8 steps of 12; step 8 needs more");
  EXPECT_FAILS(feeder->fill(-1, 0, 0, buffer.view()), InvalidInput, "step -1");
}

TEST(BatchFeeder, AFileThatShrinksIsAMessage) {
  TempFolder folder;
  folder.write("tiny.idx", contentsOf(fixture("tiny.idx")));
  folder.write("tiny.bin", contentsOf(fixture("tiny.bin")));
  DataSets sets = openTiny(folder / "tiny", 24);
  Result<BatchFeeder> feeder = BatchFeeder::create(*sets.source(Split::Train), {8, 8, 1});
  ASSERT_OK(feeder);
  MicroBatchBuffer buffer(8, 8);
  ASSERT_OK(feeder->fill(0, 0, 0, buffer.view()));
  std::filesystem::resize_file(folder / "tiny.bin", 10);
  EXPECT_FAILS(feeder->fill(1, 0, 0, buffer.view()), InvalidInput, "tiny.bin' has 10 bytes");
}

} // namespace
} // namespace shardc::data
