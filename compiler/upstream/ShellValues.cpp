#include "compiler/upstream/ShellValues.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kArithmeticDepthMax = 40;
constexpr char kMarkBegin = '\x01', kMarkEnd = '\x02';

bool isShellNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }

/// A number of the shell, 010 and 0x10 as in C; nothing for anything else.
std::optional<int64_t> shellNumber(llvm::StringRef text) {
  int64_t value = 0;
  llvm::StringRef digits = text.trim().ltrim("+-");
  bool isForeign = digits.size() > 1 && digits[0] == '0' && !llvm::isDigit(digits[1]) &&
                   digits[1] != 'x' && digits[1] != 'X'; // 0b1 and 0o7 are not the shell's
  if (isForeign || text.trim().getAsInteger(0, value))
    return std::nullopt;
  return value;
}

/// Whole numbers, variables and + - * / % with brackets.
class Arithmetic {
public:
  Arithmetic(llvm::StringRef text, std::function<std::optional<int64_t>(llvm::StringRef)> lookup)
      : rest_(text), lookup_(std::move(lookup)) {}

  std::optional<int64_t> run() {
    std::optional<int64_t> value = sum();
    return next() == '\0' && rest_.empty() ? value : std::nullopt;
  }

private:
  char next() {
    rest_ = rest_.ltrim();
    return rest_.empty() ? '\0' : rest_.front();
  }

  std::optional<int64_t> sum() {
    std::optional<int64_t> value = product();
    while (value && (next() == '+' || next() == '-')) {
      bool isMinus = rest_.front() == '-';
      rest_ = rest_.drop_front();
      std::optional<int64_t> right = product();
      bool fails = !right || (isMinus ? __builtin_sub_overflow(*value, *right, &*value)
                                      : __builtin_add_overflow(*value, *right, &*value));
      if (fails)
        return std::nullopt;
    }
    return value;
  }

  std::optional<int64_t> product() {
    std::optional<int64_t> value = atom();
    while (value && (next() == '*' || next() == '/' || next() == '%')) {
      char op = rest_.front();
      rest_ = rest_.drop_front();
      std::optional<int64_t> right = atom();
      bool isUndefined = !right || (op != '*' && (*right == 0 || *right == -1));
      if (isUndefined || (op == '*' && __builtin_mul_overflow(*value, *right, &*value)))
        return std::nullopt;
      if (op != '*')
        value = op == '/' ? *value / *right : *value % *right;
    }
    return value;
  }

  std::optional<int64_t> atom() {
    if (++depth_ > kArithmeticDepthMax)
      return std::nullopt;
    std::optional<int64_t> value = atomAtDepth();
    --depth_;
    return value;
  }

  std::optional<int64_t> atomAtDepth() {
    char c = next();
    if (c == '-' || c == '+' || c == '(') {
      rest_ = rest_.drop_front();
      // Two signs in a row are another operator.
      if (c != '(' && (rest_.startswith("-") || rest_.startswith("+")))
        return std::nullopt;
      std::optional<int64_t> value = c == '(' ? sum() : atom();
      if (c == '(' && (next() != ')' || !value))
        return std::nullopt;
      if (c == '(')
        rest_ = rest_.drop_front();
      if (c == '-' && value && __builtin_sub_overflow(int64_t{0}, *value, &*value))
        return std::nullopt;
      return value;
    }
    llvm::StringRef word = rest_.take_while(isShellNameChar);
    rest_ = rest_.drop_front(word.size());
    if (word.empty() || rest_.startswith("#") || rest_.startswith("["))
      return std::nullopt;
    return llvm::isDigit(word.front()) ? shellNumber(word) : lookup_(word);
  }

  llvm::StringRef rest_;
  std::function<std::optional<int64_t>(llvm::StringRef)> lookup_;
  unsigned depth_ = 0;
};

} // namespace

ShellValues::ShellValues(const ShellSetting &setting, DiagEngine &diags) : diags_(diags) {
  for (const auto &[name, value] : setting.variables)
    assign(name, {value, {}}, /*append=*/false);
  if (setting.arguments) {
    arguments_.emplace();
    for (const std::string &text : *setting.arguments)
      arguments_->push_back({text, {}});
  }
}

bool ShellValues::spend(size_t bytes, SourceRange range) {
  if (budget_ == 0)
    return false;
  if (bytes < budget_) {
    budget_ -= bytes;
    return true;
  }
  budget_ = 0;
  diags_.report(diag::ImportMalformed, range,
                "its variables become too large; '--run' runs the script");
  return false;
}

