// Compares optimizers with formulas in double over several steps; ranges, padding and skipped
// steps; and initial values, which use the same table of ranges.
#include "test/kernels/Harness.h"

#include "kernels/host/Registry.h"
#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Remainder.h"
#include "runtime/base/StepState.h"

#include <cmath>
#include <cstring>
#include <tuple>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr int64_t kSize = 1111;

/// Two parameters with padding around them; the second has no decay and half the learning rate.
std::vector<ParamRange> twoRanges() {
  ParamRange first, second;
  first.begin = 3;
  first.end = 700;
  second.begin = 705;
  second.end = 1100;
  second.lrMult = 0.5f;
  second.wdMult = 0;
  return {first, second};
}

struct Numbers {
  std::vector<double> w, m, v;
};

Attrs optimizerAttrs(bool decoupled) {
  Attrs attrs;
  attrs.beta1 = 0.9;
  attrs.beta2 = 0.95;
  attrs.eps = 1e-8;
  attrs.weight_decay = 0.1;
  attrs.momentum = 0.8;
  attrs.decoupled = decoupled;
  return attrs;
}

/// One update in double. `kind` is 0 for sgd, 1 for sgd with momentum, 2 for adamw.
void update(int kind, const Attrs &a, const StepState &state, const Array &g, Numbers &x) {
  for (const ParamRange &range : twoRanges())
    for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i) {
      double decay = (a.weight_decay + static_cast<double>(state.weightDecay)) *
                     static_cast<double>(range.wdMult);
      double lr = static_cast<double>(state.lr) * static_cast<double>(range.lrMult);
      double grad = g.values[i] * static_cast<double>(state.gradScale), step = 0;
      if (!a.decoupled)
        grad += decay * x.w[i];
      x.m[i] = kind == 2 ? a.beta1 * x.m[i] + (1 - a.beta1) * grad : a.momentum * x.m[i] + grad;
      x.v[i] = a.beta2 * x.v[i] + (1 - a.beta2) * grad * grad;
      double t = static_cast<double>(state.applied);
      if (kind == 2)
        step = x.m[i] / (1 - std::pow(a.beta1, t)) /
               (std::sqrt(x.v[i] / (1 - std::pow(a.beta2, t))) + a.eps);
      else
        step = kind == 1 ? x.m[i] : grad;
      x.w[i] -= lr * (step + (a.decoupled ? decay * x.w[i] : 0));
    }
}

struct Tensors {
  Array w, m, v;
};

/// The weight's old content; its padding must stay.
constexpr uint64_t kWeightSeed = 99;

std::vector<Array> runKernel(int kind, const Attrs &attrs, const StepState &state, const Array &g,
                             const Tensors &x, DType weight) {
  const char *names[] = {"sgd", "sgd_momentum", "adamw"};
  KernelRun run(names[kind]);
  run.attrs = attrs;
  run.ranges = twoRanges();
  run.in(g).in(x.w);
  if (kind >= 1)
    run.in(x.m);
  if (kind == 2)
    run.in(x.v);
  run.in(stateArray(state));
  for (int i = 0; i <= kind; ++i)
    run.inPlace(1 + i);
  run.over(randoms(weight, {kSize}, kWeightSeed));
  return run.run();
}

void expectPaddingKept(const Array &got, const Array &old) {
  std::vector<ParamRange> ranges = twoRanges();
  for (int64_t i = 0; i < kSize; ++i) {
    bool inside =
        (i >= ranges[0].begin && i < ranges[0].end) || (i >= ranges[1].begin && i < ranges[1].end);
    ASSERT_TRUE(inside || got[i] == old[i]) << i;
  }
}

