// What follows from the steps of a fused op: factors, types, attributes, work and nodes.
//
// Each step's factors become variables. A value that two steps have in common makes variables
// equal, or stands for several: the rows of a norm for the samples, positions and heads of queries.
// Then marks follow: what a step needs of a value, it needs of the values from which that is made.
#pragma once

#include <memory>
#include <utility>

#include "runtime/plan/OpRow.h"

namespace shardc::plan {

/// One row of Ops.def.
struct OpRow {
  OpInfo info;
  OpFactors factors;
  OpTypes types;
  OpFault fault = OpFault::None;
};
using OpRows = std::array<OpRow, kOpCount>;

class Derivation {
public:
  constexpr Derivation(const OpRows &rows, const OpSteps &steps, OpRow &out)
      : rows_(rows), row_(steps), out_(out) {}

  constexpr void run() {
    for (const OpStep &step : row_.steps)
      addStep(step);
    for (size_t s = 0; s < row_.steps.size(); ++s)
      addMarks(s);
    for (size_t s = row_.steps.size(); s-- > 0;)
      handBack(s);
    for (size_t s = 0; s < row_.steps.size(); ++s)
      handOn(s);
    write();
    deriveTypes();
    deriveInfo();
  }

private:
  using Vars = uint64_t; ///< a bit for each variable
  static constexpr FactorId kVarsMax = 64;
  struct Var {
    FactorId alias = kNoFactor; ///< the variable that it equals
    FactorId primeOf = kNoFactor;
    std::string_view name;
    std::optional<AttrKey> attr;
    ShortList<FactorAtom, kAtomsOfValueMax> atoms; ///< if not empty, it stands for these
  };
  /// What is known of the variables of a value.
  struct Marks {
    Vars whole = 0, counted = 0, byIndex = 0, share = 0, inSharedDim = 0, bound = 0, summed = 0;
  };

  constexpr const OpRow &rowOf(const OpStep &step) const {
    return rows_[static_cast<size_t>(step.kind)];
  }
  constexpr void fail() { out_.fault = OpFault::DimsOfSteps; }
  constexpr Var &at(FactorId var) { return vars_[static_cast<size_t>(var)]; }
  constexpr const Var &at(FactorId var) const { return vars_[static_cast<size_t>(var)]; }
  constexpr FactorId find(FactorId var) const {
    while (var != kNoFactor && at(var).alias != kNoFactor)
      var = at(var).alias;
    return var;
  }

  // ---- values, and variables that are equal ----

  constexpr void addStep(const OpStep &step) {
    const OpRow &row = rowOf(step);
    const size_t s = stepCount_++;
    firstVars_[s] = varCount_;
    if (varCount_ + row.factors.factorCount > kVarsMax)
      return fail();
    for (size_t f = 0; f < row.factors.factorCount; ++f, ++varCount_) {
      Var &var = at(varCount_);
      if (FactorId extent = row.factors.extentOf[f]; extent != static_cast<FactorId>(f))
        var.primeOf = static_cast<FactorId>(firstVars_[s] + extent);
      var.name = row.factors.names[f];
      if (row.factors.attrOf[f])
        var.attr = *row.factors.attrOf[f];
    }
    for (size_t i = 0; i < step.operands.size(); ++i)
      unify(step.operands[i], placed(s, row.factors.operand(i)));
    for (size_t r = 0; r < step.results.size(); ++r) {
      FactorValue made = placed(s, row.factors.result(r));
      if (made.form == FactorValue::Scales)
        made = scalesOf(step, r);
      if (row.factors.operand(0).isList)
        made = listOf(step);
      made_[step.results[r]] = made;
      unify(step.results[r], made);
    }
  }

