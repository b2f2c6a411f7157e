// Parses the TYPES rows of Ops.def at compile time. A row that is missing, malformed, or does not
// fit its OP row is a compile error. The rows of ops with epilogues are composed on first use.
#include "runtime/plan/OpTypes.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace shardc::plan {
namespace {

/// An error in a row; the compiler prints the number.
enum class TypeFault : uint8_t {
  None,
  NoArrow,      ///< there must be exactly one `->` between operands and results
  OperandCount, ///< the OP row has another number of operands
  ResultCount,  ///< the OP row has another number of results
  Word,         ///< the word does not belong to the notation
  UnknownName   ///< `~x` and `=x` must name an operand or a result of the OP row
};

struct ParsedTypes {
  OpTypes types;
  int rows = 0;
  TypeFault fault = TypeFault::None;
};

/// Parses a row TYPES at compile time: `types of operands -> types of results`. Keeps the first
/// fault.
class TypesParser {
public:
  constexpr TypesParser(ParsedTypes &out, std::string_view operands, std::string_view results)
      : out_(out), operands_(operands), results_(results) {}

  constexpr void parse(std::string_view text) {
    constexpr std::string_view kArrow = "->";
    ++out_.rows;
    out_.types.text = text;
    size_t arrow = text.find(kArrow);
    if (arrow == std::string_view::npos)
      return fail(TypeFault::NoArrow);
    out_.types.operandCount = parseSide(text.substr(0, arrow), out_.types.operandTypes,
                                        countNames(operands_), TypeFault::OperandCount);
    out_.types.resultCount = parseSide(text.substr(arrow + kArrow.size()), out_.types.resultTypes,
                                       countNames(results_), TypeFault::ResultCount);
  }

private:
  constexpr void fail(TypeFault fault) {
    if (out_.fault == TypeFault::None)
      out_.fault = fault;
  }

  constexpr uint8_t parseSide(std::string_view text, std::span<ValueType> types, size_t wanted,
                              TypeFault countFault) {
    uint8_t count = 0;
    for (text = trimmed(text); !text.empty() && count < types.size();)
      types[count++] = parseValue(takeUntil(text, ','));
    if (count != wanted || !text.empty())
      fail(countFault);
    return count;
  }

  constexpr ValueType parseValue(std::string_view word) {
    ValueType type;
    if (word.starts_with('~') || word.starts_with('=')) {
      type.isSameType = word.starts_with('=');
      word.remove_prefix(1);
      int operand = positionOf(operands_, word), result = positionOf(results_, word);
      if (operand < 0 && result < 0)
        fail(TypeFault::UnknownName);
      type.isLikeOperand = operand >= 0;
      type.like = static_cast<int8_t>(operand >= 0 ? operand : result);
      return type;
    }
    size_t slash = word.find('/');
    if (slash != std::string_view::npos) {
      type.rank = slash + 2 == word.size() ? static_cast<uint8_t>(word[slash + 1] - '0') : 0;
      if (type.rank < 1 || type.rank > kDimsOfValueMax)
        fail(TypeFault::Word);
      word = word.substr(0, slash);
    }
    setClass(type, word);
    return type;
  }

  constexpr void setClass(ValueType &type, std::string_view word) {
#define VALUE_TYPES(enumerator, name, meaning)                                                     \
  if (word == name) {                                                                              \
    type.numbers = ValueType::enumerator;                                                          \
    return;                                                                                        \
  }
#include "runtime/plan/OpColumns.def"
    type.numbers = ValueType::Exact;
#define DTYPE(enumerator, name, bytes)                                                             \
  if (word == #name) {                                                                             \
    type.dtype = DType::enumerator;                                                                \
    return;                                                                                        \
  }
#include "runtime/base/DTypes.def"
    fail(TypeFault::Word);
  }

