// How rows of Ops.def are parsed, the extents that follow from types, and the factors that follow
// from the steps of fused ops.
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "runtime/plan/FactorExtents.h"

namespace shardc::plan {
namespace {

TEST(FactorRows, KeepEachMark) {
  const OpFactors &product = factorsOf(OpKind::MatMul);
  EXPECT_EQ(product.operand(0).transposedBy, AttrKey::trans_a);
  EXPECT_TRUE(product.operand(2).isAddedOnce);
  EXPECT_TRUE(product.isSummed(product.find("depth"), 0));
  EXPECT_FALSE(product.isSummed(product.find("rows"), 0));

  const OpFactors &norm = factorsOf(OpKind::RmsNorm);
  EXPECT_TRUE(norm.isNeededWhole(norm.find("channels")));
  EXPECT_FALSE(norm.isSummed(norm.find("channels"), 1));

  const OpFactors &split = factorsOf(OpKind::SplitQkv);
  const FactorAtom *heads = split.operand(0).find(split.find("heads"));
  EXPECT_EQ(heads->form, FactorAtom::Beside);
  EXPECT_EQ(heads->number, 2);
  EXPECT_EQ(heads->dim, 2);
  EXPECT_TRUE(split.result(0).find(split.find("heads"))->isShare);
  EXPECT_TRUE(split.isNeededWhole(split.find("heads")));
  EXPECT_EQ(split.attrOf[static_cast<size_t>(split.find("head"))], AttrKey::head_dim);

  const OpFactors &attention = factorsOf(OpKind::Attention);
  FactorId keys = attention.find("positions'");
  EXPECT_EQ(attention.extentOf[static_cast<size_t>(keys)], attention.find("positions"));
  EXPECT_TRUE(attention.operand(0).find(attention.find("groups"))->isKnownByIndex);

  const OpFactors &delayed = factorsOf(OpKind::QuantizeDelayed);
  EXPECT_EQ(delayed.result(1).combine, FactorValue::Same);
  EXPECT_EQ(delayed.result(2).combine, FactorValue::Largest);
  EXPECT_EQ(factorsOf(OpKind::QuantizeBlocks).result(1).form, FactorValue::Scales);
  EXPECT_EQ(factorsOf(OpKind::StepBegin).operand(0).form, FactorValue::Opaque);
  EXPECT_TRUE(factorsOf(OpKind::Join).operand(5).isList);
  const OpFactors &table = factorsOf(OpKind::Embedding);
  EXPECT_EQ(table.operand(0).pointsInto, table.find("vocabulary"));
  const OpFactors &dropout = factorsOf(OpKind::Dropout);
  EXPECT_TRUE(dropout.operand(0).find(dropout.find("samples"))->isInSharedDim);
  EXPECT_TRUE(dropout.operand(0).find(dropout.find("positions"))->isCounted);
  const OpFactors &merge = factorsOf(OpKind::MergeSlices);
  EXPECT_EQ(merge.result(0).find(merge.find("inner"))->form, FactorAtom::Mirrored);
  EXPECT_EQ(merge.reversedBy, AttrKey::inverse);
  EXPECT_NE(factorsOf(OpKind::AllGather).members, kNoFactor);
  const OpFactors &columns = factorsOf(OpKind::SplitColumns);
  const FactorAtom *second = columns.operand(0).find(columns.find("second"));
  EXPECT_EQ(second, columns.operand(0).find(columns.find("first")));
  EXPECT_EQ(second->form, FactorAtom::Joined);
  EXPECT_TRUE(columns.isNeededWhole(columns.find("second"))) << "nothing cuts it in the whole row";
}

TEST(FactorRows, SayWhatCountsRows) {
  const OpFactors &product = factorsOf(OpKind::GroupedMatMul);
  FactorId rows = product.find("rows"), runs = product.find("experts");
  EXPECT_TRUE(product.isBound(rows));
  EXPECT_FALSE(product.isBound(runs));
  EXPECT_EQ(product.boundBy(rows), 2u);
  EXPECT_EQ(product.operand(2).countsRowsOf, rows);
  EXPECT_TRUE(product.isNeededWhole(runs)) << "where a run begins depends on those before it";
  EXPECT_FALSE(product.isSummed(rows, 0));
  const OpFactors &gradient = factorsOf(OpKind::GroupedMatMulBwd);
  EXPECT_TRUE(gradient.isSummed(gradient.find("rows"), 0));
  const OpFactors &combine = factorsOf(OpKind::Combine);
  EXPECT_EQ(combine.boundBy(combine.find("rows")), 1u) << "by places";
  EXPECT_FALSE(
      factorsOf(OpKind::Embedding).isBound(factorsOf(OpKind::Embedding).find("vocabulary")));
}

/// The first of three dimensions keeps its place.
TEST(FactorRows, TurnTheLastTwoDimensions) {
  const FactorValue &matrices = factorsOf(OpKind::GroupedMatMul).operand(1);
  for (bool isTransposed : {false, true}) {
    EXPECT_EQ(placeOfDim(matrices, isTransposed, 0), 0);
    EXPECT_EQ(placeOfDim(matrices, isTransposed, 1), isTransposed ? 2 : 1);
    EXPECT_EQ(placeOfDim(matrices, isTransposed, 2), isTransposed ? 1 : 2);
  }
}

/// The page's examples are lines with an op's name and its signature.
TEST(FactorRows, ThePageShowsRowsOfTheTable) {
  std::ifstream page(SHARDC_FACTORS_PAGE);
  std::string line;
  int examples = 0;
  while (std::getline(page, line)) {
    if (!line.starts_with("    "))
      continue;
    size_t end = line.find("  ", 4);
    std::optional<OpKind> kind = parseOpKind(line.substr(4, end - 4));
    ASSERT_TRUE(kind) << line;
    EXPECT_EQ(line.substr(end + 2), opInfo(*kind).signature);
    ++examples;
  }
  EXPECT_GE(examples, 6);
}

// ---- extents ----

std::optional<ExtentFault> faultOf(const Op &op, const std::vector<Type> &operands,
                                   const std::vector<Type> &results, int64_t members = 1) {
  std::vector<const Type *> ins, outs;
  for (const Type &type : operands)
    ins.push_back(&type);
  for (const Type &type : results)
    outs.push_back(&type);
  return FactorExtents(op, ins, outs, members).fault();
}

Type f32(std::initializer_list<int64_t> shape) { return Type::of(DType::F32, shape); }

TEST(FactorExtents, EqualWordsHaveEqualExtents) {
  Op op;
  op.kind = OpKind::SwiGlu;
  EXPECT_FALSE(faultOf(op, {f32({2, 3, 8})}, {f32({6, 4})}));
  std::optional<ExtentFault> fault = faultOf(op, {f32({2, 3, 8})}, {f32({6, 8})});
  ASSERT_TRUE(fault);
  EXPECT_FALSE(fault->isOperand);
  EXPECT_EQ(fault->dims, "ffn");
  EXPECT_EQ(fault->found, 8);
  EXPECT_EQ(fault->needed, 4);
  EXPECT_TRUE(faultOf(op, {f32({6, 7})}, {f32({6, 4})})) << "an odd number is not two blocks";
}

TEST(FactorExtents, RowsOfRankOneAreOneRow) {
  Op op;
  op.kind = OpKind::Add;
  EXPECT_FALSE(faultOf(op, {f32({8}), f32({8})}, {f32({8})}));
  EXPECT_TRUE(faultOf(op, {f32({8}), f32({16})}, {f32({8})}));
  op.kind = OpKind::SwiGlu;
  EXPECT_FALSE(faultOf(op, {f32({8})}, {f32({4})}));
  EXPECT_TRUE(faultOf(op, {f32({8})}, {f32({8})}));
}

TEST(FactorExtents, AttributesTurnDimensionsAndSayExtents) {
  Op product;
  product.kind = OpKind::MatMul;
  EXPECT_FALSE(faultOf(product, {f32({2, 5}), f32({5, 3})}, {f32({2, 3})}));
  EXPECT_TRUE(faultOf(product, {f32({2, 5}), f32({3, 5})}, {f32({2, 3})}));
  product.set(AttrKey::trans_b, int64_t{1});
  EXPECT_FALSE(faultOf(product, {f32({2, 5}), f32({3, 5})}, {f32({2, 3})}));
  EXPECT_FALSE(faultOf(product, {f32({2, 5}), f32({3, 5}), f32({3})}, {f32({2, 3})}));
  EXPECT_TRUE(faultOf(product, {f32({2, 5}), f32({3, 5}), f32({2})}, {f32({2, 3})}));

  Op transpose;
  transpose.kind = OpKind::Transpose;
  transpose.set(AttrKey::outer, int64_t{4}).set(AttrKey::inner, int64_t{3});
  EXPECT_FALSE(faultOf(transpose, {f32({12, 5})}, {f32({3, 20})}));
  EXPECT_TRUE(faultOf(transpose, {f32({11, 5})}, {f32({11, 5})}));
}

/// For `a+b`, two of the three sizes determine the third.
TEST(FactorExtents, JoinedFactorsAddUp) {
  Op op;
  op.kind = OpKind::SplitColumns;
  EXPECT_FALSE(faultOf(op, {f32({2, 3, 12})}, {f32({6, 5}), f32({6, 7})}));
  std::optional<ExtentFault> fault = faultOf(op, {f32({6, 12})}, {f32({6, 5}), f32({6, 6})});
  ASSERT_TRUE(fault);
  EXPECT_TRUE(fault->isOperand);
  EXPECT_EQ(fault->dims, "first+second");
  EXPECT_EQ(fault->found, 12);
  EXPECT_EQ(fault->needed, 11);
  EXPECT_TRUE(faultOf(op, {f32({6, 5})}, {f32({6, 5}), f32({6, 6})})) << "nothing is left";

  op.kind = OpKind::LatentHeads;
  op.set(AttrKey::rotary_dim, int64_t{4});
  std::vector<Type> rows = {f32({2, 3, 20}), f32({2, 3, 26}), f32({2, 3, 4})};
  EXPECT_FALSE(faultOf(op, rows, {f32({2, 3, 2, 10}), f32({2, 3, 2, 10}), f32({2, 3, 2, 7})}));
  EXPECT_TRUE(faultOf(op, rows, {f32({2, 3, 2, 10}), f32({2, 3, 2, 10}), f32({2, 3, 2, 8})}));
  rows[2] = f32({2, 3, 6});
  EXPECT_TRUE(faultOf(op, rows, {f32({2, 3, 2, 10}), f32({2, 3, 2, 10}), f32({2, 3, 2, 7})}))
      << "the attribute says 4";
}

TEST(FactorExtents, MembersHaveShares) {
  Op split;
  split.kind = OpKind::SplitQkv;
  std::vector<Type> parts = {f32({1, 6, 4, 8}), f32({1, 6, 2, 8}), f32({1, 6, 2, 8})};
  EXPECT_FALSE(faultOf(split, {f32({1, 6, 64})}, parts));
  EXPECT_TRUE(faultOf(split, {f32({1, 6, 96})}, parts));
  EXPECT_FALSE(faultOf(split, {f32({1, 6, 96})}, parts, 2)) << "queries of two members";
  Op gather;
  gather.kind = OpKind::AllGather;
  EXPECT_FALSE(faultOf(gather, {f32({6})}, {f32({3, 6})}, 3));
  EXPECT_TRUE(faultOf(gather, {f32({6})}, {f32({2, 6})}, 3));
}

// ---- dimensions of types ----

TEST(FactorDims, AreThoseThatATypeHas) {
  const OpFactors &norm = factorsOf(OpKind::RmsNorm);
  FactorId r = norm.find("rows"), c = norm.find("channels");
  for (uint8_t dim : {uint8_t{0}, uint8_t{1}, uint8_t{2}})
    EXPECT_EQ(factorAt(norm.operand(0), false, 4, dim), r);
  EXPECT_EQ(factorAt(norm.operand(0), false, 4, 3), c);
  EXPECT_EQ(dimOf(norm.result(0), false, 4, r, 1), 1) << "that of another value";
  EXPECT_EQ(dimOf(norm.result(0), false, 2, r, 1), 0) << "the nearest";
  EXPECT_EQ(dimOf(norm.result(1), false, 1, r, 2), 0);
  EXPECT_EQ(dimOf(norm.result(1), false, 1, c, 0), -1);

  const OpFactors &product = factorsOf(OpKind::MatMul);
  EXPECT_EQ(factorAt(product.operand(1), false, 2, 0), product.find("depth"));
  EXPECT_EQ(factorAt(product.operand(1), true, 2, 0), product.find("channels"));
  EXPECT_EQ(dimOf(product.operand(1), true, 2, product.find("depth"), 0), 1);

  const OpFactors &split = factorsOf(OpKind::SplitQkv);
  EXPECT_EQ(factorAt(split.operand(0), false, 3, 2), split.find("groups")) << "the outermost";
  const OpFactors &gated = factorsOf(OpKind::SwiGlu);
  EXPECT_EQ(factorAt(gated.operand(0), false, 3, 2), gated.find("ffn"));
  const OpFactors &dropout = factorsOf(OpKind::Dropout);
  EXPECT_EQ(factorAt(dropout.operand(0), false, 3, 1), dropout.find("positions")) << "of [B,S,H]";
  EXPECT_EQ(factorAt(factorsOf(OpKind::View).operand(0), false, 2, 0), kNoFactor);
}

// ---- fused ops ----

/// The factors of an op as text in which equal texts mean equal factors, with marks.
class Canonical {
public:
  explicit Canonical(const OpFactors &factors) : factors_(factors) {
    for (const FactorValue &value : factors.operands())
      add(value);
    text_ += "->";
    for (const FactorValue &value : factors.results())
      add(value);
  }
  const std::string &text() const { return text_; }

private:
  void add(const FactorValue &value) {
    if (value.transposedBy)
      text_ += std::string(kAttrNames[static_cast<size_t>(*value.transposedBy)]) + ':';
    text_ += value.isAddedOnce ? "+" : "";
    text_ += value.combine == FactorValue::Same ? "=" : "";
    text_ += value.combine == FactorValue::Largest ? "^" : "";
    text_ += '|' + nameOf(value.countsRowsOf) + '>' + nameOf(value.pointsInto) + ' ';
    for (const FactorAtom &atom : value.words()) {
      text_ += std::to_string(atom.dim) + nameOf(atom.factor) + nameOf(atom.other);
      text_ += std::to_string(atom.form) + '.' + std::to_string(atom.number);
      text_ += atom.isNeededWhole ? "!" : "";
      text_ += atom.isCounted ? "#" : "";
      text_ += atom.isKnownByIndex ? "@" : "";
      text_ += atom.isShare ? "%" : "";
      text_ += atom.isBound ? "?" : "";
      text_ += ' ';
    }
    text_ += value.form == FactorValue::Dims ? ", " : "., ";
  }
  std::string nameOf(FactorId factor) {
    if (factor == kNoFactor)
      return "-";
    size_t number = numbers_.try_emplace(factor, numbers_.size()).first->second;
    std::optional<AttrKey> attr = factors_.attrOf[static_cast<size_t>(factor)];
    return 'f' + std::to_string(number) +
           std::string(attr ? kAttrNames[static_cast<size_t>(*attr)] : "");
  }

