// Static properties of each op: its row in Ops.def, or what follows from its steps. Verifier,
// passes, predictions and executor read them here, so a new op describes itself in one place. A row
// that is malformed does not compile (OpRows.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/CollectiveKind.h"

namespace shardc::plan {

/// The attributes of ops, in the order in which an op stores and prints them.
enum class AttrKey : uint8_t {
#define ATTR_BOOL(field, default_, doc) field,
#define ATTR_INT(field, default_, least, most, doc) field,
#define ATTR_FLOAT(field, default_, doc) field,
#include "runtime/base/Attrs.def"
};

inline constexpr std::string_view kAttrNames[] = {
#define ATTR_BOOL(field, default_, doc) #field,
#define ATTR_INT(field, default_, least, most, doc) #field,
#define ATTR_FLOAT(field, default_, doc) #field,
#include "runtime/base/Attrs.def"
};
inline constexpr int kAttrCount = std::size(kAttrNames);

constexpr std::optional<AttrKey> parseAttrKey(std::string_view name) {
  const auto *at = std::ranges::find(kAttrNames, name);
  return at == std::end(kAttrNames) ? std::nullopt
                                    : std::optional(static_cast<AttrKey>(at - kAttrNames));
}

/// A set of attributes.
class AttrSet {
public:
  constexpr bool has(AttrKey key) const { return (wordOf(key) & bitOf(key)) != 0; }
  constexpr void add(AttrKey key) { bits_[static_cast<size_t>(key) / 64] |= bitOf(key); }
  constexpr void remove(AttrKey key) { bits_[static_cast<size_t>(key) / 64] &= ~bitOf(key); }
  /// The first attribute of the set, in the order in which an op stores them.
  constexpr std::optional<AttrKey> first() const {
    for (size_t i = 0; i < bits_.size(); ++i)
      if (bits_[i] != 0)
        return static_cast<AttrKey>(i * 64 + static_cast<size_t>(std::countr_zero(bits_[i])));
    return std::nullopt;
  }

private:
  static constexpr uint64_t bitOf(AttrKey key) {
    return uint64_t{1} << static_cast<size_t>(key) % 64;
  }
  constexpr uint64_t wordOf(AttrKey key) const { return bits_[static_cast<size_t>(key) / 64]; }

