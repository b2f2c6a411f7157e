// Compares the FACTORS rows with what kernels compute. Each op runs on the host with random
// operands of small extents. Then operands are changed along one factor, or cut along it, and the
// results must change, or be cut, as the row says. So a wrong row fails the test.
#include "test/unit/factors/Calls.h"

#include <cmath>
#include <cstring>
#include <set>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace shardc::plan::factors {
namespace {

constexpr uint64_t kSeeds = 3;
constexpr int64_t kEachSlice = INT64_MAX;
constexpr int64_t kSlicesOfBlocks = 3; ///< enough to change both blocks

bool executes(OpKind op) {
  if (opInfo(op).isStep)
    return false;
  OpTraits traits = opInfo(op).traits;
  return traits == OpTraits::None || traits == OpTraits::Pure;
}

/// Operands whose values the host's kernel does not read. It computes the sum of do·o of a row from
/// the row's probabilities, while devices read o. An update reads weights only if decay is part of
/// the gradient. In a token mask only zeros matter, and random numbers are not zero.
bool isUnread(OpKind kind, size_t operand) {
  return (kind == OpKind::AttentionBwd && operand == 4) ||
         (kind == OpKind::AttentionQkvBwd && operand == 2) ||
         (kind == OpKind::MuonUpdate && operand == 1) ||
         (kind == OpKind::PreferenceLoss && operand == 1);
}

/// One case of an op. An op has further cases if its row means
/// something else for other attributes or operands.
struct Form {
  OpKind op;
  std::string name; ///< the op's name, with a suffix for special forms
};

const OpInfo &infoOf(const Form &form) { return opInfo(form.op); }

/// Suffix of the name of an op that can leave out rows. Here it has no counts, so it computes all
/// rows.
constexpr std::string_view kAllRows = ", all rows";

/// Whether the last operand counts rows, and the op may be called without it (rows not marked `?`).
bool mayLeaveOutRows(const OpFactors &factors) {
  if (factors.operandCount == 0)
    return false;
  FactorId rows = factors.operand(factors.operandCount - 1u).countsRowsOf;
  return rows != kNoFactor && !factors.isBound(rows);
}

std::vector<Form> forms() {
  std::vector<Form> forms;
  for (size_t k = 0; k < kOpCount; ++k)
    if (executes(static_cast<OpKind>(k)))
      forms.push_back({static_cast<OpKind>(k), std::string(kOpInfos[k].name)});
  forms.push_back({OpKind::QuantizeBlocks, "quantize_blocks, transposed"});
  forms.push_back({OpKind::GroupedMatMul, "grouped_matmul, delayed"});
  forms.push_back({OpKind::GroupedMatMulBwd, "grouped_matmul_bwd, delayed"});
  forms.push_back({OpKind::MatMul, "matmul, plain"});
  forms.push_back({OpKind::MatMul, "matmul, first transposed"});
  forms.push_back({OpKind::Quantize, "quantize, transposed"});
  forms.push_back({OpKind::MergeSlices, "merge_slices, inverse"});
  for (size_t k = 0; k < kOpCount; ++k)
    if (auto op = static_cast<OpKind>(k); executes(op) && mayLeaveOutRows(factorsOf(op)))
      forms.push_back({op, std::string(opInfo(op).name).append(kAllRows)});
  return forms;
}

void swapLast(Array &array) {
  int64_t cols = array.shape.back();
  array.shape = {cols, array.numel() / cols};
}

Sample sampleOf(const Form &form, uint64_t seed, bool hasBlocks = false) {
  bool isCase = form.name == "quantize_blocks, transposed" || form.name.ends_with(", delayed");
  std::optional<Sample> made =
      makeSample(form.op, isCase ? form.name : infoOf(form).name, seed, hasBlocks);
  if (!made) {
    ADD_FAILURE() << "no case of " << form.name << " in test/kernels/bench/Cases.cpp";
    return {};
  }
  Sample sample = std::move(*made);
  if (form.op == OpKind::Dropout || infoOf(form).work.cost == CostClass::Attention)
    sample.attrs.p = 0.4;
  if (infoOf(form).work.cost == CostClass::Attention) {
    sample.attrs.reset_mask = true;
    sample.attrs.causal = infoOf(form).hasSlices; // otherwise other operands have documents' ends
  }
  if (form.name == "matmul, plain" || form.name == "matmul, first transposed") {
    sample.attrs.trans_b = false;
    swapLast(sample.operands[1]);
  }
  if (form.name == "matmul, first transposed") {
    sample.attrs.trans_a = true;
    swapLast(sample.operands[0]);
  }
  if (form.name == "quantize, transposed") {
    sample.attrs.transposed = true;
    sample.results.pop_back(), sample.inPlace.pop_back();
    swapLast(sample.results[0]);
  }
  if (form.name.ends_with(kAllRows))
    sample.operands.pop_back();
  if (form.name == "merge_slices, inverse") {
    sample.attrs.inverse = true;
    std::swap(sample.operands[0].shape, sample.results[0].shape);
  }
  return sample;
}

/// A sample with the row of its op and the extents that follow from it.
class Trial {
public:
  /// Changes at least `slices` slices of each factor, one after the other.
  Trial(Sample sample, const std::string &name, int64_t slices)
      : sample_(std::move(sample)), factors_(sample_.factors()), extents_(sample_.extents()),
        name_(name), slices_(slices) {}

