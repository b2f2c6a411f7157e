#include "compiler/upstream/ShellValues.h"

#include <algorithm>

#include "compiler/upstream/Pattern.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

constexpr char kMarkBegin = '\x01', kMarkEnd = '\x02';

bool isShellNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }

/// A number of the shell, 010 and 0x10 as in C; nothing for anything else.
std::optional<int64_t> shellNumber(llvm::StringRef text) {
  int64_t value = 0;
  llvm::StringRef digits = text.trim().ltrim("+-");
  bool isForeign = digits.size() > 1 && digits[0] == '0' && !llvm::isDigit(digits[1]) &&
                   digits[1] != 'x' && digits[1] != 'X'; // 0b1 and 0o7 are not the shell's
  return isForeign || text.trim().getAsInteger(0, value) ? std::nullopt : std::optional(value);
}

} // namespace

std::string joined(const std::vector<ShellValue> &values, llvm::StringRef between) {
  std::string text;
  for (const ShellValue &value : values)
    text += value.text + between.str();
  return text;
}

ShellValues::ShellValues(const ShellSetting &setting, bool isJob, DiagEngine &diags)
    : diags_(diags), isJob_(isJob) {
  for (const auto &[name, value] : setting.variables)
    assign(name, {{value, {}}}, /*append=*/false, /*isArray=*/false, {});
  if (!setting.arguments)
    return;
  arguments_.emplace();
  for (const std::string &text : *setting.arguments)
    arguments_->push_back({text, {}});
}

bool ShellValues::spend(size_t bytes, SourceRange range) {
  if (budget_ != 0 && bytes >= budget_)
    diags_.report(diag::ImportMalformed, range,
                  "its variables become too large; '--run' runs the script");
  budget_ -= std::min(bytes, budget_);
  return budget_ != 0;
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
  for (llvm::StringRef rest = value.text; !rest.empty();) {
    auto [known, behind] = rest.split(kMarkBegin);
    auto [number, after] = behind.split(kMarkEnd);
    size_t index = 0;
    rest = after;
    word.text += known;
    if (number.getAsInteger(10, index))
      continue;
    const ShellUnknown &one = unknown_[index];
    word.text += one.shown;
    if (unknown == nullptr)
      unknown = std::make_shared<ShellUnknown>();
    if (!unknown->cause.isValid())
      unknown->shown = one.shown, unknown->cause = one.cause;
    unknown->flags.insert(one.flags.begin(), one.flags.end());
  }
  word.unknown = unknown;
  return word;
}

std::string ShellValues::markAs(llvm::StringRef shown, llvm::StringRef from) {
  RanWord word = resolve({from.str(), {}});
  ShellUnknown why = word.unknown == nullptr ? ShellUnknown() : *word.unknown;
  std::replace(word.text.begin(), word.text.end(), '$', ' '); // is no expansion any more
  addFlags(why.flags, word.text, "");
  return mark(shown, why.cause, std::move(why.flags));
}

/// Flags that stand in a part of the script, or in variables that it names.
void ShellValues::addFlags(std::set<std::string> &flags, llvm::StringRef script,
                           llvm::StringRef except) {
  if (!spend(script.size() + 1))
    return;
  for (size_t at = 0; (at = script.find("--", at)) != llvm::StringRef::npos;) {
    bool begins = at == 0 || (!isShellNameChar(script[at - 1]) && script[at - 1] != '-');
    llvm::StringRef name =
        script.substr(at + 2).take_while([](char c) { return isShellNameChar(c) || c == '-'; });
    if (begins && !name.empty() && llvm::isAlpha(name.front()))
      flags.insert("--" + name.str());
    at += 2 + name.size();
  }
  for (size_t at = 0; (at = script.find('$', at)) != llvm::StringRef::npos; ++at) {
    llvm::StringRef name = script.substr(at + 1).ltrim("{").take_while(isShellNameChar);
    auto found = variables_.find(name.str());
    if (found == variables_.end() || name == except)
      continue;
    RanWord word = resolve({joined(found->second.elements, " "), {}});
    std::replace(word.text.begin(), word.text.end(), '$', ' ');
    addFlags(flags, word.text, "");
    if (word.unknown != nullptr)
      flags.insert(word.unknown->flags.begin(), word.unknown->flags.end());
  }
}

// --- variables
// ------------------------------------------------------------------------------------

ShellValues::Variable &ShellValues::variable(const std::string &name) {
  auto [at, isNew] = variables_.try_emplace(name);
  if (isNew)
    order_.push_back(name);
  at->second.isSet = true;
  return at->second;
}

void ShellValues::assign(const std::string &name, std::vector<ShellValue> values, bool append,
                         bool isArray, SourceRange range) {
  Variable &held = variable(name);
  held.range = range;
  if (held.isArray && !isArray) // of the first element, which need not be there
    return doubt(name, range, joined(values), /*keepsHead=*/false);
  if (!append)
    held.elements.clear();
  if (!isArray && append && !held.elements.empty())
    values.front().text.insert(0, held.elements.front().text);
  if (!spend(joined(values).size() + values.size() + 1, range))
    return;
  if (!isArray)
    held.elements.clear();
  held.isArray |= isArray;
  llvm::move(values, std::back_inserter(held.elements));
}

void ShellValues::unset(const std::string &name, SourceRange range) {
  variable(name) = {.isSet = false, .range = range};
}

