// Einsum-like description of each op: the dimensions in its row of Ops.def, or those that follow
// from its steps. A factor is a dimension of the op, named by a word; every operand and result
// lists the factors of its dimensions. Shape checks, sharding and the verifier all read this table.
// docs/factors.md teaches the notation; OpColumns.def defines each mark.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

using FactorId = int8_t; ///< index of a factor in a row, in the order of first occurrence
inline constexpr FactorId kNoFactor = -1;
inline constexpr size_t kFactorsOfOpMax = 8;
inline constexpr size_t kDimsOfValueMax = 4;
inline constexpr size_t kAtomsOfValueMax = 6;
inline constexpr size_t kOperandsOfOpMax = 12;

/// One word of a value: a factor, or a number.
struct FactorAtom {
  enum Form : uint8_t {
    Plain,    ///< `x`: the factor
    Number,   ///< `2`: that many equal blocks
    Beside,   ///< `x+2`: the factor plus `number` elements that all shards share; keeps it whole
    Blocks,   ///< `x/128`: one element per started block of `number`
    Mirrored, ///< `~x`: of 2·X chunks, chunks x and 2·X-1-x for each x of a factor of extent X
    Joined,   ///< `x+y`: all of the factor, then all of another one; keeps both whole
  };
  FactorId factor = kNoFactor; ///< kNoFactor for a Number
  FactorId other = kNoFactor;  ///< only for Joined: the second factor
  Form form = Plain;
  uint16_t number = 0;
  uint8_t dim = 0;             ///< the dimension of the value, counted from 0
  bool isNeededWhole = false;  ///< marked `!`
  bool isCounted = false;      ///< marked `#`
  bool isKnownByIndex = false; ///< marked `@`
  bool isShare = false;        ///< `%` marks this factor
  bool isInSharedDim = false;  ///< the factor is in a dimension that `%` marks
  bool isBound = false;        ///< `?`: row counts say which of its rows are valid
  /// Whether a rank of the op's group has its share of the dimension.
  constexpr bool isOfShare() const { return isShare || isInSharedDim; }
  /// Extent of the dimension, given the extents of its factors.
  int64_t extent(int64_t ofFactor, int64_t ofOther = 0) const;
};

/// The dimensions of one operand or result.
struct FactorValue {
  enum Form : uint8_t {
    Dims,   ///< factors
    Opaque, ///< `.`: its elements have an order of their own
    Scales, ///< `$`: scales of 8-bit numbers: one for all, or one per block
  };
  /// For results: how partial results along a factor that the result lacks are combined.
  enum Combine : uint8_t {
    Sum,
    Largest, ///< `^`
    Same,    ///< `=`: no reduction; the value is the same in every part
  };
  Form form = Dims;
  Combine combine = Sum;
  bool isList = false;                 ///< `*`: each value of the list has its own extent
  bool isAddedOnce = false;            ///< `+`: a term that exactly one partial sum may add
  FactorId pointsInto = kNoFactor;     ///< `>v`: its elements are indices along v
  FactorId countsRowsOf = kNoFactor;   ///< `|x`: its elements count rows along x
  std::optional<AttrKey> transposedBy; ///< this attribute swaps its last two dimensions
  uint8_t dimCount = 0, atomCount = 0;
  std::array<FactorAtom, kAtomsOfValueMax> atoms{};

  constexpr std::span<const FactorAtom> words() const { return {atoms.data(), atomCount}; }
  /// The word with this factor; null if the value lacks it.
  constexpr const FactorAtom *find(FactorId factor) const {
    for (const FactorAtom &atom : words())
      if ((atom.factor == factor || atom.other == factor) && factor != kNoFactor)
        return &atom;
    return nullptr;
  }
  bool has(FactorId factor) const { return find(factor) != nullptr; }
  /// Whether its first dimension is one factor and nothing else.
  constexpr bool beginsWithFactor() const {
    return atomCount > 0 && atoms[0].form == FactorAtom::Plain &&
           (atomCount == 1 || atoms[1].dim != 0);
  }
};