  std::array<uint64_t, (kAttrCount + 63) / 64> bits_{};
};

/// The ops, in the order of Ops.def.
enum class OpKind : uint8_t {
#define OP(enumerator, ...) enumerator,
#include "runtime/plan/Ops.def"
};

inline constexpr int kOpCount = 0
#define OP(enumerator, ...) +1
#include "runtime/plan/Ops.def"
    ;

/// Trait of an op; the head of Ops.def explains each.
enum class OpTraits : uint8_t { None, Alias, Collective, Pure, Copy };

/// The resource that limits the speed of an op.
enum class CostClass : uint8_t {
  Nothing,   ///< executes nothing
  Memory,    ///< memory bandwidth; rates per op are in compiler/predict/KernelTable.def
  Product,   ///< a matrix product
  Attention, ///< the products of attention
  Head,      ///< the products of output projection and loss
  Transfer   ///< links between ranks; rates are in compiler/predict/LinkTable.def
};

// Possible entries of the columns. OpColumns.def has the meaning of each; docs/ops.md prints it.
/// Which bytes of operands and results an op moves.
enum class OpTraffic : uint8_t {
#define TRAFFICS(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
/// The memory that the op's kernel needs in addition to operands and results.
enum class Workspace : uint8_t {
#define WORKSPACES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
/// Which of the op's values hold a block of parameters.
enum class BlockUse : uint8_t {
#define BLOCK_USES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
/// The op's part in the sums of a step: along which ranks its results vary, and to which
/// microbatches their contributions belong.
enum class SumRole : uint8_t {
#define SUM_ROLES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
/// Which recomputation setting recomputes the op in the backward pass.
enum class Recompute : uint8_t {
#define RECOMPUTES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};

/// Floating-point operations of an op: `times` the basic operation of its cost class (one matrix
/// product, one attention, one output projection), plus a number per element of the first result
/// and of the first operand.
struct OpWork {
  CostClass cost = CostClass::Nothing;
  double times = 0;
  double scores = 0;     ///< for attention: additional products of queries and keys
  double modelTimes = 0; ///< the part of `times` that counts as model FLOPs
  double perResult = 0;  ///< per element of the first result
  double perOperand = 0; ///< per element of the first operand; for a list, of all operands
  bool isGradient = false;
};

/// Entries of the column `work`. OpColumns.def explains them.
namespace works {
constexpr OpWork nothing() { return {}; }
constexpr OpWork moves() { return {.cost = CostClass::Memory}; }
constexpr OpWork perResult(double n) { return {.cost = CostClass::Memory, .perResult = n}; }
constexpr OpWork perOperand(double n) { return {.cost = CostClass::Memory, .perOperand = n}; }
constexpr OpWork product(double n) {
  return {.cost = CostClass::Product, .times = 1, .modelTimes = 1, .perResult = n};
}
constexpr OpWork attention() { return {.cost = CostClass::Attention, .times = 1, .modelTimes = 1}; }
/// The scores are recomputed, which does not count as model FLOPs. Four products of that size
/// follow.
constexpr OpWork attentionBwd() {
  return {
      .cost = CostClass::Attention, .times = 2, .scores = 1, .modelTimes = 2, .isGradient = true};
}
constexpr OpWork head(double n) { return {.cost = CostClass::Head, .times = n, .modelTimes = n}; }
constexpr OpWork transfer(double n) { return {.cost = CostClass::Transfer, .perOperand = n}; }
} // namespace works

/// A collective, and the op that computes its operand's gradient from its result's gradient.
struct CollectiveInfo {
  CollectiveKind kind;
  std::optional<OpKind> conjugate; ///< empty: the operand's gradient equals the result's
};

/// How a result is recomputed: by op `by`, from the operands and results of the original op named
/// in `values`.
struct MadeAgain {
  OpKind by;
  std::string_view values;
};

/// A form of an op that also quantises what it makes, or computes only the amax (FORM rows).
struct QuantisingForm {
  OpKind producer, quantizer;
};

/// How an op maps partial sums to partial sums. Together: if all its linear operands are partial
/// sums. Alone: if exactly one of them is.
enum class Linearity : uint8_t { None, Together, Alone };

inline constexpr size_t kResultsOfOpMax = 7;
/// Number of operands or results of a row that ends with a list.
inline constexpr uint8_t kAnyNumber = 255;

/// The entries of a row's facts. Ops.def defines a macro for each, and explains them.
struct OpFacts {
  OpTraits traits = OpTraits::None;
  std::optional<CollectiveInfo> collective; ///< for OpTraits::Collective
  OpWork work = works::moves();
  OpTraffic traffic = OpTraffic::All;
  Workspace workspace = Workspace::None;
  SumRole sum = SumRole::Computes;
  Recompute recompute = Recompute::Never;
  int64_t nodes = 0;       ///< upper bound of CUDA graph nodes
  int64_t tensorNodes = 0; ///< additional nodes per randomly initialised tensor of its block
  BlockUse block = BlockUse::None;
  std::string_view holds, weights, ranges; ///< of BLOCK: names of operands and results
  /// How the op is linear in the operands of these names.
  Linearity linearity = Linearity::None;
  std::string_view linear;
  /// The part of the whole that a rank computes, depending on its index in the op's group; empty:
  /// the op has no group.
  std::string_view indexed;
  /// The consequence of running the op on a rank's own rows only; empty: it needs the rows of all
  /// ranks.
  std::string_view ownRows;
  std::optional<OpKind> norm;         ///< only for Recompute::FusedNorm: the norm of the sum
  std::optional<MadeAgain> again;     ///< how result y is recomputed
  std::optional<OpKind> reemits;      ///< the op whose result the optional result y is again
  std::optional<OpKind> weighted;     ///< the op that also multiplies each row of y by a weight
  std::optional<OpKind> lossGradient; ///< for a loss op: the op that starts its gradients
  std::string_view squaresResult, squaredResult, scaleResult, scaledResults;
  int8_t reuses = -1;         ///< the operand whose buffer the first result reuses
  std::string_view moreAttrs; ///< of a fused op: attributes that no step has
  bool isStep = false;        ///< plans have it only as a step of another op

