// Parses the texts of Ops.def: signatures, lists of attributes and steps. At compile time for the
// table (OpRows.cpp), at run time for rows of tests.
#pragma once

#include <algorithm>

#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Steps.h"

namespace shardc::plan {

/// An error in a row, which the compiler names.
enum class OpFault : uint8_t {
  None,
  NoArrow,          ///< there must be `->` between operands and results
  TooMany,          ///< the row has more values, factors, dimensions or words than the limits allow
  UnknownAttribute, ///< no row of Attrs.def has that name, or the row names it twice
  Word,             ///< the word does not belong to the notation of factors
  List,             ///< `*` must mark the name and the dimensions of an operand, or none of both
  Unclosed,         ///< a parenthesis or a bracket has no counterpart
  MarkOfOperand,    ///< `=` and `^` mark results only, `!` and `+` operands only
  UnknownFactor,    ///< a result names a factor that neither an operand nor a clause has
  Uncounted,        ///< a factor with `?` needs an operand with row counts or indices
  Transposed,       ///< a transposed value needs at least two dimensions
  Type,             ///< no type has this name
  UnknownName,      ///< the op has no operand or result of this name
  Facts,            ///< two facts contradict each other (OpRows.cpp)
  Steps,            ///< the steps are malformed, or use a value that is not made
  DimsOfSteps,      ///< a value of the steps has two shapes, or too many dimensions
};

/// Calls use(name with its mark) for each value of a list of operands or results.
template <typename Use> constexpr void forEachValue(std::string_view values, const Use &use) {
  const char end = values.find(':') == std::string_view::npos ? ' ' : ',';
  while (!values.empty()) {
    std::string_view value = takeUntil(values, end);
    use(value.substr(0, value.find_first_of(":/")), value);
  }
}
constexpr bool isDigit(char c) { return c >= '0' && c <= '9'; }
constexpr bool isLetter(char c) { return c >= 'a' && c <= 'z'; }
constexpr std::string_view withoutMark(std::string_view name) {
  return name.substr(0, name.find_first_of("?*"));
}

/// Parses `name: type[dimensions], … -> …; clauses`. Keeps the first fault.
class SignatureParser {
public:
  constexpr SignatureParser(OpFactors &factors, OpTypes &types) : out_(factors), types_(types) {}

  constexpr OpFault fault() const { return fault_; }

  constexpr void parse(std::string_view signature) {
    signature_ = signature;
    if (signature.find("->") == std::string_view::npos)
      return fail(OpFault::NoArrow);
    out_.operandCount = types_.operandCount = parseSide(true);
    bool isOpen = out_.operandCount == 0 ||
                  std::ranges::any_of(out_.operands(), [](const FactorValue &value) {
                    return value.form == FactorValue::Opaque;
                  });
    auto known = static_cast<FactorId>(out_.factorCount);
    out_.resultCount = types_.resultCount = parseSide(false);
    std::string_view clauses = signature;
    takeUntil(clauses, ';');
    while (!clauses.empty())
      if (std::string_view clause = takeUntil(clauses, ' '); !clause.empty())
        parseClause(clause);
    for (FactorId factor = known; factor < out_.factorCount && !isOpen; ++factor)
      if (factor != out_.members && !out_.attrOf[static_cast<size_t>(factor)])
        fail(OpFault::UnknownFactor);
    for (const FactorValue &value : out_.operands())
      needCounts(value);
    for (const FactorValue &value : out_.results())
      needCounts(value);
  }

private:
  constexpr void fail(OpFault fault) {
    if (fault_ == OpFault::None)
      fault_ = fault;
  }

  constexpr void needCounts(const FactorValue &value) {
    for (size_t a = 0; a < value.atomCount; ++a)
      if (FactorId rows = value.atoms[a].factor;
          value.atoms[a].isBound &&
          std::ranges::none_of(out_.operands(), [rows](const FactorValue &operand) {
            return operand.countsRowsOf == rows || operand.pointsInto == rows;
          }))
        fail(OpFault::Uncounted);
  }