// --- marks
// ----------------------------------------------------------------------------------------

std::string ShellValues::mark(llvm::StringRef shown, SourceRange cause,
                              std::set<std::string> flags) {
  constexpr size_t kShownMax = 200;
  spend(64 + shown.size(), cause);
  unknown_.push_back({shown.take_front(kShownMax).str(), cause, std::move(flags)});
  return kMarkBegin + std::to_string(unknown_.size() - 1) + kMarkEnd;
}

RanWord ShellValues::resolve(const ShellValue &value) const {
  RanWord word{"", value.range, nullptr};
  std::shared_ptr<ShellUnknown> unknown;
  llvm::StringRef rest = value.text;
  while (true) {
    auto [known, behind] = rest.split(kMarkBegin);
    word.text += known;
    if (known.size() == rest.size())
      break;
    auto [number, after] = behind.split(kMarkEnd);
    size_t index = 0;
    if (number.getAsInteger(10, index) || index >= unknown_.size())
      break;
    const ShellUnknown &one = unknown_[index];
    word.text += one.shown;
    if (unknown == nullptr || (!unknown->cause.isValid() && one.cause.isValid())) {
      std::set<std::string> flags = unknown == nullptr ? std::set<std::string>() : unknown->flags;
      unknown = std::make_shared<ShellUnknown>(one);
      unknown->flags.insert(flags.begin(), flags.end());
    }
    unknown->flags.insert(one.flags.begin(), one.flags.end());
    rest = after;
  }
  word.unknown = unknown;
  return word;
}

std::string ShellValues::markAs(llvm::StringRef shown, llvm::StringRef from) {
  RanWord word = resolve({from.str(), {}});
  std::set<std::string> flags = flagsIn(word.text);
  if (word.unknown != nullptr)
    flags.insert(word.unknown->flags.begin(), word.unknown->flags.end());
  return mark(shown, word.unknown == nullptr ? SourceRange() : word.unknown->cause, flags);
}

std::set<std::string> ShellValues::flagsIn(llvm::StringRef script) {
  std::set<std::string> flags;
  if (!spend(script.size() + 1, {}))
    return flags;
  for (size_t at = 0; (at = script.find("--", at)) != llvm::StringRef::npos;) {
    bool begins = at == 0 || (!isShellNameChar(script[at - 1]) && script[at - 1] != '-');
    llvm::StringRef name =
        script.substr(at + 2).take_while([](char c) { return isShellNameChar(c) || c == '-'; });
    if (begins && !name.empty() && llvm::isAlpha(name.front()))
      flags.insert("--" + name.str());
    at += 2 + name.size();
  }
  for (size_t at = 0; (at = script.find('$', at)) != llvm::StringRef::npos; ++at) {
    auto found =
        variables_.find(script.substr(at + 1).ltrim("{").take_while(isShellNameChar).str());
    if (found == variables_.end())
      continue;
    for (const auto &[index, value] : found->second.elements) {
      RanWord word = resolve(value); // whose text has no expansions that are the script's
      std::string text = word.text;
      std::replace(text.begin(), text.end(), '$', ' ');
      flags.merge(flagsIn(text));
      if (word.unknown != nullptr)
        flags.insert(word.unknown->flags.begin(), word.unknown->flags.end());
    }
  }
  return flags;
}

// --- variables
// ------------------------------------------------------------------------------------

ShellVariable &ShellValues::variable(const std::string &name) {
  auto [at, isNew] = variables_.try_emplace(name);
  if (isNew)
    order_.push_back(name);
  unset_.erase(name);
  at->second.isSet = true;
  return at->second;
}

/// After an assignment: one that a function may repeat decides nothing.
void ShellValues::settle(ShellVariable &variable, const std::string &name) {
  if (variable.setsAnytime.isValid())
    doubt(name, variable.setsAnytime, "", /*keepsHead=*/false, /*isAnytime=*/true);
}

ShellVariable &ShellValues::assign(const std::string &name, ShellValue value, bool append) {
  ShellVariable &held = variable(name);
  // A plain value of an array is its first element.
  if (!held.isArray && !append)
    held.elements.clear();
  ShellValue &element = held.elements[0];
  if (append)
    value.text.insert(0, element.text);
  held.range = value.range;
  if (spend(value.text.size() + 1, value.range))
    element = std::move(value);
  settle(held, name);
  return held;
}

