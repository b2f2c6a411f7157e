// Fused ops that quantize a value have the same bits as the ops that they combine.
#include "test/kernels/Harness.h"

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr int64_t kRows = 5, kCols = 24;

void expectSame(const Array &got, const Array &want, const char *what) {
  EXPECT_EQ(got.dtype, want.dtype) << what;
  EXPECT_EQ(got.values, want.values) << what;
}

Array expected() { return array(DType::F32, {3}, {2, 0.25, 1}); }
Array seenBefore() { return array(DType::F32, {3}, {0, 0.125, 9}); }

/// The results of quantize_delayed: q, its scale, the updated `seen`, the transpose.
std::vector<Array> quantized(const Array &value, DType type, int64_t slot, Array seen) {
  KernelRun run("quantize_delayed");
  run.attrs.slot = slot;
  int64_t rows = value.shape[0], cols = value.shape[1];
  run.in(value).in(expected()).in(std::move(seen));
  run.out(type, {rows, cols}).out(DType::F32, {1}).inPlace(2).out(type, {cols, rows});
  return run.run();
}

class QuantizeFused : public testing::TestWithParam<DType> {
protected:
  Array randomRows(int64_t cols, uint64_t seed) { return randoms(GetParam(), {kRows, cols}, seed); }
};

/// swiglu, and geglu with and without the tanh approximation.
struct Gated {
  const char *name;
  bool tanhApprox;
  KernelRun run(const std::string &suffix) const {
    KernelRun run(name + suffix);
    run.attrs.tanh_approx = tanhApprox;
    return run;
  }
};
constexpr Gated kGated[] = {{"swiglu", false}, {"geglu", false}, {"geglu", true}};

TEST_P(QuantizeFused, Gated) {
  Array x = randomRows(2 * kCols, 1);
  for (const Gated &gated : kGated) {
    KernelRun make = gated.run(""), fused = gated.run(".quantize_delayed");
    make.in(x).out(GetParam(), {kRows, kCols});
    fused.attrs.slot = 1;
    fused.in(x).in(expected()).in(seenBefore());
    fused.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1}).inPlace(2);
    fused.out(DType::F8E4M3, {kCols, kRows});
    std::vector<Array> want = quantized(make.run()[0], DType::F8E4M3, 1, seenBefore());
    std::vector<Array> got = fused.run();
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], gated.name);
  }
}

TEST_P(QuantizeFused, GatedBwd) {
  Array dy = randomRows(kCols, 2), x = randomRows(2 * kCols, 3);
  for (const Gated &gated : kGated) {
    KernelRun make = gated.run("_bwd"), fused = gated.run("_bwd.quantize_delayed");
    make.in(dy).in(x).out(GetParam(), {kRows, 2 * kCols}).out(GetParam(), {kRows, kCols});
    fused.attrs.slot = 1, fused.attrs.y_slot = 2;
    fused.in(dy).in(x).in(expected()).in(seenBefore());
    fused.out(DType::F8E5M2, {kRows, 2 * kCols}).out(DType::F32, {1}).inPlace(3);
    fused.out(DType::F8E5M2, {2 * kCols, kRows});
    fused.out(DType::F8E4M3, {kCols, kRows}).out(DType::F32, {1});
    std::vector<Array> made = make.run(), got = fused.run();
    std::vector<Array> dx = quantized(made[0], DType::F8E5M2, 1, seenBefore());
    std::vector<Array> y = quantized(made[1], DType::F8E4M3, 2, dx[2]);
    expectSame(got[0], dx[0], "q");
    expectSame(got[1], dx[1], "scale");
    expectSame(got[2], y[2], "seen");
    expectSame(got[3], dx[3], "t");
    expectSame(got[4], y[3], "yt");
    expectSame(got[5], y[1], "yscale");
  }
}