  constexpr uint8_t parseSide(bool isOperand) {
    uint8_t count = 0;
    const size_t most = isOperand ? kOperandsOfOpMax : kResultsOfOpMax;
    forEachValue(valuesOf(signature_, !isOperand), [&](std::string_view name, auto value) {
      if (count == most)
        return fail(OpFault::TooMany);
      size_t open = value.find('[');
      if (open == std::string_view::npos || !value.ends_with(']') || name.size() == value.size())
        return fail(OpFault::Unclosed);
      FactorValue &target = isOperand ? out_.operandValues[count] : out_.resultValues[count];
      ValueType &type = isOperand ? types_.operandTypes[count] : types_.resultTypes[count];
      ++count;
      parseType(type, trimmed(value.substr(name.size() + 1, open - name.size() - 1)));
      parseValue(value.substr(open + 1, value.size() - open - 2), target, isOperand);
      if (isOperand && target.isList != name.ends_with('*'))
        fail(OpFault::List);
    });
    return count;
  }

  constexpr void parseType(ValueType &type, std::string_view word) {
    if (word.starts_with('~') || word.starts_with('=')) {
      type.isSameType = word.starts_with('=');
      word.remove_prefix(1);
      int operand = valueNamed(signature_, word, false),
          result = valueNamed(signature_, word, true);
      if (operand < 0 && result < 0)
        fail(OpFault::UnknownName);
      type.isLikeOperand = operand >= 0;
      type.like = static_cast<int8_t>(operand >= 0 ? operand : result);
      return;
    }
    if (size_t slash = word.find('/'); slash != std::string_view::npos) {
      type.rank = slash + 2 == word.size() ? static_cast<uint8_t>(word[slash + 1] - '0') : 0;
      if (type.rank < 1 || type.rank > kDimsOfValueMax)
        fail(OpFault::Type);
      word = word.substr(0, slash);
    }
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
    fail(OpFault::Type);
  }

  /// Parses the dimensions of a value: an optional attribute that transposes it, marks before the
  /// dimensions, `>f` for values that index factor f, `*` for a list, then the dimensions.
  constexpr void parseValue(std::string_view text, FactorValue &value, bool isOperand) {
    if (size_t colon = text.find(':'); colon != std::string_view::npos) {
      value.transposedBy = parseAttrKey(text.substr(0, colon));
      if (!value.transposedBy)
        fail(OpFault::UnknownAttribute);
      text.remove_prefix(colon + 1);
    }
    if (text == "." || text == "$") {
      value.form = text == "." ? FactorValue::Opaque : FactorValue::Scales;
      return;
    }
    parseLead(text, value, isOperand);
    if (size_t at = text.find('>'); at != std::string_view::npos) {
      std::string_view name = text.substr(at + 1);
      value.pointsInto = parseFactor(name);
      if (!name.empty())
        return fail(OpFault::Word);
      text = text.substr(0, at);
    }
    if (text.ends_with('*')) {
      value.isList = true;
      text.remove_suffix(1);
    }
    parseDims(text, value, isOperand);
    if (value.transposedBy && value.dimCount < 2)
      fail(OpFault::Transposed);
    if (value.countsRowsOf != kNoFactor && isOperand)
      for (FactorAtom &atom : value.atoms)
        atom.isNeededWhole = true; // the start of a group of rows depends on the groups before it
  }

  constexpr void parseLead(std::string_view &text, FactorValue &value, bool isOperand) {
    if (text.starts_with('|')) {
      text.remove_prefix(1);
      value.countsRowsOf = parseFactor(text);
      return;
    }
    bool hasLead = text.starts_with('+') || text.starts_with('=') || text.starts_with('^');
    if (!hasLead)
      return;
    if ((text[0] == '+') != isOperand)
      fail(OpFault::MarkOfOperand);
    value.isAddedOnce = text[0] == '+';
    if (text[0] == '=')
      value.combine = FactorValue::Same;
    if (text[0] == '^')
      value.combine = FactorValue::Largest;
    text.remove_prefix(1);
  }

  /// Parses dimensions: a word is one, and so are several words in parentheses, whose extents are
  /// multiplied.
  constexpr void parseDims(std::string_view text, FactorValue &value, bool isOperand) {
    bool isInside = false; // inside of parentheses
    while (!text.empty()) {
      if (text[0] == ' ') {
        text.remove_prefix(1);
        continue;
      }
      if (text[0] == '(' && !isInside) {
        isInside = true;
        text.remove_prefix(1);
        continue;
      }
      if (text[0] == ')' && isInside) {
        isInside = false;
        text.remove_prefix(1);
        if (text.starts_with('%')) {
          for (size_t a = 0; a < value.atomCount; ++a)
            value.atoms[a].isInSharedDim |= value.atoms[a].dim == value.dimCount;
          text.remove_prefix(1);
        }
        ++value.dimCount;
        continue;
      }
      if (value.atomCount == kAtomsOfValueMax || value.dimCount == kDimsOfValueMax)
        return fail(OpFault::TooMany);
      FactorAtom &atom = value.atoms[value.atomCount++];
      atom.dim = value.dimCount;
      parseWord(text, atom, isOperand);
      if (fault_ != OpFault::None)
        return;
      value.dimCount = static_cast<uint8_t>(value.dimCount + (isInside ? 0 : 1));
    }
    if (isInside || value.dimCount == 0)
      fail(OpFault::Unclosed);
  }