void ShellValues::doubt(const std::string &name, SourceRange cause, llvm::StringRef script,
                        bool keepsHead) {
  Variable &held = variable(name);
  std::set<std::string> flags;
  addFlags(flags, keepsHead ? script.str() : "$" + name + " " + script.str(),
           keepsHead ? name : "");
  std::string unknown = mark("$" + name, cause, std::move(flags));
  if (!keepsHead)
    held.elements.clear();
  if (held.elements.empty() || held.isArray)
    held.elements.push_back({unknown, cause});
  else // a word of its own, wherever the value is split
    held.elements.front().text += " " + unknown;
}

void ShellValues::doubtAll(SourceRange cause) {
  allCause_ = cause;
  for (const std::string &name : std::vector<std::string>(order_))
    if (spend(1))
      doubt(name, cause, "", /*keepsHead=*/false);
  doubtArguments(cause);
}

void ShellValues::exportVariable(const std::string &name) {
  if (auto found = variables_.find(name); found != variables_.end())
    found->second.isExported = true;
}

/// Variables that are set before a script begins, whatever it says.
bool ShellValues::isEnvironments(llvm::StringRef name) const {
  constexpr llvm::StringLiteral kNames[] = {
      "HOME",   "USER",     "LOGNAME",    "PWD",      "OLDPWD",   "HOSTNAME", "SHELL",
      "PATH",   "UID",      "EUID",       "PPID",     "RANDOM",   "SECONDS",  "LINENO",
      "IFS",    "OSTYPE",   "HOSTTYPE",   "MACHTYPE", "SHLVL",    "SRANDOM",  "EPOCHSECONDS",
      "OPTIND", "FUNCNAME", "PIPESTATUS", "GROUPS",   "DIRSTACK", "_"};
  return name.startswith("BASH") || (isJob_ && name.startswith("SLURM_")) ||
         llvm::is_contained(kNames, name);
}

ShellHeld ShellValues::lookArgument(llvm::StringRef name, llvm::StringRef shown) {
  using Kind = ShellHeld::Kind;
  bool isList = name == "@" || name == "*";
  unsigned number = 0;
  bool isNumber = !name.getAsInteger(10, number) && number > 0;
  if (isInFunction || argumentsCause_.isValid() ||
      !(isNumber || (arguments_ && (isList || name == "#"))))
    return {Kind::Unknown, isList, {{mark(shown, argumentsCause_), {}}}};
  if (isList)
    return {Kind::Set, true, *arguments_};
  if (name == "#")
    return {Kind::Set, false, {{std::to_string(arguments_->size()), {}}}};
  if (arguments_)
    return number <= arguments_->size() ? ShellHeld{Kind::Set, false, {(*arguments_)[number - 1]}}
                                        : ShellHeld{Kind::Unset, false, {}};
  auto found = variables_.find(name.str()); // as --var gives it
  return found == variables_.end() ? ShellHeld{Kind::Free, false, {}}
                                   : ShellHeld{Kind::Set, false, found->second.elements};
}

ShellHeld ShellValues::look(llvm::StringRef name, llvm::StringRef index, llvm::StringRef shown) {
  using Kind = ShellHeld::Kind;
  if (name.empty() || !(llvm::isAlpha(name.front()) || name.front() == '_') || name == "_")
    return lookArgument(name, shown);
  bool isList = index == "@" || index == "*";
  auto found = variables_.find(name.str());
  if (found == variables_.end())
    return allCause_.isValid() || isEnvironments(name)
               ? ShellHeld{Kind::Unknown, isList, {{mark(shown, allCause_), {}}}}
               : ShellHeld{Kind::Free, isList, {}};
  const Variable &held = found->second;
  std::string all = joined(held.elements, " ");
  if (held.isForeign)
    return {Kind::Unknown, isList, {{markAs(shown, all), {}}}};
  if (!held.isSet || isList)
    return {held.isSet ? Kind::Set : Kind::Unset, isList, held.elements};
  std::optional<int64_t> number = index.empty()    ? std::optional<int64_t>(0)
                                  : isKnown(index) ? evaluate(index)
                                                   : std::nullopt;
  // Behind a tail that is not known, the index of an element is not known either.
  if (!number || *number < 0 || (held.isArray && !isKnown(all)))
    return {Kind::Unknown, false, {{markAs(shown, all), {}}}};
  auto at = static_cast<size_t>(*number);
  return at < held.elements.size() ? ShellHeld{Kind::Set, false, {held.elements[at]}}
                                   : ShellHeld{Kind::Unset, false, {}};
}

std::optional<int64_t> ShellValues::evaluate(llvm::StringRef expression) {
  if (expression.trim().empty())
    return 0;
  return evaluateShell(expression, [&](llvm::StringRef word) -> std::optional<int64_t> {
    if (llvm::isDigit(word.front()))
      return shellNumber(word);
    ShellHeld held = look(word, "", word);
    if (held.kind == ShellHeld::Kind::Unset)
      return 0;
    // A value that is an expression itself is left to a shell.
    if (!held.isSet() || !isKnown(held.words.front().text))
      return std::nullopt;
    llvm::StringRef text = held.words.front().text;
    return text.trim().empty() ? std::optional<int64_t>(0) : shellNumber(text);
  });
}

void ShellValues::finish(ShellRun &run) const {
  for (const std::string &name : order_) {
    const Variable &held = variables_.at(name);
    if (!held.isSet)
      run.exported[name] = {std::nullopt, held.range};
    else if (held.isExported && held.elements.size() == 1)
      run.exported[name] = {resolve(held.elements.front()), held.range};
    RanArray array{name, held.isArray, {}};
    for (const ShellValue &value : held.elements)
      array.words.push_back(resolve(value));
    if (held.isSet)
      run.arrays.push_back(std::move(array));
  }
}

} // namespace shardc::upstream