  void run() {
    const char *reason = sample_.refusal();
    ASSERT_EQ(reason, nullptr) << name_ << ": " << reason;
    ASSERT_FALSE(extents_.fault()) << name_ << ": " << extents_.fault()->dims;
    whole_ = sample_.run();
    for (FactorId f = 0; f < factors_.factorCount; ++f) {
      for (size_t i = 0; i < sample_.operands.size() && !sample_.isList; ++i)
        changeAlong(i, f);
      if (!sample_.isList && isFreeToCut(f))
        cut(f);
    }
    if (opInfo(sample_.kind).takesIndex())
      cutShares();
    for (size_t i = 0; i < sample_.operands.size() && !sample_.isList; ++i)
      if (row(i).form == FactorValue::Dims && hasFactor(row(i))) {
        EXPECT_EQ(effects_.contains(i), !isUnread(sample_.kind, i))
            << name_ << ": effect of operand " << i;
      }
  }

private:
  const FactorValue &row(size_t operand) const { return sample_.operandRow(operand); }
  const FactorValue &resultRow(size_t result) const { return sample_.resultRow(result); }
  std::string letter(FactorId f) const {
    return name_ + ", factor " + std::string(factors_.names[static_cast<size_t>(f)]);
  }
  static bool hasFactor(const FactorValue &value) {
    for (const FactorAtom &atom : value.words())
      if (atom.form != FactorAtom::Number)
        return true;
    return false;
  }

  /// Number of consecutive elements of the factor that cannot be separated: 128 for a block of
  /// scales, all for a matrix of Muon, which no shard cuts, otherwise 1.
  int64_t granularity(FactorId f) const {
    if (opInfo(sample_.kind).workspace == Workspace::Matrices)
      return extents_.of(f);
    for (const FactorValue &value : factors_.results()) {
      if (value.form == FactorValue::Scales)
        return 128;
      if (const FactorAtom *atom = value.find(f); atom && atom->form == FactorAtom::Blocks)
        return atom->number;
    }
    return 1;
  }

  // ---- changes of one slice ----

  void changeAlong(size_t operand, FactorId f) {
    const FactorAtom *atom = row(operand).find(f);
    if (row(operand).form != FactorValue::Dims || atom == nullptr || extents_.of(f) < 2)
      return;
    bool isRead = !isUnread(sample_.kind, operand);
    bool isSpread = false; // whether elements in other places along the factor changed too
    int64_t step = std::max<int64_t>(extents_.of(f) / slices_, 1);
    for (int64_t j = 0; j < extents_.of(f); j += step) {
      Sample changed = sample_;
      change(changed.operands[operand], operand, f, j);
      std::vector<Array> got = changed.run();
      for (size_t r = 0; r < got.size(); ++r)
        isSpread |= compareChange(operand, f, j, r, got[r], atom->isNeededWhole);
    }
    bool isCounts = row(operand).countsRowsOf != kNoFactor; // all counts are needed to find a run
    if (atom->isNeededWhole && isRead && !isCounts) {
      EXPECT_TRUE(isSpread || isNotSum(f))
          << letter(f) << " of operand " << operand << " is not needed whole";
    }
  }

