#include "compiler/parse/Literals.h"

#include <limits>

#include "compiler/basic/Format.h"
#include "compiler/basic/Suggest.h"
#include "compiler/basic/Utf8.h"
#include "runtime/base/ParseNumber.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ConvertUTF.h"

namespace shardc::parse {

namespace {

struct Unit {
  llvm::StringLiteral name;
  NumberKind kind;
  int64_t factor;
};

constexpr int64_t kKilo = 1000;
constexpr int64_t kKibi = 1024;

constexpr Unit kUnits[] = {
    {"B", NumberKind::Bytes, 1},
    {"KB", NumberKind::Bytes, kKilo},
    {"MB", NumberKind::Bytes, kKilo *kKilo},
    {"GB", NumberKind::Bytes, kKilo *kKilo *kKilo},
    {"TB", NumberKind::Bytes, kKilo *kKilo *kKilo *kKilo},
    {"KiB", NumberKind::Bytes, kKibi},
    {"MiB", NumberKind::Bytes, kKibi *kKibi},
    {"GiB", NumberKind::Bytes, kKibi *kKibi *kKibi},
    {"TiB", NumberKind::Bytes, kKibi *kKibi *kKibi *kKibi},
    {"ms", NumberKind::Milliseconds, 1},
    {"s", NumberKind::Milliseconds, 1000},
    {"min", NumberKind::Milliseconds, 60 * 1000},
    {"h", NumberKind::Milliseconds, 60 * 60 * 1000},
    {"d", NumberKind::Milliseconds, 24 * 60 * 60 * 1000},
};

/// The parts of a number's text, such as `14_336`, `.5`, `e-4`, `GiB`.
struct Parts {
  llvm::StringRef whole;
  llvm::StringRef fraction;
  llvm::StringRef exponent; ///< including its sign
  llvm::StringRef unit;
  bool hasPoint = false;
  bool hasExponent = false;
};

bool isDigitOrSeparator(char c) { return llvm::isDigit(c) || c == '_'; }

/// Splits a number into digits, fraction, exponent and unit, without judging them.
Parts split(llvm::StringRef text) {
  Parts parts;
  auto takeDigits = [&] {
    llvm::StringRef digits = text.take_while(isDigitOrSeparator);
    text = text.drop_front(digits.size());
    return digits;
  };
  parts.whole = takeDigits();
  if (text.consume_front(".")) {
    parts.hasPoint = true;
    parts.fraction = takeDigits();
  }
  llvm::StringRef afterE = text.empty() ? text : text.drop_front();
  llvm::StringRef sign = afterE.take_while([](char c) { return c == '+' || c == '-'; });
  bool isExponent = (text.startswith("e") || text.startswith("E")) && afterE.size() > sign.size() &&
                    llvm::isDigit(afterE[sign.size()]);
  if (isExponent) {
    parts.hasExponent = true;
    text = afterE.drop_front(sign.size());
    llvm::StringRef digits = takeDigits();
    parts.exponent = llvm::StringRef(sign.data(), sign.size() + digits.size());
  }
  parts.unit = text.ltrim(" \t");
  return parts;
}

/// Whether each `_` is between two digits.
bool separatorsFit(llvm::StringRef digits) {
  return !digits.startswith("_") && !digits.endswith("_") && !digits.contains("__");
}

std::string withoutSeparators(llvm::StringRef text) {
  std::string out;
  for (char c : text)
    if (c != '_')
      out += c;
  return out;
}

const Unit *findUnit(llvm::StringRef name) {
  for (const Unit &unit : kUnits)
    if (unit.name == name)
      return &unit;
  return nullptr;
}

NumberLiteral failed(NumberFault fault, llvm::StringRef unit = {}, std::string replacement = "") {
  NumberLiteral literal;
  literal.fault = fault;
  literal.unit = unit;
  literal.replacement = std::move(replacement);
  return literal;
}

NumberLiteral unknownUnit(llvm::StringRef text, llvm::StringRef unit) {
  // Letters may be a misspelt unit; anything else is a malformed number.
  if (!llvm::all_of(unit, llvm::isAlpha))
    return failed(NumberFault::Malformed, unit);
  Suggestion near = suggest(unit, numberUnits());
  std::string meant;
  if (near.isSure() && near.distance == 0) // differs only in case
    meant = text.drop_back(unit.size()).str() + near.names[0].str();
  return failed(NumberFault::UnknownUnit, unit, meant);
}

/// Computes `whole.fraction` times the unit exactly.
NumberLiteral decodeScaled(const Parts &parts, const Unit &unit) {
  __int128 value = 0;
  __int128 denominator = 1;
  constexpr __int128 kMax = std::numeric_limits<int64_t>::max();
  constexpr __int128 kDenominatorMax = kMax / 10;
  for (char c : withoutSeparators(parts.whole)) {
    value = value * 10 + (c - '0');
    if (value > kMax)
      return failed(NumberFault::OutOfRange, parts.unit);
  }
  std::string fraction = withoutSeparators(parts.fraction);
  for (char c : llvm::StringRef(fraction).rtrim('0')) {
    value = value * 10 + (c - '0');
    denominator *= 10;
    if (value > kMax || denominator > kDenominatorMax)
      return failed(NumberFault::OutOfRange, parts.unit);
  }
  value *= unit.factor; // below 2^63 times 2^40
  if (value % denominator != 0)
    return failed(NumberFault::Uneven, parts.unit);
  if (value / denominator > kMax)
    return failed(NumberFault::OutOfRange, parts.unit);
  NumberLiteral literal;
  literal.kind = unit.kind;
  literal.integer = static_cast<int64_t>(value / denominator);
  literal.unit = parts.unit;
  return literal;
}

} // namespace

/// Interprets a number literal. A fault comes with a replacement if the meaning is obvious, such as
/// `1.0` for `1.`.
NumberLiteral decodeNumber(llvm::StringRef text) {
  Parts parts = split(text);
  const Unit *unit = parts.unit.empty() ? nullptr : findUnit(parts.unit);
  if (!separatorsFit(parts.whole) || !separatorsFit(parts.fraction) ||
      !separatorsFit(parts.exponent))
    return failed(NumberFault::Separator, parts.unit);
  if (parts.hasPoint && parts.fraction.empty()) {
    bool isBare = parts.unit.empty() && !parts.hasExponent;
    return failed(NumberFault::Malformed, parts.unit, isBare ? text.str() + "0" : "");
  }
  if (!parts.unit.empty() && !unit)
    return unknownUnit(text, parts.unit);
  if (unit)
    return parts.hasExponent ? failed(NumberFault::Malformed, parts.unit)
                             : decodeScaled(parts, *unit);
  NumberLiteral literal;
  std::string digits = withoutSeparators(text);
  bool isFloat = parts.hasPoint || parts.hasExponent;
  literal.kind = isFloat ? NumberKind::Float : NumberKind::Int;
  // The only other malformed number that the grammar accepts has two signs in its exponent.
  if (parts.exponent.count('+') + parts.exponent.count('-') > 1)
    return failed(NumberFault::Malformed);
  if (!(isFloat ? parseNumber(digits, literal.real) : parseNumber(digits, literal.integer)))
    return failed(NumberFault::OutOfRange);
  return literal;
}

llvm::ArrayRef<llvm::StringRef> numberUnits() {
  static const std::vector<llvm::StringRef> kNames = [] {
    std::vector<llvm::StringRef> names;
    for (const Unit &unit : kUnits)
      names.push_back(unit.name);
    return names;
  }();
  return kNames;
}

namespace {

constexpr struct {
  char letter;
  char value;
} kEscapes[] = {{'"', '"'}, {'\'', '\''}, {'\\', '\\'}, {'n', '\n'}, {'t', '\t'}, {'r', '\r'}};

/// Decodes `{1F600}` at the beginning of `rest`. Returns the number of bytes read; 0 if it is not a
/// code point that a string can contain.
size_t decodeCodePoint(llvm::StringRef rest, std::string &out) {
  size_t close = rest.find('}');
  uint32_t codePoint = 0;
  char bytes[UNI_MAX_UTF8_BYTES_PER_CODE_POINT], *end = bytes;
  bool isGood = rest.startswith("{") && close != llvm::StringRef::npos &&
                !rest.slice(1, close).getAsInteger(16, codePoint) && codePoint != 0 &&
                llvm::ConvertCodePointToUTF8(codePoint, end);
  out.append(bytes, end);
  return isGood ? close + 1 : 0;
}

} // namespace

std::string decodeString(llvm::StringRef text, std::optional<StringFault> &fault) {
  fault.reset();
  std::string out;
  auto fail = [&](StringFault::Kind kind, size_t begin, size_t end) {
    if (!fault)
      fault = StringFault{kind, begin, end};
  };
  size_t end = text.size() - (text.size() > 1 ? 1 : 0);
  for (size_t i = 1; i < end;) {
    char c = text[i];
    if (c != '\\') {
      if (static_cast<uint8_t>(c) < 0x20 && c != '\t')
        fail(StringFault::Kind::Control, i, i + 1);
      out += c;
      ++i;
      continue;
    }
    llvm::StringRef rest = text.slice(i + 1, end);
    const auto *escape = llvm::find_if(
        kEscapes, [&](const auto &e) { return !rest.empty() && e.letter == rest[0]; });
    if (escape != std::end(kEscapes)) {
      out += escape->value;
      i += 2;
    } else if (rest.startswith("u")) {
      size_t taken = decodeCodePoint(rest.drop_front(), out);
      if (taken == 0)
        fail(StringFault::Kind::BadCodePoint, i, i + 2);
      i += 2 + taken;
    } else {
      fail(StringFault::Kind::UnknownEscape, i, std::min(i + 2, end));
      i += 2;
    }
  }
  return out;
}

std::string encodeString(llvm::StringRef value) {
  std::string out = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (static_cast<uint8_t>(c) < 0x20)
      out += fmt::format("\\u{{{:x}}}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + "\"";
}

} // namespace shardc::parse
