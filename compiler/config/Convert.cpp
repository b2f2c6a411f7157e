// Converts constants to values of an option. Types, units and ranges are checked only here.
#include <cmath>

#include "compiler/basic/Format.h"
#include "compiler/basic/Suggest.h"
#include "compiler/config/Evaluate.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {

namespace {

using Kind = Constant::Kind;

/// The type of one element of a list type.
OptionType elementType(const OptionType &type) {
  OptionType element = type;
  element.type = type.type == ValueType::IntList      ? ValueType::Int
                 : type.type == ValueType::FloatList  ? ValueType::Float
                 : type.type == ValueType::StringList ? ValueType::String
                                                      : ValueType::Enum;
  return element;
}

/// Converts a constant to the value of one option. If that fails, a method reports the error and
/// returns an empty value.
class Converter {
public:
  Converter(const OptionInfo &option, DiagEngine &diags) : option_(option), diags_(diags) {}

  std::optional<Value> convert(const Constant &constant) {
    if (constant.kind == Kind::Error)
      return std::nullopt;
    std::optional<Value> value = byType(constant, option_.type);
    if (value && !satisfies(*value, constant))
      return std::nullopt;
    return value;
  }

private:
  std::optional<Value> byType(const Constant &constant, const OptionType &type) {
    switch (type.type) {
    case ValueType::Bool:
      return boolean(constant);
    case ValueType::Int:
      return integer(constant);
    case ValueType::Float:
      return number(constant);
    case ValueType::String:
      return string(constant);
    case ValueType::Size:
      return size(constant);
    case ValueType::Duration:
      return duration(constant, type.unit);
    case ValueType::Enum:
      return enumerator(constant, type.enumKind);
    case ValueType::Blend:
      return blend(constant);
    case ValueType::IntList:
    case ValueType::FloatList:
    case ValueType::StringList:
    case ValueType::EnumList:
      return list(constant, elementType(type));
    }
    return std::nullopt;
  }

  std::nullopt_t wrongType(const Constant &constant) {
    diags_.report(diag::WrongType, constant.range, option_.path, describeType(option_.type),
                  describe(constant));
    return std::nullopt;
  }

  std::optional<Value> boolean(const Constant &constant) {
    if (constant.kind == Kind::Bool)
      return Value::ofBool(constant.boolean);
    return wrongType(constant);
  }

  std::optional<Value> integer(const Constant &constant) {
    if (constant.kind == Kind::Int)
      return Value::ofInt(constant.integer);
    bool isWhole = constant.kind == Kind::Float && std::abs(constant.number) < 9e15 &&
                   std::floor(constant.number) == constant.number;
    if (!isWhole)
      return wrongType(constant);
    Value value = Value::ofInt(static_cast<int64_t>(constant.number));
    diags_
        .report(diag::WrongType, constant.range, option_.path, describeType(option_.type),
                describe(constant))
        .fixIt(FixIt::replace(constant.range, toRecipeText(value, option_.type)));
    return value;
  }

  std::optional<Value> number(const Constant &constant) {
    if (!constant.isNumber())
      return wrongType(constant);
    return Value::ofFloat(constant.asNumber());
  }

  std::optional<Value> string(const Constant &constant) {
    if (constant.kind == Kind::String)
      return Value::ofString(constant.text);
    if (option_.section == Section::Env)
      return variable(constant);
    if (constant.kind != Kind::Name)
      return wrongType(constant);
    diags_
        .report(diag::WrongType, constant.range, option_.path, describeType(option_.type),
                describe(constant))
        .fixIt(FixIt::replace(constant.range, '"' + constant.text + '"'));
    return Value::ofString(constant.text);
  }

  /// Converts a constant to an environment variable, which is text. Only constants with a unique
  /// spelling are accepted.
  std::optional<Value> variable(const Constant &constant) {
    switch (constant.kind) {
    case Kind::Int:
      return Value::ofString(std::to_string(constant.integer));
    case Kind::Float:
      return Value::ofString(fmt::format("{}", constant.number));
    case Kind::Name:
      return Value::ofString(constant.text);
    case Kind::Bool:
      return Value::ofString(constant.boolean ? "true" : "false");
    default:
      return wrongType(constant);
    }
  }