  void change(Array &array, size_t operand, FactorId f, int64_t j) const {
    Places places(sample_, row(operand), extents_, f);
    for (int64_t i = 0, count = array.numel(); i < count; ++i) {
      if (places.of(i).first != j)
        continue;
      double old = array.get(i);
      if (FactorId into = row(operand).pointsInto; into != kNoFactor && extents_.of(into) > 0)
        array.put(i, std::fmod(old + 1, static_cast<double>(extents_.of(into))));
      else if (row(operand).countsRowsOf != kNoFactor) // not + 1, because slots may be full
        array.put(i, old - 1);
      else if (!array.isFloat())
        array.put(i, old + 1);
      else
        array.put(i, old + 0.25 + 0.5 * std::abs(old));
    }
  }

  /// Whether an element outside the changed slice changed; fails the test if the row forbids it.
  bool compareChange(size_t operand, FactorId f, int64_t j, size_t r, const Array &got,
                     bool mayBeAnywhere) {
    const FactorValue &result = resultRow(r);
    auto size = static_cast<size_t>(dtypeBytes(got.dtype));
    bool isSpread = false;
    Places places(sample_, result, extents_, f);
    for (int64_t i = 0, count = got.numel(); i < count; ++i) {
      auto at = static_cast<size_t>(i) * size;
      if (std::memcmp(got.bytes.data() + at, whole_[r].bytes.data() + at, size) == 0)
        continue;
      effects_.insert(operand);
      if (result.form != FactorValue::Dims)
        continue;
      if (!result.has(f)) {
        EXPECT_TRUE(mayBeAnywhere || result.combine != FactorValue::Same)
            << letter(f) << " of operand " << operand << " changes result " << r
            << ", which is said to be the same for each part";
        continue;
      }
      Along along = places.of(i);
      int64_t block = granularity(f);
      bool isOwn = along.isNowhere() ||
                   (along.first / block <= j / block && j / block <= along.last / block);
      isSpread |= !isOwn;
      if (!isOwn && !mayBeAnywhere) {
        ADD_FAILURE() << letter(f) << ": element " << j << " of operand " << operand
                      << " changes element " << along.first << " of result " << r;
        return true;
      }
    }
    return isSpread;
  }

  /// Whether a result without the factor differs from the sum of the results of its halves.
  bool isNotSum(FactorId f) const {
    auto half = [&](bool isFirst) {
      Sample changed = sample_;
      for (size_t i = 0; i < changed.operands.size(); ++i) {
        Array &array = changed.operands[i];
        Places places(sample_, row(i), extents_, f);
        bool isPlaces = row(i).pointsInto != kNoFactor; // -1 outside the half; numbers become 0
        for (int64_t e = 0, count = array.numel(); e < count && (array.isFloat() || isPlaces); ++e)
          if (Along along = places.of(e);
              !along.isNowhere() && (along.first < extents_.of(f) / 2) != isFirst)
            array.put(e, isPlaces ? -1 : 0);
        if (row(i).isAddedOnce && !isFirst)
          clear(array);
      }
      return changed.run();
    };
    std::vector<Array> first = half(true), second = half(false);
    for (size_t r = 0; r < whole_.size(); ++r)
      for (int64_t i = 0; i < whole_[r].numel() && resultRow(r).form == FactorValue::Dims; ++i)
        if (!resultRow(r).has(f) &&
            !isNear(whole_[r].get(i), first[r].get(i) + second[r].get(i), 1e-4))
          return true;
    return false;
  }

  // ---- cuts ----

