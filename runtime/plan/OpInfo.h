// What is known of an op by its kind: the columns of Ops.def. The verifier, the passes, the
// predictions and the executor read them here, so that a new op has its facts in one place; a row
// that lacks one does not compile (OpInfo.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/CollectiveKind.h"

namespace shardc::plan {

enum class OpKind : uint8_t {
#define OP(enumerator, name, operands, results, traits, doc) enumerator,
#include "runtime/plan/Ops.def"
};

inline constexpr int kOpCount = 0
#define OP(enumerator, name, operands, results, traits, doc) +1
#include "runtime/plan/Ops.def"
    ;

enum class OpTraits : uint8_t { None, Alias, Collective, Pure, Copy };

/// What limits the speed of an op.
enum class CostClass : uint8_t {
  Nothing,   ///< it executes nothing
  Memory,    ///< bytes: each op has a rate in compiler/predict/KernelTable.def
  Product,   ///< a matrix product
  Attention, ///< the products of attention
  Head,      ///< the products of output projection and loss
  Transfer   ///< links between ranks: compiler/predict/LinkTable.def
};

// What the columns may say; OpColumns.def has the meaning of each entry, docs/ops.md prints it.
enum class OpTraffic : uint8_t {
#define TRAFFICS(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
enum class Workspace : uint8_t {
#define WORKSPACES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
enum class BlockUse : uint8_t {
#define BLOCK_USES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
enum class Padding : uint8_t {
#define PADDINGS(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
enum class SumRole : uint8_t {
#define SUM_ROLES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};
enum class Recompute : uint8_t {
#define RECOMPUTES(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};

enum class EpilogueForms : uint8_t {
#define EPILOGUE_FORMS(enumerator, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
};

/// The op that works on what another one makes, as a part of it.
enum class Epilogue : uint8_t {
  None,
#define EPILOGUE(enumerator) enumerator,
#include "runtime/plan/OpColumns.def"
};
inline constexpr int kEpilogueCount = 1
#define EPILOGUE(enumerator) +1
#include "runtime/plan/OpColumns.def"
    ;
/// The epilogue that an op may become.
constexpr std::optional<Epilogue> epilogueOf(OpKind kind) {
#define EPILOGUE(enumerator)                                                                       \
  if (kind == OpKind::enumerator)                                                                  \
    return Epilogue::enumerator;
#include "runtime/plan/OpColumns.def"
  return std::nullopt;
}
/// The op that an epilogue other than None is: the inverse of epilogueOf.
constexpr OpKind opOfEpilogue(Epilogue epilogue) {
  constexpr OpKind kOps[] = {
#define EPILOGUE(enumerator) OpKind::enumerator,
#include "runtime/plan/OpColumns.def"
  };
  return kOps[static_cast<size_t>(epilogue) - 1];
}

/// Floating-point operations of an op: `times` those of its class (one product of its operands, one
/// attention, one projection), and a number for each element of the first result and of the first
/// operand.
struct OpWork {
  CostClass cost = CostClass::Nothing;
  double times = 0;
  double scores = 0;     ///< products of queries and keys beside those, of attention
  double modelTimes = 0; ///< of them, those that the model's definition asks for
  double perResult = 0;  ///< for each element of the first result
  double perOperand = 0; ///< for each element of the first operand, or of all operands of a list
  bool isGradient = false;
};

/// Entries of the column `work`; OpColumns.def says what they mean.
namespace works {
constexpr OpWork nothing() { return {}; }
constexpr OpWork moves() { return {.cost = CostClass::Memory}; }
constexpr OpWork perResult(double n) { return {.cost = CostClass::Memory, .perResult = n}; }
constexpr OpWork perOperand(double n) { return {.cost = CostClass::Memory, .perOperand = n}; }
constexpr OpWork product(double n) {
  return {.cost = CostClass::Product, .times = 1, .modelTimes = 1, .perResult = n};
}
constexpr OpWork attention() { return {.cost = CostClass::Attention, .times = 1, .modelTimes = 1}; }
/// Scores again, which do not count for the model, then four products of the same size.
constexpr OpWork attentionBwd() {
  return {
      .cost = CostClass::Attention, .times = 2, .scores = 1, .modelTimes = 2, .isGradient = true};
}
constexpr OpWork head(double n) { return {.cost = CostClass::Head, .times = n, .modelTimes = n}; }
constexpr OpWork transfer(double n) { return {.cost = CostClass::Transfer, .perOperand = n}; }
} // namespace works

/// A collective, and the op that computes the gradient of its operand from that of its result.
struct CollectiveInfo {
  CollectiveKind kind;
  std::optional<OpKind> conjugate; ///< empty: the gradient is the same
};

/// What makes a result again: an op, and what it takes of the operands and results of the first.
struct MadeAgain {
  OpKind by;
  std::string_view values;
};

inline constexpr size_t kResultsOfOpMax = 7;
/// Of operands or results, where a row has a list.
inline constexpr uint8_t kAnyNumber = 255;

/// One row of Ops.def with its lists taken apart, or an op with an epilogue by the rows of both.
/// Sets of operands and results are a bit each.
struct OpInfo {
  std::string_view name;
  uint16_t index = 0; ///< in allOpForms()
  OpTraits traits = OpTraits::None;
  uint8_t operandsMin = 0, operandsMax = 0; ///< kAnyNumber for a list
  uint8_t resultsMin = 0, resultsMax = 0;
  std::string_view operands, results, doc;
  /// Operand whose buffer result r shares by the table, or -1.
  std::array<int8_t, kResultsOfOpMax> inPlace{};
  /// Result that is the scale of result r, which is of 8 bits, or -1.
  std::array<int8_t, kResultsOfOpMax> scaleOf{};
  OpWork work;
  OpTraffic traffic = OpTraffic::All;
  Workspace workspace = Workspace::None;
  BlockUse block = BlockUse::None;
  Padding padding = Padding::Refused;
  SumRole sum = SumRole::Computes;
  Recompute recompute = Recompute::Never;
  /// With a BLOCK row: the values that hold the named block, those of them that hold weights and
  /// no gradient or moment, and the value whose parameters the kernel is given.
  uint8_t blockOperands = 0, blockResults = 0;
  uint8_t weightOperands = 0, weightResults = 0;
  uint8_t rangeOperands = 0, rangeResults = 0;
  std::optional<CollectiveInfo> collective; ///< for OpTraits::Collective
  /// What a rank has of the whole by its index in the op's group; empty: no group may be named.
  std::string_view indexed;
  /// What follows if it takes the rows of a rank for all; empty: it needs those of all ranks.
  std::string_view ownRows;
  int64_t nodes = 1;                  ///< of a captured graph, at most
  int64_t tensorNodes = 0;            ///< more of them for each tensor of its block that it draws
  std::optional<OpKind> norm;         ///< for Recompute::FusedNorm: the norm of the sum
  std::optional<MadeAgain> again;     ///< result y
  std::optional<OpKind> reemits;      ///< made before what its optional result y is again
  std::optional<OpKind> weighted;     ///< makes result y with a weight for each row
  std::optional<OpKind> lossGradient; ///< of an op whose results are losses: what starts gradients
  bool startsGradient = false;        ///< it is that of a loss
  /// The result that is the sum of the squares of another one, and that one; -1 without one.
  int8_t squares = -1, squared = -1;
  /// By epilogue; None where it has none of this kind, and in the first place.
  std::array<EpilogueForms, kEpilogueCount> epilogues{};
  double amaxWork = 0;    ///< of Epilogue::Amax: operations for each element of the first operand
  std::string_view makes; ///< the one or two results that epilogues work on
  bool needsEpilogue = false;  ///< may not stand in a plan without one
  int8_t queries = -1;         ///< for CostClass::Attention: the operand with the queries
  int8_t keys = -1;            ///< for CostClass::Attention: the operand with the keys
  int8_t values = -1;          ///< for CostClass::Attention: the operand with the values
  bool hasPackedHeads = false; ///< one operand has queries, keys and values
  bool hasSlices = false;      ///< queries and keys are slices of sequences, each with positions