void ShellValues::assignElement(const std::string &name, llvm::StringRef index, ShellValue value,
                                bool append) {
  std::optional<int64_t> number = isKnown(index) ? evaluate(index) : std::nullopt;
  ShellVariable &held = variable(name);
  if (number && *number < 0 && !held.elements.empty())
    number = held.elements.rbegin()->first + 1 + *number;
  bool isTail =
      llvm::any_of(held.elements, [](const auto &one) { return !isKnown(one.second.text); });
  held.isArray = true;
  held.range = value.range;
  if (!number || *number < 0 || isTail)
    return doubt(name, value.range, value.text, /*keepsHead=*/false, /*isAnytime=*/false);
  ShellValue &element = held.elements[*number];
  if (append)
    value.text.insert(0, element.text);
  if (spend(value.text.size() + 1, value.range))
    element = std::move(value);
  settle(held, name);
}

void ShellValues::assignArray(const std::string &name, std::vector<ShellValue> values, bool append,
                              SourceRange range) {
  ShellVariable &held = variable(name);
  if (!append)
    held.elements.clear();
  held.isArray = true;
  held.range = range;
  int64_t next = held.elements.empty() ? 0 : held.elements.rbegin()->first + 1;
  for (ShellValue &value : values)
    if (spend(value.text.size() + 1, range))
      held.elements[next++] = std::move(value);
  settle(held, name);
}

void ShellValues::unset(const std::string &name, SourceRange range) {
  ShellVariable &held = variable(name);
  held.isSet = held.isArray = held.isExported = false;
  held.elements.clear();
  unset_[name] = range;
  if (held.setsAnytime.isValid())
    settle(held, name);
}

void ShellValues::doubt(const std::string &name, SourceRange cause, llvm::StringRef script,
                        bool keepsHead, bool isAnytime) {
  ShellVariable &held = variable(name);
  std::map<int64_t, ShellValue> elements = std::exchange(held.elements, {});
  std::set<std::string> flags = flagsIn(script); // where the variable itself adds none
  held.elements = std::move(elements);
  if (isAnytime)
    held.setsAnytime = cause;
  if (!keepsHead) {
    for (const auto &[index, value] : held.elements) {
      RanWord word = resolve(value);
      flags.merge(flagsIn(word.text));
      if (word.unknown != nullptr)
        flags.insert(word.unknown->flags.begin(), word.unknown->flags.end());
    }
    held.elements.clear();
  }
  std::string unknown = mark("$" + name, cause, std::move(flags));
  if (held.elements.empty())
    held.elements[0] = {unknown, cause};
  else if (held.isArray)
    held.elements[held.elements.rbegin()->first + 1] = {unknown, cause};
  else // a word of its own, wherever the value is split
    held.elements[0].text += " " + unknown;
}

void ShellValues::doubtAll(SourceRange cause) {
  allCause_ = cause;
  for (const std::string &name : std::vector<std::string>(order_))
    if (!isExhausted())
      doubt(name, cause, "", /*keepsHead=*/false, /*isAnytime=*/false);
  doubtArguments(cause);
}

void ShellValues::setArguments(std::vector<ShellValue> arguments) {
  arguments_ = std::move(arguments);
}

void ShellValues::shiftArguments(size_t count) {
  if (arguments_ && count <= arguments_->size())
    arguments_->erase(arguments_->begin(), arguments_->begin() + static_cast<ptrdiff_t>(count));
}

void ShellValues::exportVariable(const std::string &name) {
  if (auto found = variables_.find(name); found != variables_.end())
    found->second.isExported = true;
}

/// Variables that are set before a script begins, whatever it says.
bool ShellValues::isEnvironments(llvm::StringRef name) const {
  for (llvm::StringRef prefix : {"BASH", "SLURM_"})
    if (name.startswith(prefix))
      return prefix == "BASH" || isJob;
  constexpr llvm::StringLiteral kNames[] = {
      "HOME",   "USER",     "LOGNAME",    "PWD",      "OLDPWD",   "HOSTNAME", "SHELL",
      "PATH",   "UID",      "EUID",       "PPID",     "RANDOM",   "SECONDS",  "LINENO",
      "IFS",    "OSTYPE",   "HOSTTYPE",   "MACHTYPE", "SHLVL",    "SRANDOM",  "EPOCHSECONDS",
      "OPTIND", "FUNCNAME", "PIPESTATUS", "GROUPS",   "DIRSTACK", "_"};
  return llvm::is_contained(kNames, name);
}