  /// Whether a part of the op needs only its index, or the places in its operands.
  bool isFreeToCut(FactorId f) const {
    int64_t extent = extents_.of(f);
    if (factors_.isNeededWhole(f) || extent < 2 || extent / 2 % granularity(f) != 0)
      return false;
    for (size_t i = 0; i < sample_.operands.size(); ++i)
      if (row(i).countsRowsOf == f) // these are counts of the whole; counts of a part differ
        return false;
    bool isOpaque = false, isOfOperand = factors_.operandCount == 0;
    for (const FactorValue &value : factors_.operands()) {
      isOpaque |= value.form == FactorValue::Opaque;
      isOfOperand |= value.has(f);
    }
    if (isOpaque && !isOfOperand) // only in operands whose layout the row lacks
      return false;
    for (const FactorValue &value : factors_.results())
      if (value.form == FactorValue::Scales) // the row does not describe their layout
        return false;
    // Some factors occur only as positions, not as dimensions.
    bool isDimension = false, isCounted = false;
    for (const auto &values : {factors_.operands(), factors_.results()})
      for (const FactorValue &value : values)
        if (const FactorAtom *atom = value.find(f)) {
          isDimension = true;
          isCounted |= atom->isCounted;
        }
    return isDimension && (!isCounted || isToldPlaces(f));
  }

  bool isToldPlaces(FactorId f) const {
    std::string_view names = opInfo(sample_.kind).operands;
    for (size_t i = 0; i < factors_.operandCount; ++i) {
      size_t end = std::min(names.find(' '), names.size());
      if (names.substr(0, end) == "positions?" && factors_.operand(i).has(f))
        return true;
      names.remove_prefix(std::min(end + 1, names.size()));
    }
    return false;
  }

  bool isKnownByIndex(FactorId f) const {
    for (const auto &values : {factors_.operands(), factors_.results()})
      for (const FactorValue &value : values)
        if (const FactorAtom *atom = value.find(f); atom && atom->isKnownByIndex)
          return true;
    return false;
  }

  void cut(FactorId f) {
    int64_t extent = extents_.of(f);
    std::vector<std::vector<Array>> parts;
    for (int64_t part = 0; part < 2; ++part) {
      Sample cut = sample_;
      int64_t begin = part * extent / 2, end = (part + 1) * extent / 2;
      for (size_t i = 0; i < cut.operands.size(); ++i) {
        cut.operands[i] = sliced(sample_, cut.operands[i], row(i), extents_, f, begin, end);
        if (row(i).isAddedOnce && factors_.isSummed(f, 0) && part > 0)
          clear(cut.operands[i]);
      }
      for (size_t r = 0; r < cut.results.size(); ++r)
        cut.results[r] = sliced(sample_, cut.results[r], resultRow(r), extents_, f, begin, end);
      if (isKnownByIndex(f))
        cut.index = part, cut.members = 2;
      setExtentAttr(cut, f, end - begin);
      const char *reason = cut.refusal();
      ASSERT_EQ(reason, nullptr) << letter(f) << ", cut: " << reason;
      parts.push_back(cut.run());
    }
    for (size_t r = 0; r < whole_.size(); ++r)
      compareCut(f, r, parts[0][r], parts[1][r]);
  }

  static void clear(Array &array) {
    for (int64_t i = 0; i < array.numel(); ++i)
      array.put(i, 0);
  }

  void setExtentAttr(Sample &cut, FactorId f, int64_t extent) const {
    std::optional<AttrKey> key = factors_.attrOf[static_cast<size_t>(f)];
    if (key == AttrKey::outer)
      cut.attrs.outer = extent;
    if (key == AttrKey::inner)
      cut.attrs.inner = extent;
    if (key == AttrKey::parts)
      cut.attrs.parts = extent;
    if (key == AttrKey::num_groups && cut.attrs.num_groups > 0) {
      cut.attrs.num_heads = cut.attrs.num_heads / cut.attrs.num_groups * extent;
      cut.attrs.num_groups = extent;
    }
  }

  void compareCut(FactorId f, size_t r, const Array &first, const Array &second) const {
    const FactorValue &result = resultRow(r);
    if (result.form != FactorValue::Dims)
      return;
    int64_t extent = extents_.of(f);
    for (int64_t part = 0; part < 2 && result.has(f); ++part)
      expectNear(part == 0 ? first : second,
                 sliced(sample_, whole_[r], result, extents_, f, part * extent / 2,
                        (part + 1) * extent / 2),
                 1e-5, f, r);
    if (result.has(f))
      return;
    Array joined = first;
    for (int64_t i = 0; i < joined.numel(); ++i)
      if (result.combine == FactorValue::Sum)
        joined.put(i, first.get(i) + second.get(i));
      else if (result.combine == FactorValue::Largest)
        joined.put(i, std::max(first.get(i), second.get(i)));
    expectNear(joined, whole_[r], 1e-4, f, r);
    if (result.combine == FactorValue::Same)
      expectNear(second, whole_[r], 0, f, r);
  }