TEST(Optimizer, FollowsItsFormula) {
  for (int kind = 0; kind < 3; ++kind)
    for (bool decoupled : {true, false})
      for (DType dtype : kDataTypes) {
        SCOPED_TRACE(testing::Message() << "kind " << kind << decoupled << dtypeName(dtype));
        Attrs attrs = optimizerAttrs(decoupled);
        Tensors x = {randoms(DType::F32, {kSize}, 1), constant(DType::F32, {kSize}, 0),
                     constant(DType::F32, {kSize}, 0)};
        Array initial = x.w;
        Numbers want = {x.w.values, x.m.values, x.v.values};
        for (int64_t t = 1; t <= 5; ++t) {
          StepState state = {};
          state.applied = t;
          state.lr = 0.01f;
          state.gradScale = 0.5f;
          state.weightDecay = 0.02f * static_cast<float>(t); // the other fields do not change
          Array g = randoms(dtype, {kSize}, static_cast<uint64_t>(10 + t));
          update(kind, attrs, state, g, want);
          std::vector<Array> got = runKernel(kind, attrs, state, g, x, dtype);
          x.w = got[0];
          if (kind >= 1)
            x.m = got[1];
          if (kind == 2)
            x.v = got[2];
          for (const ParamRange &range : twoRanges())
            for (int64_t i = range.begin; i < range.end; ++i)
              ASSERT_EQ(got.back()[i], roundTo(dtype, x.w[i])) << i;
          expectPaddingKept(x.w, initial);
          expectPaddingKept(got.back(), randoms(dtype, {kSize}, kWeightSeed));
        }
        expectClose(x.w, want.w, {1e-6, 4}, "w");
        if (kind >= 1)
          expectClose(x.m, want.m, {1e-7, 8}, "m");
        if (kind == 2)
          expectClose(x.v, want.v, {1e-8, 8}, "v");
      }
}

// Moments that began later than the schedule are corrected by their own count: at the run's 2,000th
// update, the second parameter gets its first update.
TEST(Optimizer, MomentsCountTheirOwnUpdates) {
  StepState late = {}, first = {};
  late.applied = 2000;
  first.applied = 1;
  late.lr = first.lr = 0.01f;
  late.gradScale = first.gradScale = 1;
  Array g = randoms(DType::F32, {kSize}, 5), w = randoms(DType::F32, {kSize}, 6),
        zeros = constant(DType::F32, {kSize}, 0);
  auto weights = [&](const StepState &state, int64_t countOffset) {
    KernelRun run("adamw");
    run.attrs = optimizerAttrs(true);
    run.attrs.beta2 = 0.999;
    run.ranges = twoRanges();
    run.ranges[1].countOffset = countOffset;
    run.in(g).in(w).in(zeros).in(zeros).in(stateArray(state));
    for (int i = 0; i <= 2; ++i)
      run.inPlace(1 + i);
    return run.run()[0];
  };
  Array offset = weights(late, -1999), atOnce = weights(first, 0), without = weights(late, 0);
  for (int64_t i = 3; i < 700; ++i)
    ASSERT_EQ(offset[i], without[i]) << i;
  double most = 0;
  for (int64_t i = 705; i < 1100; ++i) {
    ASSERT_EQ(offset[i], atOnce[i]) << i;
    most = std::max(most, std::abs(without[i] - w[i]) / std::abs(offset[i] - w[i]));
  }
  EXPECT_GT(most, 2); // with the schedule's count, updates would be larger
}

TEST(Optimizer, AStepThatIsLeftOutChangesNothingButTheWeight) {
  for (int kind = 0; kind < 3; ++kind) {
    Tensors x = {randoms(DType::F32, {kSize}, 2), randoms(DType::F32, {kSize}, 3),
                 constant(DType::F32, {kSize}, 0.5)};
    StepState state = {};
    state.skip = 1;
    state.lr = 1;
    state.gradScale = NAN;
    Array g = constant(DType::F32, {kSize}, 1);
    std::vector<Array> got = runKernel(kind, optimizerAttrs(true), state, g, x, DType::BF16);
    EXPECT_EQ(got[0].values, x.w.values);
    if (kind >= 1) {
      EXPECT_EQ(got[1].values, x.m.values);
    }
    for (const ParamRange &range : twoRanges())
      for (int64_t i = range.begin; i < range.end; ++i)
        ASSERT_EQ(got.back()[i], roundTo(DType::BF16, x.w[i])) << i;
  }
}

/// Weights in bf16, and remainders.
std::pair<Array, Array> halvesOf(const Array &masters) {
  Array weights = constant(DType::BF16, masters.shape, 0), remainders = weights;
  remainders.dtype = DType::U16;
  for (size_t i = 0; i < masters.values.size(); ++i) {
    MasterHalves halves = splitMaster(static_cast<float>(masters.values[i]));
    weights.values[i] = static_cast<double>(toFloat(halves.weight));
    remainders.values[i] = halves.remainder;
  }
  return {weights, remainders};
}