  /// These facts, and another one.
  template <typename T, typename V> constexpr OpFacts with(T OpFacts::*field, V value) const {
    OpFacts facts = *this;
    facts.*field = value;
    return facts;
  }
};

/// One row of Ops.def in parsed form. Sets of operands and results are bit sets.
struct OpInfo : OpFacts {
  std::string_view name, doc;
  std::string_view signature;               ///< of a fused op only names
  std::string_view steps;                   ///< of a fused op
  uint8_t operandsMin = 0, operandsMax = 0; ///< operandsMax is kAnyNumber for a list
  uint8_t resultsMin = 0, resultsMax = 0;
  std::string_view operands, results; ///< names, with `?` and `*`
  AttrSet attrs;                      ///< those that the op may have
  AttrSet needed;                     ///< those of them that it must have
  AttrSet unmeant;                    ///< those of them that are not part of its value
  /// Operand whose buffer result r reuses in place, or -1.
  std::array<int8_t, kResultsOfOpMax> inPlace{};
  /// The result with the scale of result r, which has 8-bit elements, or -1.
  std::array<int8_t, kResultsOfOpMax> scaleOf{};
  uint16_t linearOperands = 0;
  /// With a BLOCK entry: values that hold the op's block, the subset that are weights (not
  /// gradients or moments), and the value whose parameter ranges the kernel receives.
  uint8_t blockOperands = 0, blockResults = 0;
  uint8_t weightOperands = 0, weightResults = 0;
  uint8_t rangeOperands = 0, rangeResults = 0;
  bool startsGradient = false; ///< it starts the gradients of a loss
  /// `squares` is the result that holds the sum of squares of result `squared`; -1 without one.
  int8_t squares = -1, squared = -1;
  std::optional<QuantisingForm> form; ///< of a FORM row
  uint8_t quantised = 0;              ///< results that its forms quantise instead of writing them
  int8_t queries = -1;                ///< for CostClass::Attention: the operand with the queries
  int8_t keys = -1;                   ///< for CostClass::Attention: the operand with the keys
  int8_t values = -1;                 ///< for CostClass::Attention: the operand with the values
  bool hasPackedHeads = false;        ///< one operand holds queries, keys and values
  bool hasSlices = false; ///< queries and keys are slices of sequences with explicit positions