  bool takes(Epilogue epilogue) const { return formsOf(epilogue) != EpilogueForms::None; }
  EpilogueForms formsOf(Epilogue epilogue) const {
    return epilogues[static_cast<size_t>(epilogue)];
  }
  bool takesIndex() const { return !indexed.empty(); }
  bool takesOwnRows() const { return !ownRows.empty(); }
  bool isOptimizer() const { return sum == SumRole::Optimizes; }
  bool keepsBlock() const { return block == BlockUse::Keeps || block == BlockUse::NamedKeeps; }
  bool isBlockOperand(size_t i) const { return isIn(blockOperands, i); }
  bool isBlockResult(size_t r) const { return isIn(blockResults, r); }
  bool isWeightOperand(size_t i) const { return isIn(weightOperands, i); }
  bool isWeightResult(size_t r) const { return isIn(weightResults, r); }
  bool isRangeOperand(size_t i) const { return isIn(rangeOperands, i); }
  bool isRangeResult(size_t r) const { return isIn(rangeResults, r); }
  /// Whether its kernel is given the parameters of shards that it works on.
  bool takesRanges() const {
    return block == BlockUse::List || (rangeOperands | rangeResults) != 0;
  }

private:
  static bool isIn(uint8_t set, size_t at) { return at < 8 && (set >> at & 1u) != 0; }
};

/// Text of a row without the blanks around it.
constexpr std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' '))
    text.remove_prefix(1);
  while (text.ends_with(' '))
    text.remove_suffix(1);
  return text;
}

/// Takes what stands before the first `end` off the text, and the end itself.
constexpr std::string_view takeUntil(std::string_view &text, char end) {
  size_t at = std::min(text.find(end), text.size());
  std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return trimmed(taken);
}

/// How many names a list has.
constexpr size_t countNames(std::string_view names) {
  size_t count = 0;
  for (; !names.empty(); ++count)
    takeUntil(names, ' ');
  return count;
}

/// Position of a word in a list of names, without marks; -1 if it is not there.
constexpr int positionOf(std::string_view names, std::string_view word) {
  for (int at = 0; !names.empty(); ++at) {
    size_t end = std::min(names.find(' '), names.size());
    std::string_view name = names.substr(0, end);
    if (name.ends_with('?') || name.ends_with('*'))
      name.remove_suffix(1);
    if (name == word)
      return at;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return -1;
}

/// Counts a row's names; a trailing `?` lowers the minimum, a trailing `*` lifts the maximum.
constexpr void countNames(std::string_view names, uint8_t &min, uint8_t &max) {
  min = max = 0;
  while (!names.empty()) {
    size_t end = std::min(names.find(' '), names.size());
    char last = names[end - 1];
    ++max;
    if (last == '*')
      max = kAnyNumber;
    else if (last != '?')
      ++min;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

namespace names {
inline constexpr std::string_view kOperands[] = {
#define OP(enumerator, name, operands, results, traits, doc) operands,
#include "runtime/plan/Ops.def"
};
inline constexpr std::string_view kResults[] = {
#define OP(enumerator, name, operands, results, traits, doc) results,
#include "runtime/plan/Ops.def"
};
/// A name that the op's row has; another one does not compile.
template <OpKind kind, const std::string_view (&kLists)[kOpCount]> struct NameOf {
  size_t index;
  consteval NameOf(const char *name)
      : index(static_cast<size_t>(positionOf(kLists[static_cast<size_t>(kind)], name))) {
    if (positionOf(kLists[static_cast<size_t>(kind)], name) < 0)
      throw "the op has no value of this name";
  }
};
} // namespace names

/// Position of the operand, or result, that the row of the op calls so.
template <OpKind kind> consteval size_t operandIndex(names::NameOf<kind, names::kOperands> name) {
  return name.index;
}
template <OpKind kind> consteval size_t resultIndex(names::NameOf<kind, names::kResults> name) {
  return name.index;
}

extern const std::array<OpInfo, kOpCount> kOpInfos; ///< by kind
inline const OpInfo &opInfo(OpKind kind) { return kOpInfos[static_cast<size_t>(kind)]; }
/// That of an op with an epilogue; that of the kind where it takes no such epilogue.
const OpInfo &fusedOpInfo(OpKind kind, Epilogue epilogue);
inline const OpInfo &opInfo(OpKind kind, Epilogue epilogue) {
  return epilogue == Epilogue::None ? opInfo(kind) : fusedOpInfo(kind, epilogue);
}

/// Of each kind, and of each with each of its epilogues.
struct OpForm {
  OpKind kind;
  Epilogue epilogue = Epilogue::None;
};
std::span<const OpForm> allOpForms(); ///< by OpInfo::index
/// `swiglu`, `swiglu.amax`
std::optional<OpForm> parseOpForm(std::string_view name);

} // namespace shardc::plan