/// Updates of halves have the same bits as updates of whole masters: weights, remainders and
/// moments. Padding stays, and a skipped step changes nothing.
TEST(Optimizer, HalvesAreThoseOfWholeMasters) {
  for (bool decoupled : {true, false})
    for (DType dtype : kDataTypes) {
      Attrs attrs = optimizerAttrs(decoupled);
      Tensors x = {randoms(DType::F32, {kSize}, 1), constant(DType::F32, {kSize}, 0),
                   constant(DType::F32, {kSize}, 0)};
      auto [weights, remainders] = halvesOf(x.w);
      for (int64_t t = 1; t <= 4; ++t) {
        StepState state = {};
        state.applied = t;
        state.lr = 0.01f;
        state.gradScale = 0.5f;
        state.skip = t == 3 ? 1 : 0;
        Array g = randoms(dtype, {kSize}, static_cast<uint64_t>(10 + t));
        std::vector<Array> whole = runKernel(2, attrs, state, g, x, DType::BF16);
        KernelRun run("adamw");
        run.attrs = attrs;
        run.ranges = twoRanges();
        run.in(g).in(remainders).in(x.m).in(x.v).in(stateArray(state)).in(weights);
        run.inPlace(1).inPlace(2).inPlace(3).inPlace(5);
        std::vector<Array> got = run.run();
        std::tie(weights, remainders) = halvesOf(whole[0]);
        x = {whole[0], whole[1], whole[2]};
        EXPECT_EQ(got[0].values, remainders.values) << t;
        EXPECT_EQ(got[1].values, x.m.values) << t;
        EXPECT_EQ(got[2].values, x.v.values) << t;
        EXPECT_EQ(got[3].values, weights.values) << t;
      }
    }
}

TEST(Optimizer, RefusesHalvesOfOtherTypes) {
  Array four = constant(DType::F32, {4}, 1), half = constant(DType::BF16, {4}, 1),
        remainders = constant(DType::U16, {4}, 1);
  auto refusal = [&](const Array &master, const Array &weight, bool isInPlace) {
    KernelRun run("adamw");
    run.in(four).in(master).in(four).in(four).in(stateArray({})).in(weight);
    run.inPlace(1).inPlace(2).inPlace(3);
    return std::string(isInPlace ? run.inPlace(5).refusal() : run.out(DType::BF16, {4}).refusal());
  };
  EXPECT_EQ(refusal(four, half, true), "remainders are not u16");
  EXPECT_EQ(refusal(remainders, four, true),
            "an operand or result does not have the type of the op's row");
  EXPECT_EQ(refusal(remainders, half, false),
            "a result does not have type, shape and buffer of its operand");
}

TEST(Optimizer, AParameterMayHaveARateOfItsOwn) {
  StepState state = {};
  state.applied = 1;
  state.lr = 0.5f, state.decoupledLr = 0.125f;
  state.gradScale = 1;
  KernelRun run("sgd");
  run.ranges = twoRanges();
  run.ranges[1].isDecoupled = true;
  run.in(constant(DType::F32, {kSize}, 1)).in(constant(DType::F32, {kSize}, 2));
  run.in(stateArray(state)).inPlace(1);
  Array got = run.run()[0];
  EXPECT_EQ(got[10], 1.5);
  EXPECT_EQ(got[710], 2 - 0.125 * 0.5) << "times its multiplier";
}

TEST(Optimizer, TheWeightIsOptional) {
  StepState state = {};
  state.applied = 1;
  state.lr = 0.5f;
  state.gradScale = 1;
  KernelRun run("sgd");
  run.ranges = twoRanges();
  run.in(constant(DType::F32, {kSize}, 1)).in(constant(DType::F32, {kSize}, 2));
  run.in(stateArray(state)).inPlace(1);
  EXPECT_EQ(run.run()[0][10], 1.5);
}

TEST(Optimizer, RefusesWhatIsNotInPlace) {
  KernelRun run("sgd");
  run.in(constant(DType::F32, {4}, 1)).in(constant(DType::F32, {4}, 2)).in(stateArray({}));
  EXPECT_STREQ(run.out(DType::F32, {4}).refusal(),
               "a result does not have type, shape and buffer of its operand");
}