TEST_P(QuantizeFused, AddRmsNorm) {
  Array a = randomRows(kCols, 4), b = randomRows(kCols, 5), w = randoms(GetParam(), {kCols}, 6);
  for (bool zeroCentered : {false, true}) {
    KernelRun make("add_rmsnorm"), fused("add_rmsnorm.quantize_delayed");
    make.attrs.zero_centered = fused.attrs.zero_centered = zeroCentered;
    make.in(a).in(b).in(w).out(GetParam(), {kRows, kCols}).out(GetParam(), {kRows, kCols});
    make.out(DType::F32, {kRows});
    fused.in(a).in(b).in(w).in(expected()).in(seenBefore());
    fused.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1}).inPlace(4);
    fused.out(GetParam(), {kRows, kCols}).out(DType::F32, {kRows});
    std::vector<Array> made = make.run(), got = fused.run();
    std::vector<Array> want = quantized(made[1], DType::F8E4M3, 0, seenBefore());
    for (size_t r = 0; r < 3; ++r)
      expectSame(got[r], want[r], "norm");
    expectSame(got[3], made[0], "sum");
    expectSame(got[4], made[2], "rstd");
  }
}

TEST_P(QuantizeFused, RmsNormAndTheSameAgain) {
  Array x = randomRows(kCols, 7), w = randoms(GetParam(), {kCols}, 8);
  KernelRun make("rmsnorm"), fused("rmsnorm.quantize_delayed");
  make.in(x).in(w).out(GetParam(), {kRows, kCols}).out(DType::F32, {kRows});
  fused.in(x).in(w).in(expected()).in(seenBefore());
  fused.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1}).inPlace(3);
  fused.out(DType::F32, {kRows});
  std::vector<Array> made = make.run(), got = fused.run();
  std::vector<Array> want = quantized(made[0], DType::F8E4M3, 0, seenBefore());
  for (size_t r = 0; r < 3; ++r)
    expectSame(got[r], want[r], "norm");
  expectSame(got[3], made[1], "rstd");
  KernelRun again("rmsnorm_again.quantize_delayed");
  again.attrs.transposed = true;
  again.in(x).in(w).in(made[1]).in(expected()).in(seenBefore());
  again.out(DType::F8E4M3, {kCols, kRows}).out(DType::F32, {1}).inPlace(4);
  got = again.run();
  expectSame(got[0], want[3], "again");
  expectSame(got[1], want[1], "scale");
  expectSame(got[2], want[2], "seen");
}

/// The amax of a value.
std::vector<Array> amaxOf(const Array &value) {
  KernelRun run("amax");
  run.in(value).out(DType::F32, {1});
  return run.run();
}

/// The results of quantize in both forms, with the amax in this slot.
std::vector<Array> quantizedBy(const Array &value, DType type, const Array &amaxes, int64_t slot) {
  KernelRun run("quantize");
  run.attrs.slot = slot;
  int64_t rows = value.shape[0], cols = value.shape[1];
  run.in(value).in(amaxes);
  run.out(type, {rows, cols}).out(DType::F32, {1}).out(type, {cols, rows});
  return run.run();
}

TEST_P(QuantizeFused, GatedIsMadeTwice) {
  Array x = randomRows(2 * kCols, 9);
  for (const Gated &gated : kGated) {
    KernelRun make = gated.run(""), look = gated.run(".amax"), fused = gated.run(".quantize");
    make.in(x).out(GetParam(), {kRows, kCols});
    look.in(x).out(DType::F32, {1});
    Array y = make.run()[0], m = look.run()[0];
    expectSame(m, amaxOf(y)[0], "amax");
    fused.in(x).in(m).out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1});
    fused.out(DType::F8E4M3, {kCols, kRows});
    std::vector<Array> got = fused.run(), want = quantizedBy(y, DType::F8E4M3, m, 0);
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], gated.name);
  }
}

TEST_P(QuantizeFused, GatedBwdIsMadeTwice) {
  Array dy = randomRows(kCols, 10), x = randomRows(2 * kCols, 11);
  for (const Gated &gated : kGated) {
    KernelRun make = gated.run("_bwd"), look = gated.run("_bwd.amax");
    KernelRun fused = gated.run("_bwd.quantize");
    make.in(dy).in(x).out(GetParam(), {kRows, 2 * kCols}).out(GetParam(), {kRows, kCols});
    look.in(dy).in(x).out(DType::F32, {2});
    std::vector<Array> made = make.run();
    Array m = look.run()[0];
    EXPECT_EQ(m.values, (std::vector<double>{amaxOf(made[0])[0][0], amaxOf(made[1])[0][0]}));
    fused.attrs.y_slot = 1;
    fused.in(dy).in(x).in(m).out(DType::F8E5M2, {kRows, 2 * kCols}).out(DType::F32, {1});
    fused.out(DType::F8E5M2, {2 * kCols, kRows});
    fused.out(DType::F8E4M3, {kCols, kRows}).out(DType::F32, {1});
    std::vector<Array> got = fused.run(), dx = quantizedBy(made[0], DType::F8E5M2, m, 0);
    std::vector<Array> y = quantizedBy(made[1], DType::F8E4M3, m, 1);
    for (size_t r = 0; r < dx.size(); ++r)
      expectSame(got[r], dx[r], "dx");
    expectSame(got[3], y[2], "yt");
    expectSame(got[4], y[1], "yscale");
  }
}