  constexpr uint16_t parseNumber(std::string_view &text) {
    int number = 0;
    if (text.empty() || !isDigit(text[0]))
      fail(OpFault::Word);
    for (; !text.empty() && isDigit(text[0]); text.remove_prefix(1))
      number = number * 10 + (text[0] - '0');
    if (number == 0 || number > UINT16_MAX)
      fail(OpFault::Word);
    return static_cast<uint16_t>(number);
  }

  /// Parses one word: a number, or a factor with an optional sum (`a+b`, `a+2`), block size
  /// (`a/128`) or mirror sign (`~a`), then marks.
  constexpr void parseWord(std::string_view &text, FactorAtom &atom, bool isOperand) {
    if (isDigit(text[0])) {
      atom.form = FactorAtom::Number;
      atom.number = parseNumber(text);
      return;
    }
    if (text[0] == '~') {
      atom.form = FactorAtom::Mirrored;
      text.remove_prefix(1);
    }
    atom.factor = parseFactor(text);
    if (text.size() > 1 && text[0] == '+' && isLetter(text[1])) {
      atom.form = FactorAtom::Joined;
      text.remove_prefix(1);
      atom.other = parseFactor(text);
    } else if (text.starts_with('+') || text.starts_with('/')) {
      atom.form = text[0] == '+' ? FactorAtom::Beside : FactorAtom::Blocks;
      text.remove_prefix(1);
      atom.number = parseNumber(text);
    }
    parseMarks(text, atom, isOperand);
  }

  constexpr void parseMarks(std::string_view &text, FactorAtom &atom, bool isOperand) {
    for (; !text.empty() && text[0] != ' ' && text[0] != ')'; text.remove_prefix(1))
      switch (text[0]) {
      case '!':
        if (!isOperand)
          fail(OpFault::MarkOfOperand);
        atom.isNeededWhole = true;
        break;
      case '#':
        atom.isCounted = true;
        break;
      case '@':
        atom.isKnownByIndex = true;
        break;
      case '%':
        atom.isShare = true;
        break;
      case '?':
        atom.isBound = true;
        break;
      default:
        return fail(OpFault::Word);
      }
  }

  /// Takes a word, with its prime, from the text.
  constexpr FactorId parseFactor(std::string_view &text) {
    size_t end = 0;
    while (end < text.size() && isLetter(text[end]))
      ++end;
    const std::string_view word = text.substr(0, end);
    const bool isPrimed = end > 0 && end < text.size() && text[end] == '\'';
    const std::string_view name = text.substr(0, end + (isPrimed ? 1 : 0));
    text.remove_prefix(name.size());
    if (name.empty())
      return fail(OpFault::Word), FactorId{0};
    const FactorId extent = isPrimed ? factorOf(word) : kNoFactor, factor = factorOf(name);
    if (isPrimed)
      out_.extentOf[static_cast<size_t>(factor)] = extent;
    return factor;
  }
  /// Returns the number of the word, and adds it if it is new in the row.
  constexpr FactorId factorOf(std::string_view name) {
    if (FactorId known = out_.find(name); known != kNoFactor)
      return known;
    if (out_.factorCount == kFactorsOfOpMax)
      return fail(OpFault::TooMany), FactorId{0};
    const auto factor = static_cast<FactorId>(out_.factorCount++);
    out_.name(factor, name);
    out_.extentOf[static_cast<size_t>(factor)] = factor;
    return factor;
  }

  /// Parses `x=attribute`, `x=group`, or an attribute that reverses the op.
  constexpr void parseClause(std::string_view clause) {
    size_t equal = clause.find('=');
    if (equal == std::string_view::npos) {
      out_.reversedBy = parseAttrKey(clause);
      return out_.reversedBy ? void() : fail(OpFault::UnknownAttribute);
    }
    FactorId factor = out_.find(clause.substr(0, equal));
    if (factor == kNoFactor)
      return fail(OpFault::UnknownFactor);
    std::string_view name = clause.substr(equal + 1);
    if (name == "group") {
      out_.members = factor;
      return;
    }
    std::optional<AttrKey> attr = parseAttrKey(name);
    if (!attr)
      fail(OpFault::UnknownAttribute);
    out_.attrOf[static_cast<size_t>(factor)] = attr;
  }