  std::optional<Value> size(const Constant &constant) {
    if (constant.kind != Kind::Size && constant.kind != Kind::Int)
      return wrongType(constant);
    return Value::ofInt(constant.integer);
  }

  std::optional<Value> duration(const Constant &constant, TimeUnit unit) {
    if (constant.kind == Kind::Duration)
      return Value::ofInt(constant.integer);
    if (!constant.isNumber())
      return wrongType(constant);
    double ms = constant.asNumber() * static_cast<double>(unitMs(unit));
    if (std::floor(ms) != ms || std::abs(ms) > 9e15)
      return wrongType(constant);
    return Value::ofInt(static_cast<int64_t>(ms));
  }

  /// Accepts the enumerator with or without quotes, and `none` as a word. A misspelt one is
  /// corrected if a single name is near, so that later messages do not follow from it.
  std::optional<Value> enumerator(const Constant &constant, EnumKind kind) {
    std::string word = constant.text;
    if (constant.kind == Kind::None)
      word = "none";
    else if (constant.kind != Kind::Name && constant.kind != Kind::String)
      return wrongType(constant);
    if (std::optional<size_t> index = findEnumerator(kind, word))
      return Value::ofIndex(*index);
    Suggestion near = suggest(word, enumSpellings(kind));
    if (near.names.empty()) {
      diags_.report(diag::UnknownEnumerator, constant.range, option_.path,
                    quotedList(enumSpellings(kind), 32), word);
      return std::nullopt;
    }
    DiagBuilder report = diags_.report(diag::MisspeltEnumerator, constant.range, option_.path, word,
                                       quotedList(near.names));
    if (!near.isSure())
      return std::nullopt;
    Value value = Value::ofIndex(*findEnumerator(kind, near.names.front()));
    report.fixIt(FixIt::replace(constant.range, toRecipeText(value, {ValueType::Enum, kind})));
    return value;
  }

  std::optional<Value> list(const Constant &constant, const OptionType &element) {
    Value::List values;
    bool isWhole = true;
    auto add = [&](const Constant &one) {
      std::optional<Value> value = byType(one, element);
      isWhole &= value.has_value();
      if (value)
        values.push_back(std::move(*value));
    };
    // A single value stands for a list with one element.
    if (constant.kind != Kind::List)
      add(constant);
    else
      for (const Constant &one : constant.elements)
        add(one);
    return isWhole ? std::optional(Value::ofList(std::move(values))) : std::nullopt;
  }

  std::optional<Value> blend(const Constant &constant) {
    if (constant.kind == Kind::String)
      return Value::ofList({Value::ofString(constant.text)});
    if (constant.kind != Kind::List || constant.elements.empty())
      return wrongType(constant);
    bool hasWeights = constant.elements.front().isNumber();
    Value::List values;
    for (size_t i = 0; i < constant.elements.size(); ++i) {
      const Constant &element = constant.elements[i];
      bool wantsWeight = hasWeights && i % 2 == 0;
      bool fits =
          wantsWeight ? element.isNumber() && element.asNumber() > 0 : element.kind == Kind::String;
      if (!fits || (wantsWeight && i + 1 == constant.elements.size())) {
        diags_.report(diag::BadBlend, element.range, option_.path, i + 1, describe(element));
        return std::nullopt;
      }
      values.push_back(wantsWeight ? Value::ofFloat(element.asNumber())
                                   : Value::ofString(element.text));
    }
    return Value::ofList(std::move(values));
  }

  bool inRange(double number) const {
    const Constraint &limit = option_.constraint;
    switch (limit.kind) {
    case Constraint::Kind::AtLeast:
      return number >= limit.low;
    case Constraint::Kind::Between:
      return number >= limit.low && number <= limit.high;
    case Constraint::Kind::HalfOpen:
      return number >= limit.low && number < limit.high;
    case Constraint::Kind::Positive:
      return number > 0;
    default:
      return true;
    }
  }