/// squared_relu and its gradient, which make a value with as many elements as x.
TEST_P(QuantizeFused, SquaredRelu) {
  Array dy = randomRows(kCols, 25), x = randomRows(kCols, 26);
  for (bool isBackward : {false, true}) {
    std::string name = isBackward ? "squared_relu_bwd" : "squared_relu";
    KernelRun make(name), delayed(name + ".quantize_delayed"), look(name + ".amax");
    KernelRun again(name + ".quantize");
    for (KernelRun *run : {&make, &delayed, &look, &again}) {
      if (isBackward)
        run->in(dy);
      run->in(x);
    }
    Array value = make.out(GetParam(), {kRows, kCols}).run()[0];
    delayed.attrs.slot = 1;
    delayed.in(expected()).in(seenBefore());
    delayed.out(DType::F8E5M2, {kRows, kCols}).out(DType::F32, {1}).inPlace(isBackward ? 3 : 2);
    delayed.out(DType::F8E5M2, {kCols, kRows});
    std::vector<Array> want = quantized(value, DType::F8E5M2, 1, seenBefore());
    std::vector<Array> got = delayed.run();
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], "delayed");
    Array m = look.out(DType::F32, {1}).run()[0];
    expectSame(m, amaxOf(value)[0], "amax");
    again.attrs.transposed = true;
    got = again.in(m).out(DType::F8E4M3, {kCols, kRows}).out(DType::F32, {1}).run();
    want = quantizedBy(value, DType::F8E4M3, m, 0);
    expectSame(got[0], want[2], "t");
    expectSame(got[1], want[1], "scale");
  }
}

TEST_P(QuantizeFused, NormsAreMadeTwice) {
  Array a = randomRows(kCols, 12), b = randomRows(kCols, 13), w = randoms(GetParam(), {kCols}, 14);
  for (bool adds : {false, true}) {
    KernelRun make(adds ? "add_rmsnorm" : "rmsnorm");
    KernelRun look(adds ? "add_rmsnorm.amax" : "rmsnorm.amax"), fused("rmsnorm_again.quantize");
    for (KernelRun *run : {&make, &look}) {
      run->in(a);
      if (adds)
        run->in(b).in(w).out(GetParam(), {kRows, kCols});
      else
        run->in(w);
    }
    make.out(GetParam(), {kRows, kCols}).out(DType::F32, {kRows});
    look.out(DType::F32, {kRows}).out(DType::F32, {1});
    std::vector<Array> made = make.run(), looked = look.run();
    const Array &y = made[adds ? 1 : 0], &m = looked.back();
    expectSame(looked[adds ? 1 : 0], made.back(), "rstd");
    expectSame(m, amaxOf(y)[0], "amax");
    fused.in(adds ? made[0] : a).in(w).in(made.back()).in(m);
    fused.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1});
    fused.out(DType::F8E4M3, {kCols, kRows});
    std::vector<Array> got = fused.run(), want = quantizedBy(y, DType::F8E4M3, m, 0);
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], "norm");
  }
}