  ParsedTypes &out_;
  std::string_view operands_, results_;
};

constexpr std::array<ParsedTypes, kOpCount> parseTypes() {
  std::array<ParsedTypes, kOpCount> rows{};
#define TYPES(enumerator, text)                                                                    \
  TypesParser(rows[static_cast<size_t>(OpKind::enumerator)],                                       \
              names::kOperands[static_cast<size_t>(OpKind::enumerator)],                           \
              names::kResults[static_cast<size_t>(OpKind::enumerator)])                            \
      .parse(text);
#include "runtime/plan/Ops.def"
  return rows;
}

constexpr std::array<ParsedTypes, kOpCount> kTypeRows = parseTypes();

#define OP(enumerator, name, operands, results, traits, doc)                                       \
  static_assert(kTypeRows[static_cast<size_t>(OpKind::enumerator)].rows == 1,                      \
                "op " #enumerator " has one TYPES row");                                           \
  static_assert(kTypeRows[static_cast<size_t>(OpKind::enumerator)].fault == TypeFault::None,       \
                "the TYPES row of op " #enumerator " is malformed, or does not fit its OP row");
#include "runtime/plan/Ops.def"

const OpTypes &typesRowOf(OpKind kind) { return kTypeRows[static_cast<size_t>(kind)].types; }

/// The TYPES rows of ops with epilogues. Operands and results have the names that Epilogues.cpp
/// gives them. An epilogue that quantises needs an op whose result has the operand's type, a
/// floating-point type of at least 16 bits.
class FusedTypes {
public:
  FusedTypes() {
    for (const OpForm &form : allOpForms()) {
      types_.push_back(typesRowOf(form.kind));
      if (form.epilogue != Epilogue::None)
        fuse(form, opInfo(form.kind, form.epilogue), types_.back());
    }
  }
  const OpTypes &at(size_t form) const { return types_[form]; }

private:
  static void fuse(const OpForm &form, const OpInfo &info, OpTypes &types) {
    const OpInfo &producer = opInfo(form.kind);
    types.operandCount = types.resultCount = 0;
    forEachName(info.operands, [&](std::string_view name) {
      ValueType &type = types.operandTypes[types.operandCount++];
      int own = positionOf(producer.operands, name);
      type = own >= 0         ? ofProducer(typesRowOf(form.kind).operand(static_cast<size_t>(own)))
             : name == "seen" ? likeOperand(info, "amax", true)
                              : exact(DType::F32, 1);
    });
    forEachName(info.results, [&](std::string_view name) {
      types.resultTypes[types.resultCount++] = ofResult(form, info, name);
    });
  }

  static ValueType ofResult(const OpForm &form, const OpInfo &info, std::string_view name) {
    bool isBlocks = form.epilogue == Epilogue::QuantizeBlocks;
    if (name == "q" || name == "yt" || (name == "t" && positionOf(info.results, "q") < 0))
      return {.numbers = ValueType::Float8};
    if (name == "t") // a transposed copy has the type of the plain result
      return {.like = static_cast<int8_t>(positionOf(info.results, "q"))};
    if (name == "scale" || name == "tscale" || name == "yscale")
      return exact(DType::F32, isBlocks ? 2 : 0);
    if (name == "seen")
      return likeOperand(info, "seen", true);
    int own = positionOf(opInfo(form.kind).results, name);
    return own < 0 ? exact(DType::F32, 0)
                   : ofProducer(typesRowOf(form.kind).result(static_cast<size_t>(own)));
  }

  static ValueType ofProducer(ValueType type) {
    if (type.numbers == ValueType::Data)
      type.numbers = ValueType::Float;
    return type;
  }
  static ValueType exact(DType dtype, uint8_t rank) {
    return {.numbers = ValueType::Exact, .dtype = dtype, .rank = rank};
  }
  static ValueType likeOperand(const OpInfo &info, std::string_view name, bool isSameType) {
    return {.like = static_cast<int8_t>(positionOf(info.operands, name)),
            .isLikeOperand = true,
            .isSameType = isSameType};
  }

  template <typename Use> static void forEachName(std::string_view names, const Use &use) {
    while (!names.empty()) {
      size_t end = std::min(names.find(' '), names.size());
      std::string_view name = names.substr(0, end);
      use(name.substr(0, name.find_first_of("?*")));
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }

  std::vector<OpTypes> types_; ///< indexed by OpInfo::index
};

std::string_view wordOf(const ValueType &type) {
  constexpr std::string_view kMeanings[] = {
#define VALUE_TYPES(enumerator, word, meaning) meaning,
#include "runtime/plan/OpColumns.def"
  };
  return type.numbers == ValueType::Exact ? dtypeName(type.dtype) : kMeanings[type.numbers];
}

} // namespace

const OpTypes &typesOf(OpKind kind, Epilogue epilogue) {
  if (epilogue == Epilogue::None)
    return typesRowOf(kind);
  static const FusedTypes fused;
  return fused.at(opInfo(kind, epilogue).index);
}

std::string toString(const ValueType &needed, std::string_view like) {
  if (needed.like >= 0)
    return fmt::format("the {} of '{}'", needed.isSameType ? "type" : "element type", like);
  return needed.rank == 0 ? std::string(wordOf(needed))
                          : fmt::format("{} with {} dimension{}", wordOf(needed), needed.rank,
                                        needed.rank == 1 ? "" : "s");
}

} // namespace shardc::plan