ParamRange normalRange(int64_t begin, int64_t end, int64_t globalBegin) {
  ParamRange range;
  range.begin = begin;
  range.end = end;
  range.globalBegin = globalBegin;
  range.key = streamKey(7, "decoder.layers.0.mlp.linear_fc1.weight");
  range.init = ParamRange::Normal;
  range.initStd = 0.02;
  return range;
}

TEST(Init, ValuesComeFromTheParametersStream) {
  for (DType dtype : kDataTypes) {
    KernelRun run("init_block");
    ParamRange halves, zeros;
    halves.begin = 1101;
    halves.end = 1104;
    halves.init = ParamRange::Constant;
    halves.initStd = 0.5;
    zeros.begin = 1104;
    zeros.end = 1106;
    run.ranges = {normalRange(1, 1100, 12345), halves, zeros};
    Array x = run.out(dtype, {kSize}).run()[0];
    for (int64_t i = 0; i < kSize; ++i) {
      float normal = normalAt(run.ranges[0].key, static_cast<uint64_t>(12345 + i - 1));
      double want = i >= 1 && i < 1100      ? static_cast<double>(0.02f * normal)
                    : i >= 1101 && i < 1104 ? 0.5
                                            : 0;
      ASSERT_EQ(x[i], roundTo(dtype, want)) << i;
    }
  }
}

/// NF4 blocks contain the numbers that fp32 weights would have; `dequantize` unpacks them.
TEST(Init, BlocksAreThoseOfValues) {
  constexpr int64_t kBlocks = 37, kFirst = 11, kNumbers = kBlocks * Nf4Block::kNumbers;
  KernelRun plain("init_block");
  plain.ranges = {normalRange(0, kNumbers, kFirst * Nf4Block::kNumbers)};
  Array x = plain.out(DType::F32, {kNumbers}).run()[0];
  std::vector<Nf4Block> blocks(kBlocks + 2);
  std::vector<BF16> opened(static_cast<size_t>(kNumbers));
  const ParamRange range = normalRange(1, kBlocks + 1, kFirst);
  const int64_t rangesOf[] = {0, 1};
  Call draw;
  draw.out[draw.outCount++] = {blocks.data(), DType::NF4x64, 1, false, {kBlocks + 2}};
  draw.ranges = &range, draw.rangesOf = rangesOf, draw.rangesCount = 1;
  const Kernel &init = *findHostKernel("init_block"), &open = *findHostKernel("dequantize");
  ASSERT_EQ(init.accepts(draw), nullptr);
  init.run(draw);
  Call call;
  call.in[call.inCount++] = {&blocks[1], DType::NF4x64, 2, false, {kBlocks, 1}};
  call.out[call.outCount++] = {opened.data(), DType::BF16, 2, false, {kBlocks, 64}};
  ASSERT_EQ(open.accepts(call), nullptr);
  open.run(call);
  EXPECT_EQ(blocks.front().scale, 0);
  for (int64_t b = 0; b < kBlocks; ++b) {
    std::vector<float> numbers(x.values.begin() + b * Nf4Block::kNumbers,
                               x.values.begin() + (b + 1) * Nf4Block::kNumbers);
    fromNf4(toNf4(numbers.data()), numbers.data());
    for (int64_t i = 0; i < Nf4Block::kNumbers; ++i)
      ASSERT_EQ(opened[static_cast<size_t>(b * Nf4Block::kNumbers + i)].bits,
                toBF16(numbers[static_cast<size_t>(i)]).bits);
  }
}