  /// Whether the result depends on the rank's index in the op's group (an INDEXED entry).
  constexpr bool takesIndex() const { return !indexed.empty(); }
  /// Whether the op may treat a rank's own rows as if they were all (an OWN_ROWS entry).
  constexpr bool takesOwnRows() const { return !ownRows.empty(); }
  bool isOptimizer() const { return sum == SumRole::Optimizes; }
  bool keepsBlock() const { return block == BlockUse::Keeps || block == BlockUse::NamedKeeps; }
  /// Whether operand i or result r is the value whose parameter ranges the kernel receives.
  bool isRangeOperand(size_t i) const { return isIn(rangeOperands, i); }
  bool isRangeResult(size_t r) const { return isIn(rangeResults, r); }
  /// Whether its kernel receives the parameter ranges of the shards that it works on.
  bool takesRanges() const {
    return block == BlockUse::List || (rangeOperands | rangeResults) != 0;
  }
  constexpr Linearity linearityOf(size_t operand) const {
    return operand < 16 && (linearOperands >> operand & 1u) != 0 ? linearity : Linearity::None;
  }

private:
  static bool isIn(uint8_t set, size_t at) { return at < 8 && (set >> at & 1u) != 0; }
};

/// A list of at most `kMost` items without memory of its own.
template <typename T, size_t kMost> struct ShortList {
  std::array<T, kMost> items{};
  uint8_t count = 0;
  constexpr void push_back(const T &item) { items[count++] = item; }
  constexpr const T *begin() const { return items.data(); }
  constexpr const T *end() const { return items.data() + count; }
  constexpr size_t size() const { return count; }
  constexpr const T &operator[](size_t i) const { return items[i]; }
  constexpr const T &back() const { return items[count - 1u]; }
};

/// The text without leading and trailing blanks.
constexpr std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' '))
    text.remove_prefix(1);
  while (text.ends_with(' '))
    text.remove_suffix(1);
  return text;
}

/// Splits off the text before the first `end`, and drops that `end`.
constexpr std::string_view takeUntil(std::string_view &text, char end) {
  size_t at = std::min(text.find(end), text.size());
  std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return trimmed(taken);
}

/// The operands or the results of a signature, without clauses.
constexpr std::string_view valuesOf(std::string_view signature, bool areResults) {
  std::string_view values = takeUntil(signature, ';');
  size_t arrow = std::min(values.find("->"), values.size());
  return trimmed(areResults ? values.substr(std::min(arrow + 2, values.size()))
                            : values.substr(0, arrow));
}
/// Position of a name in a list of values, each with or without `: type[dimensions]` and marks; -1
/// if it is missing.
constexpr int positionOf(std::string_view values, std::string_view name) {
  const char end = values.find(':') == std::string_view::npos ? ' ' : ',';
  for (int at = 0; !values.empty(); ++at)
    if (std::string_view value = takeUntil(values, end);
        value.substr(0, value.find_first_of("?*:/")) == name)
      return at;
  return -1;
}
/// Position of a name among the operands or the results of a signature; -1 if it is missing.
constexpr int valueNamed(std::string_view signature, std::string_view name, bool isResult) {
  return positionOf(valuesOf(signature, isResult), name);
}

namespace names {
inline constexpr std::string_view kNames[] = {
#define OP(enumerator, name, ...) name,
#include "runtime/plan/Ops.def"
};
inline constexpr std::string_view kSignatures[] = {
#define OP(enumerator, name, signature, ...) signature,
#include "runtime/plan/Ops.def"
};
/// The name of an operand or result; a name that the op's row lacks does not compile.
template <OpKind kind, bool kIsResult> struct NameOf {
  size_t index;
  consteval NameOf(const char *name)
      : index(static_cast<size_t>(
            valueNamed(kSignatures[static_cast<size_t>(kind)], name, kIsResult))) {
    if (valueNamed(kSignatures[static_cast<size_t>(kind)], name, kIsResult) < 0)
      throw "the op has no value of this name";
  }
};
} // namespace names

/// Position of the operand or result with this name in the op's row.
template <OpKind kind> consteval size_t operandIndex(names::NameOf<kind, false> name) {
  return name.index;
}
template <OpKind kind> consteval size_t resultIndex(names::NameOf<kind, true> name) {
  return name.index;
}

extern const std::array<OpInfo, kOpCount> kOpInfos; ///< indexed by kind
inline const OpInfo &opInfo(OpKind kind) { return kOpInfos[static_cast<size_t>(kind)]; }
/// The FORM row of a producer and a quantizer; nothing if they have none.
std::optional<OpKind> quantisingForm(OpKind producer, OpKind quantizer);
/// The op with this name, such as `swiglu` or `swiglu.amax`; nothing if there is none.
std::optional<OpKind> parseOpKind(std::string_view name);

} // namespace shardc::plan