/// What the proof of plans asks of a factor. Words without a role are free.
enum class FactorRole : uint8_t {
  None,
#define FACTOR_ROLES(word, role, meaning) role,
#include "runtime/plan/OpColumns.def"
};
constexpr FactorRole roleOf(std::string_view word) {
#define FACTOR_ROLES(name, role, meaning)                                                          \
  if (word == name)                                                                                \
    return FactorRole::role;
#include "runtime/plan/OpColumns.def"
  return FactorRole::None;
}

/// The factors of an op.
struct OpFactors {
  uint8_t operandCount = 0, resultCount = 0, factorCount = 0;
  std::array<FactorValue, kOperandsOfOpMax> operandValues{};
  std::array<FactorValue, kResultsOfOpMax> resultValues{};
  std::array<std::string_view, kFactorsOfOpMax> names{};
  std::array<FactorRole, kFactorsOfOpMax> roles{}; ///< by their names
  /// The factor whose extent it has: x for `x'`, otherwise itself.
  std::array<FactorId, kFactorsOfOpMax> extentOf{};
  /// `x=name`: the attribute that holds its extent; an attribute of 0 determines nothing.
  std::array<std::optional<AttrKey>, kFactorsOfOpMax> attrOf{};
  FactorId members = kNoFactor; ///< `x=group`: its extent is the number of members of the group
  std::optional<AttrKey> reversedBy; ///< this attribute exchanges operands and results

  /// The row's entry for operand or result i of an op. All values of a list share one entry.
  constexpr const FactorValue &operand(size_t i) const {
    return operandValues[i < operandCount ? i : operandCount - 1u];
  }
  constexpr const FactorValue &result(size_t i) const { return resultValues[i]; }
  constexpr std::span<const FactorValue> operands() const {
    return {operandValues.data(), operandCount};
  }
  constexpr std::span<const FactorValue> results() const {
    return {resultValues.data(), resultCount};
  }

  /// Whether an operand needs the factor unsharded: the factor is marked `!`, or is joined with
  /// another one in a dimension.
  bool isNeededWhole(FactorId factor) const;
  /// Whether the attribute transposes the operand.
  constexpr bool isTransposed(size_t at, AttrKey by) const {
    return at < operandCount && operandValues[at].transposedBy == by;
  }
  /// The operand whose elements a result's indices refer to: the op chooses among them.
  std::optional<size_t> chosenBy() const;
  /// Whether the op contracts the factor: the result lacks it and no operand needs it unsharded. A
  /// result computed from a shard along this factor is a partial sum.
  bool isSummed(FactorId factor, size_t result) const;
  /// Whether counts say which rows along the factor are valid.
  bool isBound(FactorId factor) const;
  /// Whether the row marks a dimension of which a rank of a group has its share.
  constexpr bool hasShares() const {
    auto isShared = [](const FactorValue &value) {
      return std::ranges::any_of(value.words(), &FactorAtom::isOfShare);
    };
    return std::ranges::any_of(operands(), isShared) || std::ranges::any_of(results(), isShared);
  }
  /// The operand with the row counts, or with indices, along the factor; nothing without one.
  std::optional<size_t> boundBy(FactorId factor) const;
  /// The optional operand with row counts that lets the op skip invalid rows.
  std::optional<size_t> leavesOutBy() const;
  constexpr FactorId find(std::string_view name) const {
    for (size_t i = 0; i < factorCount; ++i)
      if (names[i] == name)
        return static_cast<FactorId>(i);
    return kNoFactor;
  }
  constexpr void name(FactorId factor, std::string_view name) {
    names[static_cast<size_t>(factor)] = name;
    roles[static_cast<size_t>(factor)] = roleOf(name);
  }
};

const OpFactors &factorsOf(OpKind kind);
inline const OpFactors &factorsOf(const Op &op) { return factorsOf(op.kind); }
/// Whether the op is a matrix product that may transpose each factor. The transposes tell forward,
/// input-gradient and weight-gradient products apart.
bool isLayerProduct(OpKind kind);
/// The operand with the row counts that let this op skip rows, if it has one.
std::optional<size_t> leavesOutBy(const Op &op);
inline bool leavesRowsOut(const Op &op) { return leavesOutBy(op).has_value(); }
/// Parses a signature, whose text must outlive the result; nothing if it is malformed. Tests use it
/// to compare wrong rows with kernels.
std::optional<OpFactors> parseFactors(std::string_view signature);

} // namespace shardc::plan