/// The same of records of 512 numbers with scales in 8 bits.
TEST(Init, RecordsAreThoseOfValues) {
  constexpr int64_t kRecords = 5, kFirst = 3, kNumbers = kRecords * Nf4Record::kNumbers;
  KernelRun plain("init_block");
  plain.ranges = {normalRange(0, kNumbers, kFirst * Nf4Record::kNumbers)};
  Array x = plain.out(DType::F32, {kNumbers}).run()[0];
  std::vector<Nf4Record> records(kRecords);
  std::vector<float> opened(static_cast<size_t>(kNumbers));
  const ParamRange range = normalRange(0, kRecords, kFirst);
  const int64_t rangesOf[] = {0, 1};
  Call draw;
  draw.out[draw.outCount++] = {records.data(), DType::NF4x512, 1, false, {kRecords}};
  draw.ranges = &range, draw.rangesOf = rangesOf, draw.rangesCount = 1;
  const Kernel &init = *findHostKernel("init_block"), &open = *findHostKernel("dequantize_nested");
  ASSERT_EQ(init.accepts(draw), nullptr);
  init.run(draw);
  Call call;
  call.in[call.inCount++] = {records.data(), DType::NF4x512, 2, false, {kRecords, 1}};
  call.out[call.outCount++] = {
      opened.data(), DType::F32, 2, false, {kRecords, Nf4Record::kNumbers}};
  ASSERT_EQ(open.accepts(call), nullptr);
  open.run(call);
  std::vector<float> numbers(x.values.begin(), x.values.end());
  for (size_t i = 0; i < numbers.size(); i += Nf4Record::kNumbers)
    fromNf4Record(toNf4Record(&numbers[i]), &numbers[i]);
  for (size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(opened[i], numbers[i]) << i;
    ASSERT_NEAR(opened[i], x.values[i], 0.4 * std::fabs(numbers[i]) + 0.01) << i;
  }
}

TEST(Init, HalvesAreThoseOfValues) {
  KernelRun whole("init_block"), run("init_block");
  whole.ranges = run.ranges = {normalRange(1, 1100, 12345)};
  auto [weights, remainders] = halvesOf(whole.out(DType::F32, {kSize}).run()[0]);
  std::vector<Array> got = run.out(DType::BF16, {kSize}).out(DType::U16, {kSize}).run();
  EXPECT_EQ(got[0].values, weights.values);
  EXPECT_EQ(got[1].values, remainders.values);
}

TEST(Init, ShardsOfAParameterFitTogether) {
  auto draw = [](int64_t begin, int64_t end) {
    KernelRun run("init_block");
    run.ranges = {normalRange(0, end - begin, begin)};
    return run.out(DType::F32, {end - begin}).run()[0].values;
  };
  std::vector<double> whole = draw(0, 900), parts = draw(0, 301), rest = draw(301, 900);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

/// Parts of rows have the values of the whole tensor, whether or not they begin at a pair of
/// numbers.
TEST(Init, PartsOfRowsAreThoseOfTheWhole) {
  constexpr int64_t kRows = 37, kStride = 613;
  KernelRun all("init_block");
  all.ranges = {normalRange(0, kRows * kStride, 0)};
  Array whole = all.out(DType::F32, {kRows * kStride}).run()[0];
  for (auto [first, columns] :
       {std::pair<int64_t, int64_t>{0, 300}, {300, 313}, {7, 1}, {5, 598}}) {
    KernelRun run("init_block");
    ParamRange range = normalRange(3, 3 + kRows * columns, first);
    range.columns = columns;
    range.stride = kStride;
    run.ranges = {range};
    Array x = run.out(DType::F32, {kRows * columns + 5}).run()[0];
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(x[3 + row * columns + c], whole[row * kStride + first + c]) << row << " " << c;
    EXPECT_EQ(x[2], 0);
    EXPECT_EQ(x[3 + kRows * columns], 0);
  }
}

TEST(Init, RefusesPartsThatAreNotEqual) {
  for (auto [columns, stride] : {std::pair<int64_t, int64_t>{7, 8}, {8, 7}, {-1, 8}}) {
    KernelRun run("init_block");
    run.ranges = {normalRange(0, 16, 0)};
    run.ranges[0].columns = columns;
    run.ranges[0].stride = stride;
    EXPECT_STREQ(run.out(DType::F32, {16}).refusal(),
                 "a range does not consist of equal parts of rows");
  }
}

TEST(Init, IsNormal) {
  KernelRun run("init_block");
  int64_t n = 40000;
  run.ranges = {normalRange(0, n, 0)};
  double mean = 0, square = 0;
  Array x = run.out(DType::F32, {n}).run()[0];
  for (double value : x.values) {
    mean += value / static_cast<double>(n);
    square += value * value / static_cast<double>(n);
  }
  EXPECT_NEAR(mean, 0, 5 * 0.02 / std::sqrt(static_cast<double>(n)));
  EXPECT_NEAR(std::sqrt(square), 0.02, 5 * 0.02 / std::sqrt(2.0 * static_cast<double>(n)));
}

} // namespace
} // namespace shardc::kernels::test