  static bool isNear(double a, double b, double tolerance) {
    return (std::isnan(a) && std::isnan(b)) || a == b ||
           std::abs(a - b) <= tolerance * (1 + std::abs(b));
  }

  void expectNear(const Array &got, const Array &want, double tolerance, FactorId f,
                  size_t r) const {
    ASSERT_EQ(got.numel(), want.numel()) << letter(f) << ", result " << r;
    for (int64_t i = 0; i < got.numel(); ++i)
      if (!isNear(got.get(i), want.get(i), tolerance)) {
        ADD_FAILURE() << letter(f) << ", cut: element " << i << " of result " << r << " is "
                      << got.get(i) << ", and " << want.get(i) << " of the whole";
        return;
      }
  }

  // ---- shares ----

  /// A member computes its part of factors marked `%`, and the whole of all others.
  void cutShares() {
    if (!hasShare())
      return;
    for (int64_t part = 0; part < 2; ++part) {
      Sample cut = sample_;
      cut.index = part, cut.members = 2;
      for (size_t i = 0; i < cut.operands.size(); ++i)
        cut.operands[i] = shareOf(cut.operands[i], row(i), part);
      for (size_t r = 0; r < cut.results.size(); ++r)
        cut.results[r] = shareOf(cut.results[r], resultRow(r), part);
      const char *reason = cut.refusal();
      ASSERT_EQ(reason, nullptr) << name_ << ", share: " << reason;
      ASSERT_FALSE(cut.extents().fault()) << name_ << ", share";
      std::vector<Array> got = cut.run();
      for (size_t r = 0; r < got.size(); ++r)
        if (isShared(resultRow(r)))
          expectNear(got[r], shareOf(whole_[r], resultRow(r), part), 1e-5, 0, r);
    }
  }

  static bool isShared(const FactorValue &value) {
    for (const FactorAtom &atom : value.words())
      if (atom.isShare || atom.isInSharedDim)
        return true;
    return false;
  }
  bool hasShare() const {
    for (const auto &values : {factors_.operands(), factors_.results()})
      for (const FactorValue &value : values)
        if (isShared(value))
          return true;
    return false;
  }

  Array shareOf(const Array &array, const FactorValue &value, int64_t part) const {
    for (const FactorAtom &atom : value.words()) {
      int64_t extent = atom.form == FactorAtom::Number ? 1 : extents_.of(atom.factor);
      if (atom.isShare)
        return sliced(sample_, array, value, extents_, atom.factor, part * extent / 2,
                      (part + 1) * extent / 2);
      if (atom.isInSharedDim) { // a shared dimension comes first: rows
        Array out = array;
        out.shape = {array.numel() / array.shape.back() / 2, array.shape.back()};
        if (array.shape.size() == 1)
          out.shape = {array.numel() / 2};
        size_t half = array.bytes.size() / 2;
        out.bytes.assign(array.bytes.begin() + static_cast<ptrdiff_t>(half * (part > 0 ? 1 : 0)),
                         array.bytes.begin() + static_cast<ptrdiff_t>(half * (part > 0 ? 2 : 1)));
        return out;
      }
    }
    return array;
  }

  Sample sample_;
  const OpFactors &factors_;
  FactorExtents extents_;
  std::string name_;
  int64_t slices_;
  std::vector<Array> whole_;
  std::set<size_t> effects_; ///< operands whose change changed a result
};

TEST(Numbers, RowsSayWhatKernelsCompute) {
  for (const Form &form : forms())
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      Sample sample = sampleOf(form, seed);
      if (!sample.results.empty())
        Trial(std::move(sample), form.name, kEachSlice).run();
    }
}