  bool satisfies(const Value &value, const Constant &constant) {
    if (option_.constraint.kind == Constraint::Kind::Split)
      return isSplit(*value.asString(), constant);
    double number = 0;
    if (value.asInt())
      number = static_cast<double>(*value.asInt());
    else if (value.asFloat())
      number = *value.asFloat();
    else
      return true;
    if (option_.type.type == ValueType::Duration)
      number /= static_cast<double>(unitMs(option_.type.unit));
    if (inRange(number))
      return true;
    diags_.report(diag::ValueOutOfRange, constant.range, option_.path,
                  toRecipeText(value, option_.type), describeConstraint(option_));
    return false;
  }

  bool isSplit(llvm::StringRef text, const Constant &constant) {
    llvm::SmallVector<llvm::StringRef, 4> shares;
    text.split(shares, ',');
    double sum = 0;
    bool isGood = shares.size() == 2 || shares.size() == 3;
    for (llvm::StringRef share : shares) {
      double number = 0;
      isGood &= !share.trim().getAsDouble(number) && std::isfinite(number) && number >= 0;
      sum += number;
    }
    if (!isGood || sum <= 0)
      diags_.report(diag::BadSplit, constant.range, option_.path, text);
    return isGood && sum > 0;
  }

  const OptionInfo &option_;
  DiagEngine &diags_;
};

/// Parses a value of our own tables. A malformed one is a fault of the program, not of a recipe, so
/// it fails a check instead of a diagnostic.
Value parseTableScalar(llvm::StringRef text, const OptionType &type, llvm::StringRef path) {
  double number = 0;
  int64_t whole = 0;
  bool isBad = false;
  switch (type.type) {
  case ValueType::Bool:
    isBad = text != "true" && text != "false";
    SHARDC_CHECK(!isBad, "option '{}' has no boolean in the tables", path);
    return Value::ofBool(text == "true");
  case ValueType::Int:
  case ValueType::Size: {
    unsigned shift = 0;
    for (auto [unit, bits] : {std::pair("KiB", 10u), std::pair("MiB", 20u), std::pair("GiB", 30u)})
      if (type.type == ValueType::Size && shift == 0 && text.consume_back(unit))
        shift = bits;
    isBad = text.getAsInteger(10, whole);
    SHARDC_CHECK(!isBad, "option '{}' has no integer in the tables", path);
    return Value::ofInt(whole << shift);
  }
  case ValueType::Duration:
    isBad = text.getAsInteger(10, whole);
    SHARDC_CHECK(!isBad, "option '{}' has no duration in the tables", path);
    return Value::ofInt(whole * unitMs(type.unit));
  case ValueType::Float:
    isBad = text.getAsDouble(number);
    SHARDC_CHECK(!isBad, "option '{}' has no number in the tables", path);
    return Value::ofFloat(number);
  case ValueType::Enum: {
    std::optional<size_t> index = findEnumerator(type.enumKind, text);
    SHARDC_CHECK(index, "option '{}' has no enumerator in the tables", path);
    return Value::ofIndex(*index);
  }
  default:
    return Value::ofString(text);
  }
}

} // namespace

std::optional<Value> convert(const Constant &constant, const OptionInfo &option,
                             DiagEngine &diags) {
  return Converter(option, diags).convert(constant);
}

Value parseTableValue(llvm::StringRef text, const OptionInfo &option) {
  if (!option.type.isList())
    return text == "none" && (option.type.type != ValueType::Enum ||
                              !findEnumerator(option.type.enumKind, text))
               ? Value()
               : parseTableScalar(text, option.type, option.path);
  SHARDC_CHECK(text.consume_front("[") && text.consume_back("]"),
               "option '{}' has no list in the tables", option.path);
  Value::List values;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  text.split(parts, ',', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef part : parts)
    values.push_back(parseTableScalar(part.trim(), elementType(option.type), option.path));
  return Value::ofList(std::move(values));
}

} // namespace shardc::config
