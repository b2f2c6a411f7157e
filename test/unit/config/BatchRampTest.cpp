// The sizes of a growing batch, compared with upstream's algorithm.
#include <gtest/gtest.h>

#include "compiler/config/BatchRamp.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

/// Megatron-Core's num_microbatches_calculator.py, step by step: the batch sizes until a whole
/// batch would exceed the run's samples.
std::vector<int64_t> upstreamSizes(const BatchRamp &ramp, int64_t samples) {
  std::vector<int64_t> sizes;
  int64_t consumed = 0;
  while (true) {
    double perIncrement = static_cast<double>(ramp.samples) /
                          static_cast<double>((ramp.last - ramp.start) / ramp.increment);
    int64_t size = ramp.last;
    if (consumed <= ramp.samples)
      size = ramp.start +
             static_cast<int64_t>(static_cast<double>(consumed) / perIncrement) * ramp.increment;
    if (consumed + size > samples)
      return sizes;
    sizes.push_back(size);
    consumed += size;
  }
}

std::vector<int64_t> sizesOf(const std::vector<BatchPhase> &phases) {
  std::vector<int64_t> sizes;
  for (const BatchPhase &phase : phases)
    sizes.insert(sizes.end(), static_cast<size_t>(phase.steps), phase.size);
  return sizes;
}

TEST(BatchRamp, HasTheSizesOfUpstream) {
  for (int64_t start : {1, 2, 3, 8})
    for (int64_t increment : {1, 2, 5})
      for (int64_t increments : {1, 2, 3, 7})
        for (int64_t over : {1, 2, 7, 30, 100, 333})
          for (int64_t samples : {0, 1, 9, 60, 500}) {
            BatchRamp ramp{start, increment, over, start + increments * increment};
            ASSERT_EQ(sizesOf(phasesOf(ramp, samples)), upstreamSizes(ramp, samples))
                << start << ' ' << increment << ' ' << increments << ' ' << over << ' ' << samples;
          }
}

/// Megatron-Core's StepBatchsizeNumMicroBatchesCalculator, step by step.
std::vector<int64_t> upstreamSizes(const std::vector<BatchStep> &schedule, int64_t samples) {
  std::vector<int64_t> sizes;
  int64_t consumed = 0;
  while (true) {
    int64_t size = schedule[0].size;
    for (const BatchStep &step : schedule)
      if (consumed >= step.firstSample)
        size = step.size;
    if (consumed + size > samples)
      return sizes;
    sizes.push_back(size);
    consumed += size;
  }
}

TEST(BatchSchedule, HasTheSizesOfUpstream) {
  for (int64_t first : {1, 4, 30})
    for (int64_t second : {1, 3, 8})
      for (int64_t third : {2, 4, 50})
        for (int64_t from : {1, 5, 40})
          for (int64_t samples : {0, 3, 41, 100}) {
            std::vector<BatchStep> schedule = {{0, first}, {from, second}, {from + 9, third}};
            ASSERT_EQ(sizesOf(phasesOf(schedule, samples)), upstreamSizes(schedule, samples))
                << first << ' ' << second << ' ' << third << ' ' << from << ' ' << samples;
          }
}

TEST(BatchSchedule, IsReadAsUpstreamReadsIt) {
  std::string problem;
  auto read = [&](const char *text) { return parseSchedule(text, 8, problem); };
  std::vector<BatchStep> wanted = {{0, 4}, {187, 1500}, {125'000'000, 8}};
  EXPECT_EQ(read(" 1B:8, 1.5k:1.5K 0:4"), wanted);
  for (const char *bad :
       {"", "4", "0:0", "0:-1", "0:4 1e30:8", "0:4 x:8", "8:4", "0:4 3:8", "0:4K5"})
    EXPECT_FALSE(read(bad)) << bad;
  EXPECT_EQ(problem, "'0:4K5' is not such an entry");
}

TEST(BatchRamp, PhasesFollowEachOther) {
  std::vector<BatchPhase> phases = phasesOf({4, 4, 48, 12}, 125);
  std::vector<BatchPhase> wanted = {{4, 0, 6, 0}, {8, 6, 3, 24}, {12, 9, 6, 48}};
  EXPECT_EQ(phases, wanted);
  EXPECT_EQ(phases.back().lastStep(), 15);
}

/// With sample counts beyond any real run, no sum overflows, and steps are not counted one by one.
TEST(BatchRamp, TakesAnyNumbers) {
  constexpr int64_t kMost = INT64_MAX;
  std::vector<BatchPhase> phases = phasesOf({1, 1, kMost, 3}, kMost);
  ASSERT_EQ(phases.size(), 3u) << "the last samples are those of the ramp's end, rounded";
  EXPECT_LE(phases[2].steps, (kMost - phases[2].samplesBefore) / 3);
  EXPECT_EQ(phasesOf({kMost, 1, kMost, kMost}, kMost).size(), 1u);
  EXPECT_EQ(phasesOf({1, 1, 1'000'000'000, 1'000'000}, kMost).size(), kBatchPhasesMax + 1);
  EXPECT_EQ(phasesOf({2, 1, 5, 2}, 9).size(), 1u) << "a size that does not grow";
}

/// A ramp of batch sizes 4, 8 and 12.
std::unique_ptr<Loaded> loadRamp(const std::string &samples, const std::string &more = "") {
  return loadBody("train { global_batch_size = 12  micro_batch_size = 2\n"
                  "rampup_batch_size = [4, 4, 48]  train_samples = " +
                  samples + " }\n" + more);
}

TEST(BatchRamp, DerivesStepsAndTheSchedule) {
  auto loaded = loadRamp("120", "scheduler { lr_warmup_samples = 10 }");
  const Derived &d = loaded->config->derived();
  EXPECT_EQ(d.trainIters, 15);
  EXPECT_EQ(d.decayLength, 120) << "in samples";
  EXPECT_EQ(d.warmupLength, 10);
  EXPECT_EQ(d.numMicrobatches, 6) << "of the last size";
  EXPECT_EQ(atPhase(*loaded->config, d.phases[0]).derived().numMicrobatches, 2);
  EXPECT_FALSE(loaded->has("samples-not-whole-steps"));
}

TEST(BatchRamp, EvaluationsHaveTheWholeBatch) {
  auto loaded = loadRamp("120", "validation { eval_interval = 5  eval_iters = 2 }");
  EXPECT_EQ(loaded->config->derived().evalMicrobatches, 12);
}

TEST(BatchRamp, AStepOfTheRunIsEnough) {
  EXPECT_FALSE(loadRamp("4")->has("samples-below-batch"));
  EXPECT_TRUE(loadRamp("3")->has("samples-below-batch"));
}

TEST(BatchRamp, HasALimitOfSizes) {
  auto sizes = [](const std::string &last) {
    return loadBody("train { micro_batch_size = 1  train_samples = 1_000_000_000\n"
                    "global_batch_size = " +
                    last + "  rampup_batch_size = [1, 1, 1_000_000] }");
  };
  EXPECT_FALSE(sizes("256")->has("rampup-sizes"));
  EXPECT_TRUE(sizes("257")->has("rampup-sizes"));
}

} // namespace
} // namespace shardc::config::test