  /// The value of a step's row with variables for its factors. Attributes that the step does not
  /// take from the fused op do not transpose it any more.
  constexpr FactorValue placed(size_t s, const FactorValue &row) const {
    const OpStep &step = row_.steps[s];
    FactorValue value = row;
    auto shift = [&](FactorId &factor) {
      if (factor != kNoFactor)
        factor = static_cast<FactorId>(firstVars_[s] + factor);
    };
    for (size_t a = 0; a < value.atomCount; ++a)
      shift(value.atoms[a].factor), shift(value.atoms[a].other);
    shift(value.pointsInto), shift(value.countsRowsOf);
    if (!value.transposedBy || !step.own.has(*value.transposedBy))
      return value;
    for (const OpStep::Set &set : step.set)
      if (set.key == value.transposedBy && set.value != 0)
        swapLast(value);
    std::construct_at(&value.transposedBy); // clang copies no optional that was reset
    return value;
  }
  static constexpr void swapLast(FactorValue &value) {
    const FactorValue from = value;
    const auto last = static_cast<uint8_t>(value.dimCount - 1);
    size_t to = 0;
    for (uint8_t dim = 0; dim <= last; ++dim)
      for (const FactorAtom &atom : from.words())
        if (uint8_t now = dim == last ? last - 1 : dim == last - 1 ? last : dim; atom.dim == now) {
          value.atoms[to] = atom;
          value.atoms[to++].dim = dim;
        }
  }

  /// Blocks of 1 by 128 of the numbers whose scales the result has.
  constexpr FactorValue scalesOf(const OpStep &step, size_t scale) const {
    FactorValue value;
    for (size_t r = 0; r < step.results.size(); ++r)
      if (rowOf(step).info.scaleOf[r] == static_cast<int>(scale))
        value = resolve(made_[step.results[r]]);
    std::construct_at(&value.transposedBy); // clang copies no optional that was reset
    swapLast(value);
    for (size_t a = 0; a < value.atomCount; ++a)
      if (value.atoms[a].dim == 0 && value.atoms[a].form == FactorAtom::Plain)
        value.atoms[a].form = FactorAtom::Blocks, value.atoms[a].number = 128;
    return value;
  }
  /// As many elements as values of one element.
  constexpr FactorValue listOf(const OpStep &step) const {
    FactorValue value = made_[step.operands[0]];
    value.atoms[0].number = static_cast<uint16_t>(step.operands.size());
    return value;
  }