TEST_P(QuantizeFused, RowBlocks) {
  Array a = randomRows(kCols, 15), b = randomRows(kCols, 16), w = randoms(GetParam(), {kCols}, 17);
  auto blocks = [&](const Array &value) {
    KernelRun run("quantize_blocks");
    run.in(value).out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1, kRows});
    return run.run();
  };
  KernelRun norm("rmsnorm"), adding("add_rmsnorm");
  norm.in(a).in(w).out(GetParam(), {kRows, kCols}).out(DType::F32, {kRows});
  adding.in(a).in(b).in(w).out(GetParam(), {kRows, kCols}).out(GetParam(), {kRows, kCols});
  adding.out(DType::F32, {kRows});
  KernelRun fusedNorm("rmsnorm.quantize_blocks"), fusedAdding("add_rmsnorm.quantize_blocks");
  fusedNorm.in(a).in(w);
  fusedAdding.in(a).in(b).in(w);
  for (KernelRun *run : {&fusedNorm, &fusedAdding})
    run->out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1, kRows});
  fusedNorm.out(DType::F32, {kRows});
  fusedAdding.out(GetParam(), {kRows, kCols}).out(DType::F32, {kRows});
  std::vector<Array> made = norm.run(), sums = adding.run();
  std::vector<Array> gotNorm = fusedNorm.run(), gotAdding = fusedAdding.run();
  for (size_t r = 0; r < 2; ++r) {
    expectSame(gotNorm[r], blocks(made[0])[r], "rmsnorm");
    expectSame(gotAdding[r], blocks(sums[1])[r], "add_rmsnorm");
  }
  expectSame(gotNorm[2], made[1], "rstd");
  expectSame(gotAdding[2], sums[0], "sum");
  expectSame(gotAdding[3], sums[2], "rstd");
}

TEST_P(QuantizeFused, RowBlocksOfActivations) {
  for (auto [name, width] : {std::pair("swiglu", 2), {"geglu", 2}, {"squared_relu", 1}}) {
    Array x = randomRows(width * kCols, 18);
    KernelRun make(name), blocks("quantize_blocks"), fused(std::string(name) + ".quantize_blocks");
    blocks.in(make.in(x).out(GetParam(), {kRows, kCols}).run()[0]);
    fused.in(x);
    for (KernelRun *run : {&blocks, &fused})
      run->out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1, kRows});
    std::vector<Array> got = fused.run(), want = blocks.run();
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], name);
  }
}

constexpr int64_t kTall = 131, kWide = 256; ///< more than one block

/// The results of quantize_blocks on a value, or on its transpose.
std::vector<Array> blocksOf(const Array &value, DType type, bool transposed) {
  KernelRun run("quantize_blocks");
  run.attrs.transposed = transposed;
  int64_t rows = value.shape[transposed ? 1 : 0], cols = value.shape[transposed ? 0 : 1];
  run.in(value).out(type, {rows, cols}).out(DType::F32, {(cols + 127) / 128, rows});
  return run.run();
}

TEST_P(QuantizeFused, TransposedBlocksOfNorms) {
  Array x = randoms(GetParam(), {kTall, kCols}, 19), w = randoms(GetParam(), {kCols}, 20);
  for (bool zeroCentered : {false, true}) {
    KernelRun make("rmsnorm"), again("rmsnorm_again.quantize_blocks");
    make.attrs.zero_centered = again.attrs.zero_centered = zeroCentered;
    make.in(x).in(w).out(GetParam(), {kTall, kCols}).out(DType::F32, {kTall});
    std::vector<Array> made = make.run();
    again.in(x).in(w).in(made[1]).out(DType::F8E4M3, {kCols, kTall}).out(DType::F32, {2, kCols});
    std::vector<Array> got = again.run(), want = blocksOf(made[0], DType::F8E4M3, true);
    expectSame(got[0], want[0], "t");
    expectSame(got[1], want[1], "scale");
  }
}

TEST_P(QuantizeFused, BlocksOfGatedBwd) {
  Array dy = randoms(GetParam(), {kTall, kWide}, 21),
        x = randoms(GetParam(), {kTall, 2 * kWide}, 22);
  for (const Gated &gated : kGated) {
    KernelRun make = gated.run("_bwd"), fused = gated.run("_bwd.quantize_blocks");
    make.in(dy).in(x).out(GetParam(), {kTall, 2 * kWide}).out(GetParam(), {kTall, kWide});
    fused.in(dy).in(x).out(DType::F8E5M2, {kTall, 2 * kWide}).out(DType::F32, {4, kTall});
    fused.out(DType::F8E5M2, {2 * kWide, kTall}).out(DType::F32, {2, 2 * kWide});
    fused.out(DType::F8E4M3, {kWide, kTall}).out(DType::F32, {2, kWide});
    std::vector<Array> made = make.run(), got = fused.run();
    const std::vector<Array> want[] = {blocksOf(made[0], DType::F8E5M2, false),
                                       blocksOf(made[0], DType::F8E5M2, true),
                                       blocksOf(made[1], DType::F8E4M3, true)};
    for (size_t r = 0; r < got.size(); ++r)
      expectSame(got[r], want[r / 2][r % 2], gated.name);
  }
}

