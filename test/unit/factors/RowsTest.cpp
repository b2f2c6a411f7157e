// How rows of Ops.def are parsed, the extents that follow from types, and rows of fused ops
// compared with the rows of the ops that they fuse.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "runtime/plan/FactorExtents.h"

namespace shardc::plan {
namespace {

TEST(FactorRows, KeepEachMark) {
  const OpFactors &product = factorsOf(OpKind::MatMul);
  EXPECT_EQ(product.operand(0).transposedBy, AttrKey::trans_a);
  EXPECT_TRUE(product.operand(2).isAddedOnce);
  EXPECT_TRUE(product.isSummed(product.find('k'), 0));
  EXPECT_FALSE(product.isSummed(product.find('r'), 0));

  const OpFactors &norm = factorsOf(OpKind::RmsNorm);
  EXPECT_TRUE(norm.isNeededWhole(norm.find('c')));
  EXPECT_FALSE(norm.isSummed(norm.find('c'), 1));

  const OpFactors &split = factorsOf(OpKind::SplitQkv);
  const FactorAtom *heads = split.operand(0).find(split.find('n'));
  EXPECT_EQ(heads->form, FactorAtom::Beside);
  EXPECT_EQ(heads->number, 2);
  EXPECT_EQ(heads->dim, 2);
  EXPECT_TRUE(split.result(0).find(split.find('n'))->isShare);
  EXPECT_TRUE(split.isNeededWhole(split.find('n')));
  EXPECT_EQ(split.attrOf[static_cast<size_t>(split.find('d'))], AttrKey::head_dim);

  const OpFactors &attention = factorsOf(OpKind::Attention);
  FactorId keys = attention.find('S');
  EXPECT_EQ(attention.extentOf[static_cast<size_t>(keys)], attention.find('s'));
  EXPECT_TRUE(attention.operand(0).find(attention.find('g'))->isKnownByIndex);

  const OpFactors &delayed = factorsOf(OpKind::QuantizeDelayed);
  EXPECT_EQ(delayed.result(1).combine, FactorValue::Same);
  EXPECT_EQ(delayed.result(2).combine, FactorValue::Largest);
  EXPECT_EQ(factorsOf(OpKind::QuantizeBlocks).result(1).form, FactorValue::Scales);
  EXPECT_EQ(factorsOf(OpKind::StepBegin).operand(0).form, FactorValue::Opaque);
  EXPECT_TRUE(factorsOf(OpKind::Join).operand(5).isList);
  const OpFactors &table = factorsOf(OpKind::Embedding);
  EXPECT_EQ(table.operand(0).pointsInto, table.find('v'));
  const OpFactors &dropout = factorsOf(OpKind::Dropout);
  EXPECT_TRUE(dropout.operand(0).find(dropout.find('b'))->isInSharedDim);
  EXPECT_TRUE(dropout.operand(0).find(dropout.find('s'))->isCounted);
  const OpFactors &merge = factorsOf(OpKind::MergeSlices);
  EXPECT_EQ(merge.result(0).find(merge.find('i'))->form, FactorAtom::Mirrored);
  EXPECT_EQ(merge.reversedBy, AttrKey::inverse);
  EXPECT_NE(factorsOf(OpKind::AllGather).members, kNoFactor);
  const OpFactors &columns = factorsOf(OpKind::SplitColumns);
  const FactorAtom *second = columns.operand(0).find(columns.find('b'));
  EXPECT_EQ(second, columns.operand(0).find(columns.find('a')));
  EXPECT_EQ(second->form, FactorAtom::Joined);
  EXPECT_TRUE(columns.isNeededWhole(columns.find('b'))) << "nothing cuts it in the whole row";
}

TEST(FactorRows, SayWhatCountsRows) {
  const OpFactors &product = factorsOf(OpKind::GroupedMatMul);
  FactorId rows = product.find('n'), runs = product.find('e');
  EXPECT_TRUE(product.isBound(rows));
  EXPECT_FALSE(product.isBound(runs));
  EXPECT_EQ(product.boundBy(rows), 2u);
  EXPECT_EQ(product.operand(2).countsRowsOf, rows);
  EXPECT_TRUE(product.isNeededWhole(runs)) << "where a run begins depends on those before it";
  EXPECT_FALSE(product.isSummed(rows, 0));
  const OpFactors &gradient = factorsOf(OpKind::GroupedMatMulBwd);
  EXPECT_TRUE(gradient.isSummed(gradient.find('n'), 0));
  const OpFactors &combine = factorsOf(OpKind::Combine);
  EXPECT_EQ(combine.boundBy(combine.find('n')), 1u) << "by places";
  EXPECT_FALSE(factorsOf(OpKind::Embedding).isBound(factorsOf(OpKind::Embedding).find('v')));
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

/// The page's examples are lines with an op's name and its row.
TEST(FactorRows, ThePageShowsRowsOfTheTable) {
  std::ifstream page(SHARDC_FACTORS_PAGE);
  std::string line;
  int examples = 0;
  while (std::getline(page, line)) {
    if (!line.starts_with("    "))
      continue;
    size_t end = line.find("  ", 4);
    std::optional<OpForm> form = parseOpForm(line.substr(4, end - 4));
    ASSERT_TRUE(form) << line;
    EXPECT_EQ(line.substr(end + 2), factorsOf(form->kind, form->epilogue).text);
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

TEST(FactorExtents, EqualLettersHaveEqualExtents) {
  Op op;
  op.kind = OpKind::SwiGlu;
  EXPECT_FALSE(faultOf(op, {f32({2, 3, 8})}, {f32({6, 4})}));
  std::optional<ExtentFault> fault = faultOf(op, {f32({2, 3, 8})}, {f32({6, 8})});
  ASSERT_TRUE(fault);
  EXPECT_FALSE(fault->isOperand);
  EXPECT_EQ(fault->dims, "f");
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
  EXPECT_EQ(fault->dims, "a+b");
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
  FactorId r = norm.find('r'), c = norm.find('c');
  for (uint8_t dim : {uint8_t{0}, uint8_t{1}, uint8_t{2}})
    EXPECT_EQ(factorAt(norm.operand(0), false, 4, dim), r);
  EXPECT_EQ(factorAt(norm.operand(0), false, 4, 3), c);
  EXPECT_EQ(dimOf(norm.result(0), false, 4, r, 1), 1) << "that of another value";
  EXPECT_EQ(dimOf(norm.result(0), false, 2, r, 1), 0) << "the nearest";
  EXPECT_EQ(dimOf(norm.result(1), false, 1, r, 2), 0);
  EXPECT_EQ(dimOf(norm.result(1), false, 1, c, 0), -1);

  const OpFactors &product = factorsOf(OpKind::MatMul);
  EXPECT_EQ(factorAt(product.operand(1), false, 2, 0), product.find('k'));
  EXPECT_EQ(factorAt(product.operand(1), true, 2, 0), product.find('c'));
  EXPECT_EQ(dimOf(product.operand(1), true, 2, product.find('k'), 0), 1);

  const OpFactors &split = factorsOf(OpKind::SplitQkv);
  EXPECT_EQ(factorAt(split.operand(0), false, 3, 2), split.find('g')) << "the outermost";
  const OpFactors &gated = factorsOf(OpKind::SwiGlu);
  EXPECT_EQ(factorAt(gated.operand(0), false, 3, 2), gated.find('f'));
  const OpFactors &dropout = factorsOf(OpKind::Dropout);
  EXPECT_EQ(factorAt(dropout.operand(0), false, 3, 1), dropout.find('s')) << "of [B,S,H]";
  EXPECT_EQ(factorAt(factorsOf(OpKind::View).operand(0), false, 2, 0), kNoFactor);
}

// ---- fused ops ----

/// An op that computes two ops one after the other: results of the first are operands of the
/// second. Operands and results keep their names, except those of the first op that are `renamed`.
struct Fusion {
  OpForm fused;
  OpKind first, second;
  std::vector<std::pair<std::string_view, std::string_view>> links; ///< result and operand
  std::map<std::string_view, std::string_view> renamed; ///< name in the fused op -> in the first
};

std::vector<std::string_view> namesOf(std::string_view list) {
  std::vector<std::string_view> names;
  while (!list.empty()) {
    size_t end = std::min(list.find(' '), list.size());
    std::string_view name = list.substr(0, end);
    names.push_back(name.ends_with('?') ? name.substr(0, name.size() - 1) : name);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return names;
}

std::optional<size_t> positionIn(std::string_view list, std::string_view name) {
  std::vector<std::string_view> names = namesOf(list);
  auto at = std::ranges::find(names, name);
  return at == names.end() ? std::nullopt : std::optional(static_cast<size_t>(at - names.begin()));
}

/// A word of a composed row, with its factor's letter instead of the factor's id.
struct Word {
  /// Factor's letter in the first op; in the second op if the first one lacks the factor.
  char letter;
  FactorAtom::Form form;
  uint16_t number;
  bool isNeededWhole;
};

/// A value of a composed row.
struct Composed {
  std::vector<Word> words;
  FactorValue::Form form;
  FactorValue::Combine combine;
};

class Composition {
public:
  explicit Composition(const Fusion &fusion)
      : fusion_(fusion), first_(factorsOf(fusion.first)), second_(factorsOf(fusion.second)) {
    for (auto [result, operand] : fusion.links)
      link(*positionIn(opInfo(fusion.first).results, result),
           *positionIn(opInfo(fusion.second).operands, operand));
  }

  Composed operand(std::string_view name) const {
    if (auto at = positionIn(opInfo(fusion_.first).operands, oldName(name)))
      return ofFirst(first_.operand(*at), true);
    return ofSecond(second_.operand(positionIn(opInfo(fusion_.second).operands, name).value()));
  }
  Composed result(std::string_view name) const {
    if (auto at = positionIn(opInfo(fusion_.second).results, name))
      return ofSecond(second_.result(*at));
    return ofFirst(first_.result(positionIn(opInfo(fusion_.first).results, oldName(name)).value()),
                   false);
  }

private:
  static char letterOf(const OpFactors &factors, const FactorAtom &atom) {
    return atom.factor == kNoFactor ? '1' : factors.letters[static_cast<size_t>(atom.factor)];
  }
  std::string_view oldName(std::string_view name) const {
    auto at = fusion_.renamed.find(name);
    return at == fusion_.renamed.end() ? name : at->second;
  }

  /// Gives factors one letter if a result of the first op is an operand of the second.
  void link(size_t result, size_t operand) {
    const FactorValue &from = first_.result(result), &to = second_.operand(operand);
    for (size_t a = 0; a < to.atomCount && from.atomCount == to.atomCount; ++a) {
      char letter = letterOf(first_, from.atoms[a]);
      same_[letterOf(second_, to.atoms[a])] = letter;
      if (to.atoms[a].isNeededWhole)
        whole_.insert(letter);
    }
    // A function of a sum is not the sum of the functions of its terms.
    for (FactorId f = 0; f < first_.factorCount; ++f)
      if (first_.isSummed(f, result))
        whole_.insert(first_.letters[static_cast<size_t>(f)]);
  }

  Composed ofFirst(const FactorValue &value, bool isOperand) const {
    Composed composed{{}, value.form, value.combine};
    for (const FactorAtom &atom : value.words()) {
      char letter = letterOf(first_, atom);
      bool isWhole = atom.isNeededWhole || (isOperand && whole_.contains(letter));
      composed.words.push_back({letter, atom.form, atom.number, isWhole});
    }
    return composed;
  }
  Composed ofSecond(const FactorValue &value) const {
    Composed composed{{}, value.form, value.combine};
    for (const FactorAtom &atom : value.words()) {
      auto at = same_.find(letterOf(second_, atom));
      char letter = at == same_.end() ? letterOf(second_, atom) : at->second;
      composed.words.push_back({letter, atom.form, atom.number, atom.isNeededWhole});
    }
    return composed;
  }

  const Fusion &fusion_;
  const OpFactors &first_, &second_;
  std::map<char, char> same_; ///< letter of the second op -> letter of the first
  std::set<char> whole_;      ///< letters of the first op that the second one needs whole
};

/// Compares the row of a fused op with the composed row; letters may differ.
class RowComparison {
public:
  explicit RowComparison(const Fusion &fusion)
      : composed_(fusion), info_(opInfo(fusion.fused.kind, fusion.fused.epilogue)),
        factors_(factorsOf(fusion.fused.kind, fusion.fused.epilogue)) {}

  void run() {
    std::vector<std::string_view> operands = namesOf(info_.operands);
    for (size_t i = 0; i < operands.size(); ++i)
      compare(operands[i], factors_.operand(i), composed_.operand(operands[i]));
    std::vector<std::string_view> results = namesOf(info_.results);
    for (size_t r = 0; r < results.size(); ++r)
      compare(results[r], factors_.result(r), composed_.result(results[r]));
  }

private:
  void compare(std::string_view name, const FactorValue &got, const Composed &want) {
    if (want.form == FactorValue::Scales) // the fused op has only one of the layouts
      return;
    std::string where(info_.name);
    where.append(", ").append(name).append(" of '").append(factors_.text).append("'");
    EXPECT_EQ(got.form, want.form) << where;
    EXPECT_EQ(got.combine, want.combine) << where;
    ASSERT_EQ(got.atomCount, want.words.size()) << where;
    for (size_t a = 0; a < got.atomCount; ++a) {
      const FactorAtom &atom = got.atoms[a];
      char letter =
          atom.factor == kNoFactor ? '1' : factors_.letters[static_cast<size_t>(atom.factor)];
      EXPECT_EQ(letters_.try_emplace(letter, want.words[a].letter).first->second,
                want.words[a].letter)
          << where;
      EXPECT_EQ(atom.form, want.words[a].form) << where;
      EXPECT_EQ(atom.number, want.words[a].number) << where;
      EXPECT_EQ(atom.isNeededWhole, want.words[a].isNeededWhole) << where << ", " << letter;
    }
  }

  Composition composed_;
  const OpInfo &info_;
  const OpFactors &factors_;
  std::map<char, char> letters_; ///< letter of the fused row -> letter of the composed row
};

TEST(FusedRows, AreThoseOfWhatTheyFuse) {
  using enum OpKind;
  std::vector<Fusion> fusions = {
      {{AddRmsNorm}, Add, RmsNorm, {{"c", "x"}}, {{"sum", "c"}}},
      {{AddLayerNorm}, Add, LayerNorm, {{"c", "x"}}, {{"sum", "c"}}},
      {{AttentionQkv}, SplitQkv, Attention, {{"q", "q"}, {"k", "k"}, {"v", "v"}}, {}},
  };
  // Ops with two values, or only the transposed form, name their results unlike any single op.
  for (const OpForm &form : allOpForms()) {
    const OpInfo &maker = opInfo(form.kind);
    bool makesOne = maker.makes.find(' ') == std::string_view::npos;
    if (form.epilogue != Epilogue::None && makesOne &&
        maker.formsOf(form.epilogue) != EpilogueForms::Transposed)
      fusions.push_back({form, form.kind, opOfEpilogue(form.epilogue), {{maker.makes, "x"}}, {}});
  }
  EXPECT_GT(fusions.size(), 25U);
  for (const Fusion &fusion : fusions)
    RowComparison(fusion).run();
}

} // namespace
} // namespace shardc::plan
