#include "compiler/config/Config.h"

#include <fmt/format.h>

#include "compiler/basic/Format.h"
#include "compiler/basic/ShellWord.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {

namespace {

bool isIdentifier(llvm::StringRef text) {
  if (text.empty() || !(llvm::isAlpha(text[0]) || text[0] == '_'))
    return false;
  // Keywords of the language must be quoted.
  for (llvm::StringRef word : {"true", "false", "none", "let", "recipe", "extends"})
    if (text == word)
      return false;
  return llvm::all_of(text, [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

/// Formats a number as in recipes: digits from 10,000 on are grouped by three.
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  size_t first = value < 0 ? 1 : 0;
  if (digits.size() - first < 5)
    return digits;
  for (size_t i = digits.size(); i > first + 3;)
    digits.insert(i -= 3, "_");
  return digits;
}

std::string floatText(double value) {
  std::string text = fmt::format("{}", value);
  bool hasMark = text.find_first_of(".e") != std::string::npos;
  return hasMark ? text : text + ".0";
}

std::string sizeText(int64_t bytes) {
  constexpr std::pair<int64_t, const char *> kUnits[] = {{int64_t{1} << 40, "TiB"},
                                                         {int64_t{1} << 30, "GiB"},
                                                         {int64_t{1} << 20, "MiB"},
                                                         {int64_t{1} << 10, "KiB"}};
  for (auto [unit, name] : kUnits)
    if (bytes != 0 && bytes % unit == 0)
      return std::to_string(bytes / unit) + name;
  return grouped(bytes);
}

std::string durationText(int64_t ms, TimeUnit unit) {
  if (ms % unitMs(unit) == 0)
    return grouped(ms / unitMs(unit));
  return ms % 1000 == 0 ? fmt::format("{}s", ms / 1000) : fmt::format("{}ms", ms);
}

std::string enumText(size_t index, EnumKind kind) {
  llvm::StringRef spelling = enumSpellings(kind)[index];
  if (spelling == "none")
    return "none";
  return isIdentifier(spelling) ? spelling.str() : recipeQuoted(spelling);
}

} // namespace

std::string toRecipeText(const Value &value, const OptionType &type) {
  if (const bool *flag = value.asBool())
    return *flag ? "true" : "false";
  if (const int64_t *number = value.asInt()) {
    if (type.type == ValueType::Size)
      return sizeText(*number);
    if (type.type == ValueType::Duration)
      return durationText(*number, type.unit);
    return grouped(*number);
  }
  if (const double *number = value.asFloat())
    return floatText(*number);
  if (const std::string *text = value.asString())
    return recipeQuoted(*text);
  if (const Value::Enumerator *enumerator = value.asEnum())
    return enumText(enumerator->index, type.enumKind);
  if (const Value::List *list = value.asList()) {
    std::string out = "[";
    for (size_t i = 0; i < list->size(); ++i)
      out += (i ? ", " : "") + toRecipeText((*list)[i], type);
    return out + "]";
  }
  return "none";
}

std::string toRecipeText(const Config &config, Opt opt) {
  return toRecipeText(config[opt].value, info(opt).type);
}

SourceRange Config::range(Opt opt) const {
  // A value from a rule has the location of its cause. A chain of causes visits each option at most
  // once, unless it is a cycle; the bound ends such a cycle.
  for (unsigned steps = 0; steps < kNumOptions; ++steps) {
    const Provenance &from = (*this)[opt].from;
    if (from.isWritten())
      return from.value;
    if (!from.cause || *from.cause == opt) {
      // If a rule has changed a value, its location is still the one at which the user wrote the
      // old value.
      for (auto past = (*this)[opt].history.rbegin(); past != (*this)[opt].history.rend(); ++past)
        if (past->second.isWritten())
          return past->second.value;
      return {};
    }
    opt = *from.cause;
  }
  return {};
}

bool Config::getBool(Opt opt) const {
  const bool *value = (*this)[opt].value.asBool();
  SHARDC_CHECK(value, "option '{}' has no boolean value", info(opt).path);
  return *value;
}

int64_t Config::getInt(Opt opt) const {
  const int64_t *value = (*this)[opt].value.asInt();
  SHARDC_CHECK(value, "option '{}' has no integer value", info(opt).path);
  return *value;
}

double Config::getFloat(Opt opt) const {
  const double *value = (*this)[opt].value.asFloat();
  SHARDC_CHECK(value, "option '{}' has no number as its value", info(opt).path);
  return *value;
}

const std::string &Config::getString(Opt opt) const {
  const std::string *value = (*this)[opt].value.asString();
  SHARDC_CHECK(value, "option '{}' has no string value", info(opt).path);
  return *value;
}

const Value::List &Config::getList(Opt opt) const {
  const Value::List *value = (*this)[opt].value.asList();
  SHARDC_CHECK(value, "option '{}' has no list as its value", info(opt).path);
  return *value;
}

void Config::checkEnumKind(Opt opt, EnumKind kind) const {
  SHARDC_CHECK(info(opt).type.enumKind == kind, "option '{}' takes other enumerators",
               info(opt).path);
}

size_t Config::enumIndex(Opt opt, EnumKind kind) const {
  checkEnumKind(opt, kind);
  const Value::Enumerator *value = (*this)[opt].value.asEnum();
  SHARDC_CHECK(value, "option '{}' has no enumerator as its value", info(opt).path);
  return value->index;
}

} // namespace shardc::config