  const OpFactors &factors_;
  std::map<FactorId, size_t> numbers_;
  std::string text_;
};

struct WrittenRow {
  OpKind kind;
  std::string_view signature;
};
/// What authors of ops wrote for fused ops before their rows followed from steps.
constexpr WrittenRow kWrittenRows[] = {
    {OpKind::MatMulAdd,
     "a: any[trans_a:rows depth], b: any[trans_b:depth channels], more: any[+rows "
     "channels], bias?: any[+channels] -> c: any[rows channels]"},
    {OpKind::MatMulGelu, "a: any[trans_a:rows depth!], b: any[trans_b:depth! channels], bias?: "
                         "any[channels] -> y: any[rows channels], x: any[rows channels]"},
    {OpKind::MatMulGeluBwd,
     "a: any[trans_a:rows depth], b: any[trans_b:depth channels], x: any[rows "
     "channels] -> dx: any[rows channels]"},
    {OpKind::AddRmsNorm, "a: any[rows channels!], b: any[rows channels!], w: any[channels] -> sum: "
                         "any[rows channels], y: any[rows channels], rstd: any[rows]"},
    {OpKind::AddLayerNorm,
     "a: any[rows channels!], b: any[rows channels!], w: any[channels], bias: "
     "any[channels] -> sum: any[rows channels], y: any[rows channels], mean: any[rows], "
     "rstd: any[rows]"},
    {OpKind::RmsNormDx,
     "dy: any[rows channels!], x: any[rows channels!], w: any[channels!], rstd: "
     "any[rows], dres?: any[rows channels] -> dx: any[rows channels], y?: any[rows "
     "channels]"},
    {OpKind::SplitQkvRope,
     "qkv: any[samples positions# (groups heads+2 head!)], positions?: any[samples "
     "positions] -> q: any[samples positions (groups heads%) head], k: any[samples "
     "positions groups head], v: any[samples positions groups head]; groups=num_groups "
     "head=head_dim"},
    {OpKind::SplitQkvNormRope,
     "qkv: any[samples positions# (groups heads+2 head!)], wq: any[head!], wk: "
     "any[head!], positions?: any[samples positions] -> q: any[samples positions (groups "
     "heads) head], k: any[samples positions groups head], v: any[samples positions "
     "groups head], qrstd: any[samples positions (groups heads)], krstd: any[samples "
     "positions groups]; groups=num_groups head=head_dim"},
    {OpKind::MergeQkvRope,
     "dq: any[samples positions# (groups heads%) head!], dk: any[samples "
     "positions# groups head!], dv: any[samples positions groups head], positions?: "
     "any[samples positions] -> dqkv: any[samples positions (groups heads+2 head)]; "
     "groups=num_groups head=head_dim"},
    {OpKind::MergeQkvNormRope,
     "dq: any[samples positions# (groups heads) head!], dk: any[samples positions# "
     "groups head!], dv: any[samples positions groups head], qkv: any[samples positions "
     "(groups heads+2 head!)], wq: any[head!], wk: any[head!], qrstd: any[samples "
     "positions (groups heads)], krstd: any[samples positions groups], positions?: "
     "any[samples positions] -> dqkv: any[samples positions (groups heads+2 head)], "
     "dwq?: any[head], dwk?: any[head]; groups=num_groups head=head_dim"},
    {OpKind::AttentionQkv,
     "qkv: any[samples positions! (groups@ heads+2 head!)], docs: any[samples "
     "positions!], samples: any[samples] -> o: any[samples positions (groups heads "
     "head)], lse: any[=samples (groups heads) positions]; groups=num_groups "
     "head=head_dim"},
    {OpKind::AttentionQkvBwd,
     "do: any[samples positions! (groups@ heads head!)], qkv: any[samples "
     "positions! (groups heads+2 head!)], o: any[samples positions! (groups heads "
     "head!)], lse: any[samples (groups heads) positions!], docs: any[samples "
     "positions!], samples: any[samples] -> dqkv: any[samples positions (groups heads+2 "
     "head)]; groups=num_groups head=head_dim"},
    {OpKind::LmLoss, "x: any[rows channels!], w: any[vocabulary! channels!], labels: "
                     "any[rows>vocabulary], mask: any[rows] -> losses: any[rows]"},
    {OpKind::GroupedMatMulBias,
     "a: any[rows?# depth!], b: any[trans_b:experts# depth! columns], counts: "
     "any[|rows slots experts], bias: any[experts# columns], weights?: any[rows? 1] -> "
     "c: any[rows? columns]"},
    {OpKind::SwiGluBwdQuantizeDelayed,
     "dy: any[rows ffn], x: any[rows (2 ffn)], amax: any[tensors!], seen: "
     "any[tensors] -> q: any[rows (2 ffn)], scale: any[=1], seen: any[^tensors], t: "
     "any[(2 ffn) rows], yt: any[ffn rows], yscale: any[=1]"},
    {OpKind::AddRmsNormQuantizeDelayed,
     "a: any[rows channels!], b: any[rows channels!], w: any[channels], amax: "
     "any[tensors!], seen: any[tensors] -> q: any[rows channels], scale: any[=1], seen: "
     "any[^tensors], sum: any[rows channels], rstd: any[rows]"},
    {OpKind::SwiGluQuantize,
     "x: any[rows (2 ffn)], amax: any[tensors!] -> q: any[transposed:rows ffn], "
     "scale: any[=1], t?: any[ffn rows]"},
    {OpKind::SwiGluBwdAmax, "dy: any[r f], x: any[r (2 f)] -> m: any[^2]"},
    {OpKind::SwiGluBwdQuantizeBlocks,
     "dy: any[rows ffn], x: any[rows (2 ffn)] -> q: any[rows (2 ffn)], scale: "
     "any[(2 ffn/128) rows], t: any[(2 ffn) rows], tscale: any[rows/128 (2 ffn)], yt: "
     "any[ffn rows], yscale: any[rows/128 ffn]"},
};

TEST(FusedRows, AreThoseThatAuthorsWrote) {
  for (const WrittenRow &written : kWrittenRows) {
    std::optional<OpFactors> row = parseFactors(written.signature);
    ASSERT_TRUE(row) << written.signature;
    EXPECT_EQ(Canonical(factorsOf(written.kind)).text(), Canonical(*row).text())
        << opInfo(written.kind).name;
  }
}

} // namespace
} // namespace shardc::plan
