// Solves for the extents of an op's factors. Each dimension of each type is an equation over
// factors; extents that one equation determines are used in the others until no equation determines
// another one.
#include "runtime/plan/FactorExtents.h"

#include <algorithm>

namespace shardc::plan {

uint8_t placeOfDim(const FactorValue &value, bool isTransposed, uint8_t dim) {
  int leading = value.dimCount - 2; // leading dimensions are not transposed
  return isTransposed && dim >= leading ? static_cast<uint8_t>(2 * leading + 1 - dim) : dim;
}

const FactorValue &operandOf(const Op &op, const OpFactors &factors, size_t i) {
  bool isReversed = factors.reversedBy && op.getBool(*factors.reversedBy);
  return isReversed ? factors.result(i) : factors.operand(i);
}

const FactorValue &resultOf(const Op &op, const OpFactors &factors, size_t i) {
  bool isReversed = factors.reversedBy && op.getBool(*factors.reversedBy);
  return isReversed ? factors.operand(i) : factors.result(i);
}

uint8_t dimRanges(const FactorValue &value, uint8_t rank,
                  std::array<DimRange, kDimsOfValueMax> &ranges) {
  uint8_t dims = value.dimCount, count = std::min(dims, rank);
  for (uint8_t i = 0; i < count; ++i) {
    auto dim = static_cast<uint8_t>(dims - count + i),
         type = static_cast<uint8_t>(rank - count + i);
    ranges[i] = {i == 0 ? uint8_t{0} : dim, dim, i == 0 ? uint8_t{0} : type, type};
  }
  return count;
}

namespace {

/// Calls use(atoms of the row's dimensions, range) for each range of a type with this rank.
template <typename Use>
void forEachRange(const FactorValue &value, bool isTransposed, uint8_t rank, Use use) {
  if (value.form != FactorValue::Dims)
    return;
  std::array<DimRange, kDimsOfValueMax> ranges;
  uint8_t count = dimRanges(value, rank, ranges);
  for (uint8_t r = 0; r < count; ++r) {
    std::array<const FactorAtom *, kAtomsOfValueMax> atoms{};
    size_t found = 0;
    for (uint8_t place = ranges[r].first; place <= ranges[r].last; ++place)
      for (const FactorAtom &atom : value.words())
        if (placeOfDim(value, isTransposed, atom.dim) == place && atom.factor != kNoFactor)
          atoms[found++] = &atom;
    use(std::span(atoms.data(), found), ranges[r]);
  }
}

} // namespace

FactorId factorAt(const FactorValue &value, bool isTransposed, uint8_t rank, uint8_t dim) {
  FactorId factor = kNoFactor;
  forEachRange(value, isTransposed, rank, [&](auto atoms, const DimRange &range) {
    if (dim < range.typeFirst || dim > range.typeLast || atoms.empty())
      return;
    bool isEach = atoms.size() == range.typeLast - range.typeFirst + 1u;
    factor = atoms[isEach ? dim - range.typeFirst : 0]->factor;
  });
  return factor;
}

int dimOf(const FactorValue &value, bool isTransposed, uint8_t rank, FactorId factor,
          uint8_t like) {
  int dim = -1;
  forEachRange(value, isTransposed, rank, [&](auto atoms, const DimRange &range) {
    bool isEach = atoms.size() == range.typeLast - range.typeFirst + 1u;
    for (size_t a = 0; a < atoms.size(); ++a)
      if (atoms[a]->factor == factor)
        dim = isEach ? static_cast<int>(range.typeFirst + a)
                     : std::clamp(like, range.typeFirst, range.typeLast);
  });
  return dim;
}

namespace {

/// Writes an atom as Ops.def does.
void appendWord(std::string &text, const OpFactors &factors, const FactorAtom &atom) {
  if (atom.form == FactorAtom::Number) {
    text += std::to_string(atom.number);
    return;
  }
  if (atom.form == FactorAtom::Mirrored)
    text += '~';
  text += factors.names[static_cast<size_t>(atom.factor)];
  if (atom.form == FactorAtom::Joined)
    text.append("+").append(factors.names[static_cast<size_t>(atom.other)]);
  if (atom.form == FactorAtom::Beside || atom.form == FactorAtom::Blocks)
    text += (atom.form == FactorAtom::Beside ? '+' : '/') + std::to_string(atom.number);
}

} // namespace

std::string printDims(const OpFactors &factors, const FactorValue &value, uint8_t first,
                      uint8_t last) {
  std::string text;
  for (uint8_t dim = first; dim <= last; ++dim) {
    std::string words;
    int count = 0;
    for (const FactorAtom &atom : value.words())
      if (atom.dim == dim) {
        words += count++ == 0 ? "" : " ";
        appendWord(words, factors, atom);
      }
    text += text.empty() ? "" : " ";
    text += count > 1 ? "(" + words + ")" : words;
  }
  return text;
}

std::string printFactors(const OpFactors &factors) {
  std::string text;
  auto add = [&](std::span<const FactorValue> values) {
    for (const FactorValue &value : values) {
      text += text.empty() || text.ends_with(' ') ? "" : ", ";
      text += value.form == FactorValue::Opaque ? "."
              : value.form == FactorValue::Scales
                  ? "$"
                  : printDims(factors, value, 0, value.dimCount - 1);
    }
  };
  add(factors.operands());
  text += text.empty() ? "-> " : " -> ";
  add(factors.results());
  const char *separator = "; ";
  for (size_t f = 0; f < factors.factorCount; ++f)
    if (factors.attrOf[f]) {
      text.append(separator).append(factors.names[f]).append("=");
      text += kAttrNames[static_cast<size_t>(*factors.attrOf[f])];
      separator = " ";
    }
  return text;
}

/// Starts with the extents that attributes and the group give, and solves until nothing changes. If
/// equations with two unknown extents are left, settleOne chooses one of them, and the solution
/// continues.
FactorExtents::FactorExtents(const OpFactors &factors, const Op &op,
                             std::span<const Type *const> operands,
                             std::span<const Type *const> results, int64_t members)
    : factors_(factors), members_(members) {
  for (size_t f = 0; f < factors_.factorCount; ++f)
    if (factors_.attrOf[f])
      extents_[f] = op.getInt(*factors_.attrOf[f]);
  if (factors_.members != kNoFactor)
    at(factors_.members) = members;
  addEquations(op, operands, true);
  addEquations(op, results, false);
  do
    for (bool isNew = true; isNew && !fault_;) {
      isNew = false;
      for (size_t i = 0; i < equationCount_ && !fault_; ++i)
        isNew |= !equations_[i].isDone && use(equations_[i]);
    }
  while (!fault_ && settleOne());
}

bool FactorExtents::settleOne() {
  for (size_t i = 0; i < equationCount_; ++i) {
    const Equation &equation = equations_[i];
    if (equation.isDone) // true for nearly all equations
      continue;
    FactorId first = kNoFactor;
    for (const FactorAtom &atom : equation.value->words()) {
      bool isIn = atom.dim >= equation.dims.first && atom.dim <= equation.dims.last;
      if (!isIn || atom.form == FactorAtom::Number || at(atom.factor) != 0)
        continue;
      if (first != kNoFactor) {
        at(first) = 1;
        return true;
      }
      first = atom.factor;
    }
  }
  return false;
}

void FactorExtents::addEquations(const Op &op, std::span<const Type *const> types, bool isOperand) {
  for (size_t i = 0; i < types.size() && !fault_; ++i) {
    const FactorValue &value = isOperand ? operandOf(op, factors_, i) : resultOf(op, factors_, i);
    if (value.isList)
      return;
    if (types[i] == nullptr || value.form != FactorValue::Dims)
      continue;
    bool isTransposed = value.transposedBy && op.getBool(*value.transposedBy);
    std::array<DimRange, kDimsOfValueMax> ranges;
    uint8_t count = dimRanges(value, types[i]->rank, ranges);
    for (uint8_t r = 0; r < count; ++r) {
      Equation &equation = equations_[equationCount_++];
      equation = {&value, isOperand, false, static_cast<uint8_t>(i), ranges[r], 1};
      for (uint8_t d = ranges[r].typeFirst; d <= ranges[r].typeLast; ++d)
        equation.extent *= types[i]->shape[d];
      if (isTransposed && count == value.dimCount)
        equation.dims.first = equation.dims.last = placeOfDim(value, true, ranges[r].last);
    }
  }
}

std::array<int64_t, kDimsOfValueMax> FactorExtents::shapeOf(const FactorValue &value) const {
  std::array<int64_t, kDimsOfValueMax> shape = {1, 1, 1, 1};
  std::array<bool, kDimsOfValueMax> isShared{};
  for (const FactorAtom &atom : value.words()) {
    int64_t factor = atom.form == FactorAtom::Number ? 1 : of(atom.factor);
    shape[atom.dim] *= atom.extent(factor, atom.form == FactorAtom::Joined ? of(atom.other) : 0);
    isShared[atom.dim] |= atom.isShare || atom.isInSharedDim;
  }
  for (size_t dim = 0; dim < shape.size(); ++dim)
    shape[dim] /= isShared[dim] ? members_ : 1;
  return shape;
}

void FactorExtents::refuse(const Equation &equation, int64_t needed) {
  fault_ = {equation.isOperand, equation.index,
            printDims(factors_, *equation.value, equation.dims.first, equation.dims.last),
            equation.extent, needed};
}

/// Uses one equation: the product of the extents of its atoms is the extent of the type's
/// dimensions, times the number of ranks that share it. It determines a factor if that is the only
/// unknown; if none is unknown, it checks the product. Returns true if it determined one. All
/// products are bounded, since plans come from files.
bool FactorExtents::use(Equation &equation) {
  const FactorAtom *unknown = nullptr;
  FactorId missing = kNoFactor; // the undetermined factor of atom `unknown`
  int64_t known = 1, shares = 1;
  constexpr int64_t kMost = INT64_MAX / UINT16_MAX;
  for (const FactorAtom &atom : equation.value->words()) {
    if (atom.dim < equation.dims.first || atom.dim > equation.dims.last)
      continue;
    if (atom.isShare || atom.isInSharedDim)
      shares = members_;
    int64_t extent = atom.form == FactorAtom::Number ? 1 : at(atom.factor);
    int64_t other = atom.form == FactorAtom::Joined ? at(atom.other) : 1;
    if (extent == 0 || other == 0) {
      if (unknown != nullptr || extent == other) // more than one factor is undetermined
        return false;
      unknown = &atom;
      missing = extent == 0 ? atom.factor : atom.other;
      continue;
    }
    if (extent > kMost || other > kMost)
      return refuse(equation, 0), false;
    int64_t words = atom.extent(extent, other);
    if (known > kMost / words)
      return refuse(equation, 0), false;
    known *= words;
  }
  if (unknown == nullptr) {
    equation.isDone = true;
    if (known % shares != 0 || known / shares != equation.extent)
      refuse(equation, known / shares);
    return false;
  }
  if (unknown->form == FactorAtom::Blocks)
    return false; // several extents have the same number of blocks
  equation.isDone = true;
  if (equation.extent > kMost / shares || equation.extent * shares % known != 0)
    return refuse(equation, 0), false;
  int64_t rest = equation.extent * shares / known;
  if (unknown->form == FactorAtom::Beside)
    rest -= unknown->number;
  if (unknown->form == FactorAtom::Mirrored)
    rest = rest % 2 == 0 ? rest / 2 : 0;
  if (unknown->form == FactorAtom::Joined)
    rest -= at(missing == unknown->factor ? unknown->other : unknown->factor);
  if (rest <= 0)
    return refuse(equation, 0), false;
  at(missing) = rest;
  return true;
}

} // namespace shardc::plan