  std::string_view signature_;
  OpFactors &out_;
  OpTypes &types_;
  OpFault fault_ = OpFault::None;
};

/// Reads steps from left to right. Values are numbered in the order in which their names appear.
class StepsParser {
public:
  constexpr explicit StepsParser(OpKind kind) { row_.kind = kind; }

  constexpr OpFault fault() const { return isWrong_ ? OpFault::Steps : OpFault::None; }
  constexpr const OpSteps &row() const { return row_; }

  /// `attrsOf(kind)` are the attributes of another op.
  template <typename AttrsOf>
  constexpr void parse(std::string_view values, std::string_view steps, const AttrsOf &attrsOf) {
    isWrong_ = values.find("->") == std::string_view::npos;
    forEachValue(valuesOf(values, false), [&](std::string_view name, auto) {
      number(withoutMark(name));
      ++row_.operandsMax;
      row_.operandsMin = static_cast<uint8_t>(row_.operandsMin + (name.ends_with('?') ? 0 : 1));
    });
    while (!steps.empty() && !isWrong_)
      parseStep(takeUntil(steps, ';'), attrsOf);
    forEachValue(valuesOf(values, true), [&](std::string_view name, auto) {
      row_.results.push_back(number(withoutMark(name)));
      isWrong_ |= !isMade(row_.results.back());
    });
    row_.valueCount = names_.count;
  }

private:
  static constexpr std::string_view word(std::string_view &text) {
    text = trimmed(text);
    return takeUntil(text, ' ');
  }

  constexpr uint8_t number(std::string_view name) {
    for (uint8_t i = 0; i < names_.count; ++i)
      if (names_[i] == name)
        return i;
    isWrong_ |= names_.size() == kValuesOfStepsMax;
    if (!isWrong_)
      names_.push_back(name);
    return static_cast<uint8_t>(std::max<int>(names_.count, 1) - 1);
  }
  constexpr bool isMade(uint8_t value) const {
    return value < row_.operandsMax || std::ranges::any_of(row_.steps, [&](const OpStep &step) {
             return std::ranges::find(step.results, value) != step.results.end();
           });
  }

  template <typename AttrsOf>
  constexpr void parseStep(std::string_view text, const AttrsOf &attrsOf) {
    OpStep step;
    std::string_view results = takeUntil(text, '=');
    text = trimmed(text);
    std::string_view name = text.substr(0, text.find_first_of("{ "));
    text.remove_prefix(name.size());
    const auto *at = std::ranges::find(names::kNames, name);
    isWrong_ |= at == std::end(names::kNames) || row_.steps.size() == kStepsMax;
    if (isWrong_)
      return;
    step.kind = static_cast<OpKind>(at - names::kNames);
    if (text.starts_with('{')) {
      text.remove_prefix(1);
      parseAttrs(takeUntil(text, '}'), step, attrsOf(step.kind));
    }
    while (!(text = trimmed(text)).empty() && !isWrong_) {
      step.operands.push_back(number(word(text)));
      isWrong_ |= !isMade(step.operands.back());
    }
    while (!(results = trimmed(results)).empty() && !isWrong_) {
      std::string_view result = word(results);
      const bool isWide = result.ends_with(':');
      step.results.push_back(number(result.substr(0, result.size() - (isWide ? 1 : 0))));
      isWrong_ |= isWide && word(results) != "f32";
      row_.wide |= isWide ? 1u << step.results.back() : 0;
    }
    row_.steps.push_back(step);
  }

  constexpr void parseAttrs(std::string_view text, OpStep &step, const AttrSet &attrs) {
    while (!(text = trimmed(text)).empty()) {
      std::string_view value = word(text), name = takeUntil(value, '=');
      std::optional<AttrKey> key = parseAttrKey(name), from = parseAttrKey(value);
      isWrong_ |= !key || !attrs.has(*key);
      if (isWrong_)
        return;
      isWrong_ |= !value.empty() && !from && (value.size() != 1 || !isDigit(value[0]));
      step.own.add(*key);
      if (!value.empty())
        step.set.push_back({*key, from ? 0 : value[0] - '0', from});
    }
  }

  OpSteps row_;
  ShortList<std::string_view, kValuesOfStepsMax> names_;
  bool isWrong_ = false;
};

} // namespace shardc::plan