ShellValues::Held ShellValues::lookArgument(llvm::StringRef name, llvm::StringRef shown) {
  using Kind = Held::Kind;
  bool isList = name == "@" || name == "*";
  unsigned number = 0;
  bool isNumber = !name.getAsInteger(10, number) && number > 0;
  if (isInFunction || !(isNumber || isList || name == "#"))
    return {Kind::Unknown, isList, {{mark(shown), {}}}};
  if (arguments_ && name == "#")
    return {Kind::Set, false, {{std::to_string(arguments_->size()), {}}}};
  if (arguments_ && isList)
    return {Kind::Set, true, *arguments_};
  if (arguments_ && isNumber)
    return number <= arguments_->size() ? Held{Kind::Set, false, {(*arguments_)[number - 1]}}
                                        : Held{Kind::Unset, false, {}};
  if (isNumber && !argumentsCause_.isValid()) { // as --var gives it
    if (auto found = variables_.find(name.str()); found != variables_.end())
      return {Kind::Set, false, {found->second.elements.begin()->second}};
    return {Kind::Free, false, {}};
  }
  return {Kind::Unknown, isList, {{mark(shown, argumentsCause_), {}}}};
}

ShellValues::Held ShellValues::look(llvm::StringRef name, llvm::StringRef index,
                                    llvm::StringRef shown) {
  using Kind = Held::Kind;
  if (name.empty() || !(llvm::isAlpha(name.front()) || name.front() == '_') || name == "_")
    return lookArgument(name, shown);
  bool isList = index == "@" || index == "*";
  auto found = variables_.find(name.str());
  if (found == variables_.end()) {
    bool isFree = !allCause_.isValid() && !isEnvironments(name);
    return isFree ? Held{Kind::Free, isList, {}}
                  : Held{Kind::Unknown, isList, {{mark(shown, allCause_), {}}}};
  }
  const ShellVariable &held = found->second;
  if (!held.isSet)
    return {Kind::Unset, isList, {}};
  Held result{Kind::Set, isList, {}};
  if (isList) {
    for (const auto &[at, value] : held.elements)
      result.words.push_back(value);
    return result;
  }
  // Behind a tail that is not known, the index of an element is not known either.
  bool hasMarks =
      llvm::any_of(held.elements, [](const auto &one) { return !isKnown(one.second.text); });
  std::optional<int64_t> number = index.empty()    ? std::optional<int64_t>(0)
                                  : isKnown(index) ? evaluate(index)
                                                   : std::nullopt;
  if (number && *number < 0 && !held.elements.empty())
    number = held.elements.rbegin()->first + 1 + *number;
  if (!number || *number < 0 || (hasMarks && held.isArray)) {
    std::string all;
    for (const auto &[at, value] : held.elements)
      all += value.text + " ";
    return {Kind::Unknown, false, {{markAs(shown, all), {}}}};
  }
  if (auto element = held.elements.find(*number); element != held.elements.end())
    result.words = {element->second};
  else
    result.kind = Kind::Unset;
  return result;
}

std::optional<int64_t> ShellValues::evaluate(llvm::StringRef expression) {
  if (expression.trim().empty())
    return 0;
  return Arithmetic(expression,
                    [&](llvm::StringRef name) -> std::optional<int64_t> {
                      Held held = look(name, "", name);
                      if (held.kind == Held::Kind::Unset)
                        return 0;
                      // A value that is an expression itself is left to a shell.
                      if (!held.isSet() || !isKnown(held.words.front().text))
                        return std::nullopt;
                      llvm::StringRef text = held.words.front().text;
                      return text.trim().empty() ? std::optional<int64_t>(0) : shellNumber(text);
                    })
      .run();
}

void ShellValues::finish(ShellRun &run) const {
  for (const std::string &name : order_) {
    const ShellVariable &held = variables_.at(name);
    if (!held.isSet)
      continue;
    if (held.isExported && held.elements.size() == 1)
      run.exported[name] = {resolve(held.elements.begin()->second), held.range};
    RanArray array{name, held.isArray, {}};
    for (const auto &[index, value] : held.elements)
      array.words.push_back(resolve(value));
    run.arrays.push_back(std::move(array));
  }
  for (const auto &[name, range] : unset_)
    run.exported[name] = {std::nullopt, range};
}

} // namespace shardc::upstream
