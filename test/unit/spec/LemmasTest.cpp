// Compares the steps of Ops.def with what kernels compute: runs a fused op and the plain ops of
// its row on the same random operands, and compares the bytes of their results. If the op has a
// kernel of its own, the test fails for a wrong row, and for one that does not say where the op
// rounds. Other ops run by their rows, so the test shows that the host runs steps as this file
// does; test/kernels/golden/steps.txt tests these rows.
#include <bit>
#include <cmath>
#include <set>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "runtime/plan/AttrFields.h"
#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Steps.h"
#include "runtime/verify/spec/Rows.h"
#include "test/unit/factors/Calls.h"

namespace shardc::plan::spec {
namespace {

using factors::Array;
using factors::Sample;

constexpr uint64_t kSeeds = 2;

/// An array for a result of type `between` or of the type of its row; its extents follow from the
/// operands.
Array resultOf(const Sample &step, size_t r, const FactorExtents &extents, DType between) {
  Array array;
  const FactorValue &row = step.factors().result(r);
  const auto shape = extents.shapeOf(row);
  array.shape.assign(shape.begin(), shape.begin() + row.dimCount);
  const ValueType &type = typesOf(step.kind).result(r);
  array.dtype = type.numbers == ValueType::Exact ? type.dtype : between;
  if (type.like >= 0 && type.isLikeOperand)
    array.dtype = step.operands[static_cast<size_t>(type.like)].dtype;
  array.bytes.resize(static_cast<size_t>(array.type().bytes()));
  return array;
}

/// Rows of a matrix get the extents of samples and positions that another value has.
void splitRows(Array &array, const Sample &fused) {
  for (const auto *values : {&fused.operands, &fused.results})
    for (const Array &other : *values)
      if (array.shape.size() == 4 && other.shape.size() == 4 &&
          array.shape[0] * array.shape[1] <= 0)
        array.shape[0] = other.shape[0], array.shape[1] = other.shape[1];
  array.bytes.resize(static_cast<size_t>(array.type().bytes()));
}

/// Sets the statistics operand of a norm's gradient to the statistics of its x.
void makeConsistent(Sample &sample) {
  int x = positionOf(opInfo(sample.kind).operands, "x"),
      w = positionOf(opInfo(sample.kind).operands, "w"),
      rstd = positionOf(opInfo(sample.kind).operands, "rstd");
  if (x < 0 || w < 0 || rstd < 0 || opInfo(sample.kind).operands.find("mean") != std::string::npos)
    return;
  Sample norm;
  norm.kind = OpKind::RmsNorm, norm.attrs = sample.attrs;
  norm.operands = {sample.operands[static_cast<size_t>(x)],
                   sample.operands[static_cast<size_t>(w)]};
  norm.results = {sample.operands[static_cast<size_t>(x)],
                  sample.operands[static_cast<size_t>(rstd)]};
  norm.inPlace = {-1, -1};
  sample.operands[static_cast<size_t>(rstd)] = norm.run()[1];
}

/// Sets the numbers of heads, which some kernels take from shapes: queries come first, then keys.
void nameHeads(Sample &sample) {
  std::vector<const Array *> heads;
  for (const auto *values : {&sample.operands, &sample.results})
    for (const Array &array : *values)
      if (array.shape.size() == 4)
        heads.push_back(&array);
  if (heads.size() < 2)
    return;
  sample.attrs.num_heads = heads[0]->shape[2], sample.attrs.num_groups = heads[1]->shape[2];
  sample.attrs.head_dim = heads[0]->shape[3];
}

/// Runs the steps of a row; fails the test and returns nothing if a kernel refuses one.
std::vector<Array> unfold(const OpSteps &entry, const Sample &fused) {
  std::vector<Array> values(entry.valueCount);
  std::vector<bool> isThere(entry.valueCount);
  for (size_t i = 0; i < fused.operands.size(); ++i)
    values[i] = fused.operands[i], isThere[i] = true;
  const bool isProduct = opInfo(fused.kind).work.cost == CostClass::Product;
  const DType data = isProduct ? fused.results[0].dtype : fused.operands[0].dtype;
  for (const OpStep &row : entry.steps) {
    Sample step;
    step.kind = row.kind;
    for (int k = 0; k < kAttrCount; ++k)
      if (auto key = static_cast<AttrKey>(k);
          opInfo(row.kind).attrs.has(key) && opInfo(entry.kind).attrs.has(key))
        plan::setAttr(step.attrs, key, plan::attrOf(fused.attrs, key));
    for (const OpStep::Set &each : row.set) {
      if (attrInfo(each.key).type != AttrInfo::Bool)
        ADD_FAILURE() << "a row sets " << attrInfo(each.key).name;
      plan::setAttr(step.attrs, each.key, each.value);
    }
    for (uint8_t value : row.operands)
      if (isThere[value])
        step.operands.push_back(values[value]);
    FactorExtents extents = step.extents();
    for (size_t r = 0; r < row.results.size(); ++r) {
      bool isWide = entry.isWide(row.results[r]);
      Array result = resultOf(step, r, extents, isWide ? DType::F32 : data);
      for (size_t of = 0; of < fused.results.size(); ++of)
        if (entry.results[of] == row.results[r])
          result.shape = fused.results[of].shape, result.dtype = fused.results[of].dtype;
      splitRows(result, fused);
      const Array &first = step.operands.front(); // its rows may have several dimensions
      const OpFactors &factors = factorsOf(row.kind);
      if (result.shape.size() < first.shape.size() && result.numel() == first.numel() && r == 0 &&
          factors.result(0).dimCount == factors.operand(0).dimCount)
        result.shape = first.shape;
      result.bytes.resize(static_cast<size_t>(result.type().bytes()));
      step.results.push_back(std::move(result));
      step.inPlace.push_back(-1);
    }
    if (const char *reason = step.refusal()) {
      ADD_FAILURE() << opInfo(entry.kind).name << ", " << opInfo(row.kind).name << ": " << reason;
      return {};
    }
    std::vector<Array> made = step.run();
    for (size_t r = 0; r < row.results.size(); ++r)
      values[row.results[r]] = std::move(made[r]), isThere[row.results[r]] = true;
  }
  std::vector<Array> results;
  for (size_t r = 0; r < fused.results.size(); ++r)
    results.push_back(values[entry.results[r]]);
  return results;
}

void compare(const OpSteps &entry, const Sample &fused) {
  std::vector<Array> whole = fused.run(), parts = unfold(entry, fused);
  for (size_t r = 0; r < parts.size(); ++r)
    EXPECT_TRUE(whole[r].bytes == parts[r].bytes)
        << opInfo(entry.kind).name << ", result " << r << " of a row, "
        << dtypeName(fused.operands[0].dtype);
}

/// A call of the row's op with random operands; empty if it takes fewer operands than the row
/// needs.
std::optional<Sample> sampleOf(const OpSteps &entry, uint64_t seed, DType dtype = DType::F32) {
  std::optional<Sample> sample =
      factors::makeSample(entry.kind, opInfo(entry.kind).name, seed, false, dtype);
  if (!sample)
    return std::nullopt;
  while (sample->operands.size() > entry.operandsMax)
    sample->operands.pop_back();
  while (sample->results.size() > entry.results.size())
    sample->results.pop_back(), sample->inPlace.pop_back();
  if (sample->operands.size() < entry.operandsMin)
    return std::nullopt;
  makeConsistent(*sample);
  nameHeads(*sample);
  return sample;
}

TEST(Lemmas, RowsSayWhatKernelsCompute) {
  std::set<std::string_view> untried;
  size_t tried = 0;
  for (const OpSteps &entry : allSteps()) {
    if (opInfo(entry.kind).form) // test/kernels/StepsTest.cpp
      continue;
    for (DType dtype : {DType::F32, DType::BF16, DType::F16})
      for (uint64_t seed = 1; seed <= kSeeds; ++seed)
        if (std::optional<Sample> sample = sampleOf(entry, seed, dtype))
          compare(entry, *sample), ++tried;
        else
          untried.insert(opInfo(entry.kind).name);
  }
  EXPECT_TRUE(untried.empty()) << *untried.begin();
  EXPECT_GE(tried, kSeeds * 20 * 3);
}

struct WrongRow {
  OpKind kind;
  const char *values, *steps;
};
constexpr WrongRow kWrongRows[] = {
    {OpKind::AddRmsNorm, "a b w -> s y r", "s = add a b; y r = rmsnorm a w"}, // not of the sum
    {OpKind::SwiGluBwd, "dy x -> dx y", "dx = geglu_bwd dy x; y = geglu x"},  // another gate
    {OpKind::SplitQkvRope, "x p? -> q k v", "q b v = split_qkv x; k = rope b p"},
    {OpKind::MatMulAdd, "a b m -> y", "z = matmul a b; y = add z m"}, // rounds twice
    {OpKind::LmLossGrad, "x w l m n s? -> o dx dw",                   // rounds the logits
     "z = matmul{trans_b=1} x w; o e = cross_entropy z l m; dz: f32 = "
     "cross_entropy_bwd z e l m n s; dx = matmul dz w; dw = matmul{trans_a=1} dz x"},
};

/// This test finds wrong rows.
TEST(Lemmas, WrongRowsAreFound) {
  for (const WrongRow &wrong : kWrongRows) {
    std::optional<OpSteps> row = parseSteps(wrong.kind, wrong.values, wrong.steps);
    ASSERT_TRUE(row) << wrong.steps;
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter taken(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        Sample sample = *sampleOf(*row, seed, DType::BF16);
        sample.attrs.loss_scale = 0.5;
        compare(*row, sample);
      }
    }
    EXPECT_GT(failures.size(), 0) << opInfo(wrong.kind).name << " may be '" << wrong.steps << "'";
  }
}

TEST(Lemmas, MalformedRowsAreRefused) {
  EXPECT_FALSE(parseSteps(OpKind::Add, "a b", "c = add a b"));
  EXPECT_FALSE(parseSteps(OpKind::Add, "a b -> c", "c = adds a b"));
  EXPECT_FALSE(parseSteps(OpKind::Add, "a b -> c", "c = add a d"));
  EXPECT_FALSE(parseSteps(OpKind::Add, "a b -> c", "d = add a b"));
  EXPECT_FALSE(parseSteps(OpKind::Add, "a b -> c", "c = add{no_attribute} a b"));
}

/// If all operands in which an op is linear triple, its result triples.
TEST(Linear, RowsSayWhatKernelsCompute) {
  size_t tried = 0;
  for (int k = 0; k < kOpCount; ++k) {
    auto kind = static_cast<OpKind>(k);
    for (size_t i = 0; i < kOperandsOfOpMax; ++i) {
      if (opInfo(kind).linearityOf(i) == Linearity::None)
        continue;
      std::optional<Sample> sample = factors::makeSample(
          kind, kind == OpKind::MatMul ? "matmul" : opInfo(kind).name, 1, false);
      ASSERT_TRUE(sample) << opInfo(kind).name;
      if (i >= sample->operands.size())
        continue;
      if (kind == OpKind::MatMul)
        sample->operands.resize(2);
      std::vector<size_t> together = {i};
      if (opInfo(kind).linearityOf(i) == Linearity::Together)
        for (size_t other = 0; other < sample->operands.size(); ++other)
          if (other != i && opInfo(kind).linearityOf(other) == Linearity::Together)
            together.push_back(other);
      std::vector<Array> whole = sample->run();
      for (size_t operand : together)
        for (int64_t e = 0; e < sample->operands[operand].numel(); ++e)
          sample->operands[operand].put(e, 3 * sample->operands[operand].get(e));
      std::vector<Array> three = sample->run();
      const double unwritten = std::bit_cast<float>(0x3c3c3c3cu); // how results are filled before
      for (int64_t e = 0; e < whole[0].numel(); ++e) {
        if (whole[0].get(e) == unwritten)
          continue;
        EXPECT_NEAR(three[0].get(e), 3 * whole[0].get(e), 1e-4 * (1 + std::fabs(three[0].get(e))))
            << opInfo(kind).name << ", operand " << i;
      }
      ++tried;
    }
  }
  EXPECT_GE(tried, 10u);
}

/// Results that differ when one operand has other numbers.
size_t differences(Sample sample, size_t operand) {
  std::vector<Array> before = sample.run();
  for (int64_t e = 0; e < sample.operands[operand].numel(); ++e)
    sample.operands[operand].put(e, 3 * sample.operands[operand].get(e) + 1);
  std::vector<Array> after = sample.run();
  size_t count = 0;
  for (int64_t e = 0; e < before[0].numel(); ++e)
    count += before[0].get(e) != after[0].get(e) ? 1 : 0;
  return count;
}

/// With the attribute of a row, kernels do not use its operand; without it they do.
TEST(Unused, RowsSayWhatKernelsCompute) {
#define UNUSED(op, operand, attribute)                                                             \
  {                                                                                                \
    constexpr size_t kAt = operandIndex<OpKind::op>(#operand);                                     \
    std::optional<Sample> sample =                                                                 \
        factors::makeSample(OpKind::op, opInfo(OpKind::op).name, 1, false);                        \
    ASSERT_TRUE(sample);                                                                           \
    sample->attrs.attribute = false;                                                               \
    EXPECT_GT(differences(*sample, kAt), 0u) << #op;                                               \
    sample->attrs.attribute = true;                                                                \
    EXPECT_EQ(differences(*sample, kAt), 0u) << #op;                                               \
    const Attr attr = {AttrKey::attribute, {.i = 1}};                                              \
    EXPECT_EQ(unusedOperand(OpKind::op, {&attr, 1}), static_cast<int>(kAt));                       \
  }
#include "runtime/verify/spec/Spec.def"
}

} // namespace
} // namespace shardc::plan::spec