/// A row that is well-formed, but wrong.
struct WrongRow {
  OpKind kind;
  const char *text;
};
constexpr WrongRow kWrongRows[] = {
    {OpKind::Gelu, "rows channels! -> rows channels"}, // columns are independent
    {OpKind::RmsNorm,
     "rows channels, channels -> rows channels, rows"},              // needs a mean over columns
    {OpKind::Add, "rows channels, rows! channels -> rows channels"}, // rows are independent
    {OpKind::ReduceRows, "rows! channels -> channels"}, // a sum over rows, hence not needed whole
    {OpKind::Amax, "elements -> 1"},                    // the largest element, not a sum
    {OpKind::SwiGlu, "rows (ffn 2) -> rows ffn"},       // two blocks, not pairs
    {OpKind::CrossEntropy,
     "rows vocabulary, rows>vocabulary, rows -> rows, rows"}, // each row needs all of its logits
    {OpKind::SplitColumns, "rows second+first -> rows first, rows second"}, // a comes first
    {OpKind::ScaleRows, "rows channels!, rows 1 -> rows channels"}, // columns are independent
    // a sum over rows, hence not needed whole
    {OpKind::EmbeddingBwd, "rows! channels, rows>vocabulary -> vocabulary@ channels"},
    // channels rotate in pairs
    {OpKind::Rope,
     "samples positions# heads head, samples positions -> samples positions heads head"},
    {OpKind::SplitQkv,
     "samples positions (heads+2 groups head) -> samples positions (groups heads%) head, samples "
     "positions groups head, samples positions groups head; groups=num_groups head=head_dim"},
};

/// The signature of the op with other dimensions.
std::string signatureWith(OpKind kind, std::string_view dims) {
  std::string text;
  std::string_view values = takeUntil(dims, ';');
  for (bool areResults : {false, true}) {
    std::string_view names = areResults ? opInfo(kind).results : opInfo(kind).operands;
    std::string_view side = valuesOf(values, areResults);
    for (text += areResults ? " -> " : ""; !names.empty();) {
      text += std::string(takeUntil(names, ' ')) + ": any[";
      text += std::string(takeUntil(side, ',')) + (names.empty() ? "]" : "], ");
    }
  }
  return text + ';' + std::string(dims);
}

/// This test finds wrong rows: with one mark too many or too few, or with factors in another order.
TEST(Numbers, WrongRowsAreFound) {
  for (const WrongRow &wrong : kWrongRows) {
    const std::string signature = signatureWith(wrong.kind, wrong.text);
    std::optional<OpFactors> row = parseFactors(signature);
    ASSERT_TRUE(row) << wrong.text;
    Form form{wrong.kind, std::string(opInfo(wrong.kind).name)};
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter taken(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        Sample sample = sampleOf(form, seed);
        sample.otherRow = &*row;
        Trial(std::move(sample), form.name, kEachSlice).run();
      }
    }
    EXPECT_GT(failures.size(), 0) << form.name << " may say '" << wrong.text << "'";
  }
}

bool hasBlocks(OpKind op) {
  for (const FactorValue &value : factorsOf(op).results()) {
    if (value.form == FactorValue::Scales)
      return true;
    for (const FactorAtom &atom : value.words())
      if (atom.form == FactorAtom::Blocks)
        return true;
  }
  return false;
}

TEST(Numbers, FactorsOfScaledBlocksAreCutBetweenBlocks) {
  for (const Form &form : forms())
    if (hasBlocks(form.op))
      Trial(sampleOf(form, 1, true), form.name, kSlicesOfBlocks).run();
}

/// Results of parts of a list are joined or summed to the result of the list.
TEST(Numbers, ListsAreJoinedOrSummed) {
  Sample join = sampleOf({OpKind::Join, "join"}, 1);
  std::vector<std::byte> parts;
  for (const Array &array : join.operands)
    parts.insert(parts.end(), array.bytes.begin(), array.bytes.end());
  EXPECT_TRUE(join.run()[0].bytes == parts);

  Sample sum = sampleOf({OpKind::SumSquares, "sum_squares"}, 1);
  double total = 0;
  for (size_t i = 0; i < sum.operands.size(); ++i) {
    Sample one = sum;
    one.operands = {sum.operands[i]};
    one.ranges = {sum.ranges[i]};
    one.rangesOf = {0, 1};
    total += one.run()[0].get(0);
  }
  EXPECT_NEAR(sum.run()[0].get(0), total, 1e-9 * total);
}

} // namespace
} // namespace shardc::plan::factors
