// What each op does to dimensions: its FACTORS row of Ops.def, taken apart. A factor is a dimension
// of the op, named by a letter; each operand and each result says which factors its dimensions are.
// docs/factors.md teaches the notation, OpColumns.def has the meaning of each mark. Shape checks,
// partition and the verifier read factors here, so that nobody has a second list of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

using FactorId = int8_t; ///< index of a letter in a row, in the order of first occurrence
inline constexpr FactorId kNoFactor = -1;
inline constexpr size_t kFactorsOfOpMax = 8;
inline constexpr size_t kDimsOfValueMax = 4;
inline constexpr size_t kAtomsOfValueMax = 6;
inline constexpr size_t kOperandsOfOpMax = 12;

/// One word of a value: a factor, or a number.
struct FactorAtom {
  enum Form : uint8_t {
    Plain,    ///< `x`: the factor
    Number,   ///< `2`: so many equal blocks
    Beside,   ///< `x+2`: the factor, and `number` more that all of it shares; keeps it whole
    Blocks,   ///< `x/128`: one for each started block of `number`
    Mirrored, ///< `~x`: two chunks for each element x of X: those with the numbers x and 2·X-1-x
    Joined,   ///< `x+y`: all of the factor, then all of another one; keeps both whole
  };
  FactorId factor = kNoFactor; ///< none of a Number
  FactorId other = kNoFactor;  ///< of Joined: the second one
  Form form = Plain;
  uint8_t number = 0;
  uint8_t dim = 0;            ///< of the value
  bool isNeededWhole = false; ///< `!`
  bool isCounted = false;     ///< `#`
  bool isToldByIndex = false; ///< `@`
  bool isShare = false;       ///< `%` at this factor
  bool isInSharedDim = false; ///< `%` at the dimension that it is part of
  bool isBound = false;       ///< `?`: counts say which of its rows are there
  /// Of the word, where the factors have these extents.
  int64_t extent(int64_t ofFactor, int64_t ofOther = 0) const;
};

/// The dimensions of one operand or result.
struct FactorValue {
  enum Form : uint8_t {
    Dims,   ///< factors
    Opaque, ///< `.`: elements in an order of their own
    Scales, ///< `$`: the scales of numbers of 8 bits: one for all, or one for each of their blocks
  };
  /// Of results: how parts along a factor that a result lacks make the whole.
  enum Combine : uint8_t {
    Sum,
    Largest, ///< `^`
    Same,    ///< `=`: it follows from no factor that it lacks, so each part has all of it
  };
  Form form = Dims;
  Combine combine = Sum;
  bool isList = false;               ///< `*`: each value of the list has an extent of its own
  bool isAddedOnce = false;          ///< `+`: a term of the sum, which only one part may add
  FactorId pointsInto = kNoFactor;   ///< `>v`: its elements are places along v
  FactorId countsRowsOf = kNoFactor; ///< `|x`: its elements are numbers of rows along x
  std::optional<AttrKey> turnedBy;   ///< with this attribute its last two dimensions are swapped
  uint8_t dimCount = 0, atomCount = 0;
  std::array<FactorAtom, kAtomsOfValueMax> atoms{};

  std::span<const FactorAtom> words() const { return {atoms.data(), atomCount}; }
  /// Where the factor stands; null if the value lacks it.
  const FactorAtom *find(FactorId factor) const;
  bool has(FactorId factor) const { return find(factor) != nullptr; }
};

/// One FACTORS row.
struct OpFactors {
  std::string_view text;
  uint8_t operandCount = 0, resultCount = 0, factorCount = 0;
  std::array<FactorValue, kOperandsOfOpMax> operandValues{};
  std::array<FactorValue, kResultsOfOpMax> resultValues{};
  std::array<char, kFactorsOfOpMax> letters{};
  /// The factor whose extent it has: that of `s` for `s'`, else itself.
  std::array<FactorId, kFactorsOfOpMax> extentOf{};
  /// `x=name`: the attribute that is its extent; 0 says nothing.
  std::array<std::optional<AttrKey>, kFactorsOfOpMax> attrOf{};
  FactorId members = kNoFactor; ///< `x=group`: its extent is the number of members of the group
  std::optional<AttrKey> reversedBy; ///< with this attribute operands and results change places

  /// The values as a row has them: operand and result i, in the order of an op's list. A list has
  /// one entry, which all of its values share.
  const FactorValue &operand(size_t i) const {
    return operandValues[i < operandCount ? i : operandCount - 1u];
  }
  const FactorValue &result(size_t i) const { return resultValues[i]; }
  constexpr std::span<const FactorValue> operands() const {
    return {operandValues.data(), operandCount};
  }
  constexpr std::span<const FactorValue> results() const {
    return {resultValues.data(), resultCount};
  }

  /// Whether an operand marks the factor `!`, or keeps it whole beside others.
  bool isNeededWhole(FactorId factor) const;
  /// Whether the attribute transposes the operand.
  constexpr bool isTurned(size_t at, AttrKey by) const {
    return at < operandCount && operandValues[at].turnedBy == by;
  }
  /// The operand of which a result has places along a dimension: what the op chooses by.
  std::optional<size_t> chosenBy() const;
  /// Whether parts along the factor make the result as a sum: the result lacks it, and no operand
  /// needs it whole.
  bool isSummed(FactorId factor, size_t result) const;
  /// Whether counts say which rows along the factor are there.
  bool isBound(FactorId factor) const;
  /// The operand that counts rows along the factor, or has places along it; nothing without one.
  std::optional<size_t> boundBy(FactorId factor) const;
  /// The operand, if the op can have it, that counts the rows along a factor of which the op may
  /// leave the others out.
  std::optional<size_t> leavesOutBy() const;
  /// By its letter, which is a capital one for a primed letter.
  constexpr FactorId find(char letter) const {
    for (size_t i = 0; i < factorCount; ++i)
      if (letters[i] == letter)
        return static_cast<FactorId>(i);
    return kNoFactor;
  }
};

const OpFactors &factorsOf(OpKind kind);
/// Whether it multiplies two matrices and may transpose each: which of them it does says which of a
/// layer's products it is.
bool isLayerProduct(OpKind kind);
/// Those of an op with an epilogue, which follow from the rows of both: what the epilogue works on
/// has the dimensions of what the op makes.
const OpFactors &factorsOf(OpKind kind, Epilogue epilogue);
inline const OpFactors &factorsOf(const Op &op) { return factorsOf(op.kind, op.epilogue); }
/// The operand with the counts by which the op leaves rows out, if it has them.
std::optional<size_t> leavesOutBy(const Op &op);
inline bool leavesRowsOut(const Op &op) { return leavesOutBy(op).has_value(); }
/// Those that another FACTORS row of the op would say; the text has to outlive them. Nothing if the
/// row is malformed, or does not fit the OP row. Tests hold wrong rows against kernels.
std::optional<OpFactors> parseFactors(OpKind kind, std::string_view text);

} // namespace shardc::plan