  constexpr void unify(uint8_t value, const FactorValue &fresh) {
    FactorValue &old = values_[value];
    if (!isKnown_[value]) {
      old = fresh, isKnown_[value] = true;
      return;
    }
    for (auto [a, b] :
         {std::pair(&old.pointsInto, fresh.pointsInto), {&old.countsRowsOf, fresh.countsRowsOf}})
      if (*a == kNoFactor)
        *a = b;
      else if (b != kNoFactor)
        equate(*a, b);
    if (old.form != FactorValue::Dims || fresh.form != FactorValue::Dims)
      return;
    FactorValue longer = resolve(old), shorter = resolve(fresh);
    if (longer.dimCount < shorter.dimCount)
      std::swap(longer, shorter);
    const auto more = static_cast<uint8_t>(longer.dimCount - shorter.dimCount);
    if (more > 0 && !shorter.beginsWithFactor())
      return fail();
    if (more > 0)
      bind(shorter.atoms[0].factor, longer, 0, more);
    for (uint8_t dim = more > 0 ? 1 : 0; dim < shorter.dimCount; ++dim)
      unifyDim(longer, static_cast<uint8_t>(dim + more), shorter, dim);
  }
  constexpr void unifyDim(const FactorValue &a, uint8_t dimOfA, const FactorValue &b,
                          uint8_t dimOfB) {
    ShortList<FactorAtom, kAtomsOfValueMax> left = atomsOf(a, dimOfA), right = atomsOf(b, dimOfB);
    auto isOne = [](const auto &atoms) {
      return atoms.size() == 1 && atoms[0].form == FactorAtom::Plain;
    };
    if (left.size() != right.size() || left[0].form != right[0].form) {
      if (isOne(right))
        return bind(right[0].factor, a, dimOfA, dimOfA);
      return isOne(left) ? bind(left[0].factor, b, dimOfB, dimOfB) : fail();
    }
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i].form != right[i].form || left[i].number != right[i].number)
        return fail();
      equate(left[i].factor, right[i].factor), equate(left[i].other, right[i].other);
    }
  }
  static constexpr ShortList<FactorAtom, kAtomsOfValueMax> atomsOf(const FactorValue &value,
                                                                   uint8_t dim) {
    ShortList<FactorAtom, kAtomsOfValueMax> atoms;
    for (const FactorAtom &atom : value.words())
      if (atom.dim == dim)
        atoms.push_back(atom);
    return atoms;
  }
  constexpr void equate(FactorId a, FactorId b) {
    a = find(a), b = find(b);
    if (a == b || a == kNoFactor || b == kNoFactor)
      return;
    Var &first = at(std::min(a, b)), &second = at(std::max(a, b));
    second.alias = std::min(a, b);
    if (!first.attr && second.attr)
      first.attr = *second.attr, first.name = second.name;
  }
  /// Lets the variable stand for these dimensions of the value.
  constexpr void bind(FactorId var, const FactorValue &to, uint8_t first, uint8_t last) {
    for (FactorAtom atom : to.words())
      if (atom.dim >= first && atom.dim <= last) {
        if (atom.factor == find(var))
          return fail();
        atom.dim = static_cast<uint8_t>(atom.dim - first);
        at(find(var)).atoms.push_back(atom);
      }
  }

  /// The value without variables that equal others or stand for others, and without marks.
  constexpr FactorValue resolve(const FactorValue &value) const {
    FactorValue out = value;
    out.atomCount = out.dimCount = 0;
    for (uint8_t dim = 0; dim < value.dimCount; ++dim) {
      uint8_t last = out.dimCount;
      for (const FactorAtom &atom : value.words())
        if (atom.dim == dim)
          append(out, atom, out.dimCount, last);
      out.dimCount = static_cast<uint8_t>(last + 1);
    }
    out.pointsInto = find(out.pointsInto), out.countsRowsOf = find(out.countsRowsOf);
    return out;
  }
  constexpr void append(FactorValue &out, const FactorAtom &atom, uint8_t dim,
                        uint8_t &last) const {
    const FactorId var = find(atom.factor);
    if (atom.form == FactorAtom::Plain && at(var).atoms.size() > 0) {
      for (const FactorAtom &part : at(var).atoms)
        append(out, part, static_cast<uint8_t>(dim + part.dim), last);
      return;
    }
    if (out.atomCount == kAtomsOfValueMax)
      return;
    out.atoms[out.atomCount++] = {var, find(atom.other), atom.form, atom.number, dim};
    last = std::max(last, dim);
  }

  // ---- marks ----

  constexpr Vars varsOf(const FactorAtom &atom) const {
    if (atom.form == FactorAtom::Number)
      return 0;
    FactorValue one;
    uint8_t last = 0;
    append(one, atom, 0, last);
    Vars vars = 0;
    for (const FactorAtom &each : one.words())
      for (FactorId var : {each.factor, each.other})
        vars |= var == kNoFactor ? 0 : Vars{1} << var;
    return vars;
  }
  constexpr Vars varsOf(const FactorValue &value) const {
    Vars vars = 0;
    for (const FactorAtom &atom : value.words())
      vars |= varsOf(atom);
    return vars;
  }

  constexpr void addMarks(size_t s) {
    const OpStep &step = row_.steps[s];
    const OpRow &row = rowOf(step);
    Vars all = 0, whole = 0;
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const FactorValue value = placed(s, row.factors.operand(i));
      Marks &marks = marks_[step.operands[i]];
      addMarks(value, marks, true);
      all |= varsOf(value);
      for (const FactorAtom &atom : value.words())
        whole |= atom.isNeededWhole || atom.form != FactorAtom::Plain ? varsOf(atom) : 0;
      isAddedOnce_ |= value.isAddedOnce ? 1u << step.operands[i] : 0;
    }
    const Vars carried = carriedSums(step, row.info);
    for (size_t r = 0; r < step.results.size(); ++r) {
      const FactorValue value = placed(s, row.factors.result(r));
      Marks &marks = marks_[step.results[r]];
      addMarks(value, marks, false);
      needJoined(s, value);
      if (value.form == FactorValue::Dims && value.combine == FactorValue::Sum)
        marks.summed |= (all & ~whole & ~varsOf(value)) | carried;
    }
  }
  /// If the step sums along a factor that the result has by another name, each of its elements
  /// needs all of the operand: positions of queries and keys are both those of the fused op.
  constexpr void needJoined(size_t s, const FactorValue &result) {
    const Vars has = varsOf(result);
    for (size_t i = 0; i < row_.steps[s].operands.size(); ++i) {
      const FactorValue operand = placed(s, rowOf(row_.steps[s]).factors.operand(i));
      for (const FactorAtom &atom : operand.words())
        if (atom.form == FactorAtom::Plain && result.find(atom.factor) == nullptr)
          marks_[row_.steps[s].operands[i]].whole |= varsOf(atom) & has;
    }
  }
  constexpr void addMarks(const FactorValue &value, Marks &marks, bool isOperand) const {
    for (const FactorAtom &atom : value.words()) {
      const Vars vars = varsOf(atom);
      marks.share |= atom.isShare ? vars : 0;
      marks.inSharedDim |= atom.isInSharedDim ? vars : 0;
      marks.bound |= atom.isBound ? vars : 0;
      marks.whole |= isOperand && atom.isNeededWhole ? vars : 0;
      marks.counted |= isOperand && atom.isCounted ? vars : 0;
      marks.byIndex |= isOperand && atom.isKnownByIndex ? vars : 0;
    }
  }
  /// The variables along which results are partial sums because operands are. A function of a sum
  /// is not the sum of the functions of its terms, so other ops need these whole.
  constexpr Vars carriedSums(const OpStep &step, const OpInfo &info) {
    Vars carried = 0;
    for (size_t i = 0; i < step.operands.size(); ++i) {
      Marks &marks = marks_[step.operands[i]];
      if (info.linearityOf(i) == Linearity::None)
        marks.whole |= marks.summed;
      else
        carried |= marks.summed & ~varsOf(made_[step.results[0]]);
    }
    for (size_t i = 0; i < step.operands.size() && info.linearity == Linearity::Together; ++i)
      if (const uint8_t value = step.operands[i];
          info.linearityOf(i) != Linearity::None && (carried & ~marks_[value].summed) != 0) {
        if (value < row_.operandsMax)
          isAddedOnce_ |= 1u << value;
        else
          marks_[value].whole |= carried & ~marks_[value].summed;
      }
    return carried;
  }

  constexpr void handBack(size_t s) {
    const OpStep &step = row_.steps[s];
    for (uint8_t result : step.results)
      for (uint8_t operand : step.operands) {
        const Vars vars = varsOf(values_[operand]);
        Marks &to = marks_[operand];
        const Marks &from = marks_[result];
        to.whole |= from.whole & vars, to.counted |= from.counted & vars;
        to.byIndex |= from.byIndex & vars, to.bound |= from.bound & vars;
        if (!rowOf(step).factors.hasShares())
          to.share |= from.share & vars;
      }
  }
  constexpr void handOn(size_t s) {
    const OpStep &step = row_.steps[s];
    for (uint8_t result : step.results)
      for (uint8_t operand : step.operands)
        if (!rowOf(step).factors.hasShares())
          marks_[result].share |= marks_[operand].share & varsOf(values_[result]);
  }
  /// Whether the fused op gives each step its group that takes one. The steps that have shares have
  /// no group otherwise.
  constexpr bool keepsShares() const {
    return out_.info.takesIndex() && std::ranges::all_of(row_.steps, [&](const OpStep &step) {
             return !rowOf(step).info.takesIndex() || rowOf(step).factors.hasShares();
           });
  }

  // ---- the factors of the fused op ----

  constexpr void write() {
    const bool hasIndex = out_.info.takesIndex(), hasShares = keepsShares();
    Vars whole = 0, summed = 0;
    for (Marks &marks : marks_) {
      marks.byIndex = hasIndex ? marks.byIndex : 0;
      if (!hasShares)
        marks.share = marks.inSharedDim = 0;
    }
    for (uint8_t i = 0; i < row_.operandsMax; ++i) {
      whole |= marks_[i].whole;
      for (const FactorAtom &atom : values_[i].words())
        uncut_ |=
            atom.form == FactorAtom::Beside || atom.form == FactorAtom::Joined ? varsOf(atom) : 0;
    }
    for (uint8_t result : row_.results)
      summed |= marks_[result].summed;
    OpFactors &to = out_.factors;
    to.operandCount = row_.operandsMax, to.resultCount = row_.results.count;
    for (uint8_t i = 0; i < row_.operandsMax; ++i) {
      to.operandValues[i] = numbered(values_[i], marks_[i]);
      to.operandValues[i].isAddedOnce = (isAddedOnce_ >> i & 1u) != 0 && (summed & ~whole) != 0;
    }
    for (size_t r = 0; r < row_.results.size(); ++r) {
      const Marks &marks = marks_[row_.results[r]];
      to.resultValues[r] =
          numbered(made_[row_.results[r]],
                   {.share = marks.share, .inSharedDim = marks.inSharedDim, .bound = marks.bound});
    }
    for (size_t f = 0; f < to.factorCount; ++f) {
      const FactorId prime = at(of_[f]).primeOf;
      to.extentOf[f] = prime == kNoFactor ? static_cast<FactorId>(f) : numberOf(find(prime));
    }
  }
  /// The value with numbers of factors in place of variables, and with marks.
  constexpr FactorValue numbered(const FactorValue &value, const Marks &marks) {
    FactorValue out = resolve(value);
    out.countsRowsOf = numberOf(out.countsRowsOf), out.pointsInto = numberOf(out.pointsInto);
    for (size_t a = 0; a < out.atomCount; ++a) {
      FactorAtom &atom = out.atoms[a];
      if (atom.form == FactorAtom::Number)
        continue;
      const Vars var = Vars{1} << atom.factor;
      const bool isOne = atom.form == FactorAtom::Plain || atom.form == FactorAtom::Blocks;
      atom.isNeededWhole = isOne && (marks.whole & var) != 0;
      atom.isCounted = isOne && (marks.counted & ~marks.whole & ~uncut_ & var) != 0;
      atom.isKnownByIndex = (marks.byIndex & var) != 0, atom.isShare = (marks.share & var) != 0;
      atom.isInSharedDim = (marks.inSharedDim & var) != 0, atom.isBound = (marks.bound & var) != 0;
      atom.factor = numberOf(atom.factor), atom.other = numberOf(atom.other);
    }
    return out;
  }
  constexpr FactorId numberOf(FactorId var) {
    if (var == kNoFactor)
      return var;
    OpFactors &to = out_.factors;
    for (size_t f = 0; f < to.factorCount; ++f)
      if (of_[f] == var)
        return static_cast<FactorId>(f);
    if (to.factorCount == kFactorsOfOpMax)
      return fail(), FactorId{0};
    if (to.find(at(var).name) != kNoFactor) // two dimensions would have one word
      return fail(), FactorId{0};
    const size_t f = to.factorCount++;
    of_[f] = var, to.extentOf[f] = static_cast<FactorId>(f);
    to.name(static_cast<FactorId>(f), at(var).name);
    if (at(var).attr && out_.info.attrs.has(*at(var).attr))
      to.attrOf[f] = at(var).attr;
    return static_cast<FactorId>(f);
  }

  // ---- types and facts ----

  constexpr void deriveTypes() {
    std::array<ValueType, kValuesOfStepsMax> types{}, made{};
    bool isFloat = false; // the data between steps is quantised
    for (const OpStep &step : row_.steps)
      for (bool isOperand : {true, false})
        for (size_t i = 0; i < (isOperand ? step.operands.size() : step.results.size()); ++i) {
          const uint8_t value = isOperand ? step.operands[i] : step.results[i];
          const OpTypes &row = rowOf(step).types;
          ValueType type = isOperand ? row.operand(i) : row.result(i);
          if (type.like >= 0)
            type = likeOf(type, type.isLikeOperand ? step.operands[static_cast<size_t>(type.like)]
                                                   : step.results[static_cast<size_t>(type.like)]);
          if (!isOperand && rowOf(step).factors.result(i).form == FactorValue::Scales)
            type = {.numbers = ValueType::Exact, .rank = 2};
          if (!isOperand && rowOf(step).factors.operand(0).isList)
            type = made[step.operands[0]];
          isFloat |= isOperand && type.numbers == ValueType::Float && value >= row_.operandsMax;
          const FactorValue &dims =
              isOperand ? rowOf(step).factors.operand(i) : rowOf(step).factors.result(i);
          if (uint8_t rank = resolve(values_[value]).dimCount; rank > dims.dimCount)
            type.rank = type.numbers == ValueType::Exact && type.like < 0 ? rank : type.rank;
          ValueType &of = isOperand ? types[value] : made[value];
          const bool isNarrower = of.numbers == ValueType::Any ||
                                  (of.numbers == ValueType::Data && type.numbers != ValueType::Any);
          const uint8_t rank = std::max(of.rank, type.rank);
          of = isNarrower && of.like < 0 ? type : of;
          of.rank = rank;
        }
    auto write = [&](const ValueType &type) {
      ValueType out = type;
      if (isFloat && out.like < 0 && out.numbers == ValueType::Data)
        out.numbers = ValueType::Float;
      return out;
    };
    OpTypes &to = out_.types;
    to.operandCount = row_.operandsMax, to.resultCount = row_.results.count;
    for (uint8_t i = 0; i < row_.operandsMax; ++i)
      to.operandTypes[i] = write(types[i]);
    for (size_t r = 0; r < row_.results.size(); ++r)
      to.resultTypes[r] = write(made[row_.results[r]]);
    for (size_t r = 0; r < row_.results.size(); ++r)
      for (size_t first = 0; first < r; ++first)
        if (to.resultTypes[r].numbers == ValueType::Float8 && to.resultTypes[r].like < 0 &&
            sourceOf(row_.results[first]) == sourceOf(row_.results[r]) &&
            to.resultTypes[first].numbers == ValueType::Float8)
          to.resultTypes[r] = {.like = static_cast<int8_t>(first)};
    if (out_.info.reuses >= 0)
      to.resultTypes[0] = {.like = out_.info.reuses, .isLikeOperand = true, .isSameType = true};
    addRanks(true), addRanks(false);
  }
  /// The ranks that the row says: `x/3`.
  constexpr void addRanks(bool isOperand) {
    size_t at = 0;
    forEachValue(valuesOf(out_.info.signature, !isOperand), [&](std::string_view name, auto value) {
      ValueType &type = isOperand ? out_.types.operandTypes[at] : out_.types.resultTypes[at];
      if (++at; name.size() < value.size())
        type.rank = static_cast<uint8_t>(value.back() - '0');
    });
  }
  /// The value that a step quantises: all copies of it have one type.
  constexpr uint8_t sourceOf(uint8_t result) const {
    for (const OpStep &step : row_.steps)
      if (std::ranges::find(step.results, result) != step.results.end())
        return step.operands[0];
    return result;
  }
  /// The requirement to be like a value of the steps, which the fused op has.
  constexpr ValueType likeOf(ValueType type, uint8_t value) const {
    type.isLikeOperand = value < row_.operandsMax;
    type.like = static_cast<int8_t>(value);
    for (size_t r = 0; r < row_.results.size() && !type.isLikeOperand; ++r)
      if (row_.results[r] == value)
        type.like = static_cast<int8_t>(r);
    return type;
  }

  constexpr void deriveInfo() {
    OpInfo &info = out_.info;
    const bool hasWork = info.work.cost != CostClass::Memory || info.work.perResult != 0;
    const int64_t nodes = std::exchange(info.nodes, info.nodes == 0 ? 1 : info.nodes);
    const FactorValue first = resolve(made_[row_.results[0]]), x = resolve(values_[0]);
    const bool isPerResult =
        varsOf(first) == varsOf(x) || std::ranges::any_of(row_.steps, [&](const OpStep &step) {
          return rowOf(step).info.work.cost != CostClass::Memory;
        });
    double memory = 0;
    info.traits = OpTraits::Pure;
    for (const OpStep &step : row_.steps) {
      const OpInfo &of = rowOf(step).info;
      if (of.traits != OpTraits::Pure)
        info.traits = OpTraits::None;
      info.nodes += nodes == 0 ? std::max<int64_t>(of.nodes, 1) - 1 : 0;
      for (size_t r = 0; r < step.results.size(); ++r)
        for (size_t to = 0; to < row_.results.size() && of.scaleOf[r] >= 0; ++to)
          if (row_.results[to] == step.results[r])
            info.scaleOf[to] = resultOf(step.results[static_cast<size_t>(of.scaleOf[r])]);
      if (hasWork)
        continue;
      if (of.work.cost != CostClass::Memory)
        info.work = of.work;
      memory += of.work.perResult * share(made_[step.results[0]], isPerResult ? first : x) +
                of.work.perOperand * share(values_[step.operands[0]], isPerResult ? first : x);
    }
    if (hasWork)
      return;
    if (isPerResult)
      info.work.perResult += memory;
    else
      info.work.perOperand = static_cast<double>(static_cast<int64_t>(memory + 0.5));
  }
  constexpr int8_t resultOf(uint8_t value) const {
    for (size_t r = 0; r < row_.results.size(); ++r)
      if (row_.results[r] == value)
        return static_cast<int8_t>(r);
    return -1;
  }
  /// How many elements the value has for each one of another value; 0 if it has fewer factors.
  constexpr double share(const FactorValue &of, const FactorValue &other) const {
    auto blocks = [](const FactorValue &value) {
      double count = 1;
      for (const FactorAtom &atom : value.words())
        count *= atom.form == FactorAtom::Number ? atom.number : 1;
      return count;
    };
    const FactorValue value = resolve(of);
    return varsOf(value) == varsOf(other) ? blocks(value) / blocks(other) : 0;
  }
  const OpRows &rows_;
  const OpSteps &row_;
  OpRow &out_;
  std::array<Var, size_t{kVarsMax}> vars_{};
  std::array<FactorId, kStepsMax> firstVars_{};
  FactorId varCount_ = 0;
  size_t stepCount_ = 0;
  std::array<FactorValue, kValuesOfStepsMax> values_{}; ///< dimensions, without marks
  std::array<FactorValue, kValuesOfStepsMax> made_{};   ///< as the step that makes it says
  std::array<bool, kValuesOfStepsMax> isKnown_{};
  std::array<Marks, kValuesOfStepsMax> marks_{};
  uint32_t isAddedOnce_ = 0; ///< a bit for each operand
  Vars uncut_ = 0;           ///< those that an operand has beside others in a dimension
  std::array<FactorId, kFactorsOfOpMax> of_{}; ///< by factor: its variable
};

} // namespace shardc::plan