/// A layernorm with or without a sum: its y, and its other results in `own`.
struct LayerNorm {
  std::string name;
  std::vector<Array> operands;
  bool adds, zeroCentered;
  DType type;
  Array y;
  std::vector<Array> own;

  KernelRun run(const std::string &suffix) const {
    KernelRun run(name + suffix);
    run.attrs.zero_centered = zeroCentered;
    for (const Array &operand : operands)
      run.in(operand);
    return run;
  }
  /// Adds the sum and the statistics as results of the call.
  void give(KernelRun &run, bool givesY = false) const {
    for (int i = 0; i < int{adds} + int{givesY}; ++i)
      run.out(type, {kRows, kCols});
    run.out(DType::F32, {kRows}).out(DType::F32, {kRows});
  }
  void expectOwn(const std::vector<Array> &got, size_t first) const {
    for (size_t i = 0; i < own.size(); ++i)
      expectSame(got[first + i], own[i], "sum and statistics");
  }
};

template <typename Test> void forEachLayerNorm(DType type, Test test) {
  for (bool adds : {false, true})
    for (bool zeroCentered : {false, true}) {
      LayerNorm norm = {adds ? "add_layernorm" : "layernorm", {}, adds, zeroCentered, type, {}, {}};
      for (uint64_t seed = 19; seed < (adds ? 21u : 20u); ++seed)
        norm.operands.push_back(randoms(type, {kRows, kCols}, seed));
      for (uint64_t seed : {21u, 22u})
        norm.operands.push_back(randoms(type, {kCols}, seed));
      KernelRun make = norm.run("");
      norm.give(make, true);
      norm.own = make.run();
      norm.y = norm.own[adds ? 1 : 0];
      norm.own.erase(norm.own.begin() + int{adds});
      test(norm);
    }
}

TEST_P(QuantizeFused, LayerNormByAMagnitudeThatIsKnown) {
  forEachLayerNorm(GetParam(), [](const LayerNorm &norm) {
    KernelRun fused = norm.run(".quantize_delayed");
    fused.in(expected()).in(seenBefore());
    fused.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1});
    norm.give(fused.inPlace(static_cast<int>(norm.operands.size()) + 1));
    std::vector<Array> got = fused.run();
    std::vector<Array> want = quantized(norm.y, DType::F8E4M3, 0, seenBefore());
    for (size_t r = 0; r < 3; ++r)
      expectSame(got[r], want[r], "norm");
    norm.expectOwn(got, 3);
  });
}

TEST_P(QuantizeFused, LayerNormIsMadeTwice) {
  forEachLayerNorm(GetParam(), [](const LayerNorm &norm) {
    KernelRun look = norm.run(".amax"), again("layernorm_again.quantize");
    norm.give(look);
    std::vector<Array> looked = look.out(DType::F32, {1}).run();
    norm.expectOwn(looked, 0);
    const Array &m = looked.back();
    expectSame(m, amaxOf(norm.y)[0], "amax");
    again.attrs.zero_centered = norm.zeroCentered;
    again.in(norm.adds ? norm.own[0] : norm.operands[0]);
    again.in(norm.operands[norm.operands.size() - 2]).in(norm.operands.back());
    again.in(norm.own[norm.own.size() - 2]).in(norm.own.back()).in(m);
    again.out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1});
    again.out(DType::F8E4M3, {kCols, kRows});
    std::vector<Array> got = again.run(), want = quantizedBy(norm.y, DType::F8E4M3, m, 0);
    for (size_t r = 0; r < want.size(); ++r)
      expectSame(got[r], want[r], "norm");
  });
}

TEST_P(QuantizeFused, LayerNormByBlocksOfRows) {
  forEachLayerNorm(GetParam(), [](const LayerNorm &norm) {
    KernelRun blocks("quantize_blocks"), fused = norm.run(".quantize_blocks");
    blocks.in(norm.y);
    for (KernelRun *run : {&blocks, &fused})
      run->out(DType::F8E4M3, {kRows, kCols}).out(DType::F32, {1, kRows});
    norm.give(fused);
    std::vector<Array> got = fused.run(), want = blocks.run();
    for (size_t r = 0; r < 2; ++r)
      expectSame(got[r], want[r], "norm");
    norm.expectOwn(got, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizeFused, testing::ValuesIn(kDataTypes));

} // namespace
} // namespace shardc::kernels::test
