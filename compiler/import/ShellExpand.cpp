#include "compiler/import/ShellExpand.h"

#include <functional>

#include "compiler/basic/Format.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::importer {
namespace {

constexpr unsigned kDepthMax = 40;

/// Whole numbers, variables and + - * / % with brackets.
class Arithmetic {
public:
  Arithmetic(llvm::StringRef text, std::function<std::optional<int64_t>(llvm::StringRef)> lookup)
      : rest_(text), lookup_(std::move(lookup)) {}

  std::optional<int64_t> run() {
    std::optional<int64_t> value = sum();
    rest_ = rest_.ltrim();
    return rest_.empty() ? value : std::nullopt;
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
      if (!right || (op != '*' && (*right == 0 || *right == -1)))
        return std::nullopt;
      if (op == '*' && __builtin_mul_overflow(*value, *right, &*value))
        return std::nullopt;
      if (op != '*')
        value = op == '/' ? *value / *right : *value % *right;
    }
    return value;
  }

  std::optional<int64_t> atom() {
    if (depth_ > kDepthMax)
      return std::nullopt;
    if (next() == '(') {
      rest_ = rest_.drop_front();
      ++depth_;
      std::optional<int64_t> value = sum();
      --depth_;
      if (next() != ')')
        return std::nullopt;
      rest_ = rest_.drop_front();
      return value;
    }
    int64_t number = 0;
    if (!rest_.consumeInteger(10, number))
      return number;
    rest_.consume_front("$");
    bool inBraces = rest_.consume_front("{");
    llvm::StringRef name = rest_.take_while([](char c) { return llvm::isAlnum(c) || c == '_'; });
    rest_ = rest_.drop_front(name.size());
    if (name.empty() || (inBraces && !rest_.consume_front("}")))
      return std::nullopt;
    return lookup_(name);
  }

  llvm::StringRef rest_;
  std::function<std::optional<int64_t>(llvm::StringRef)> lookup_;
  unsigned depth_ = 0;
};

} // namespace

bool ShellState::spend(size_t bytes, SourceRange range) {
  if (budget_ == 0)
    return false;
  if (bytes < budget_) {
    budget_ -= bytes;
    return true;
  }
  budget_ = 0;
  diags_.report(diag::ImportMalformed, range, "its variables grow beyond all measure");
  return false;
}

const ShellVariable *ShellState::find(const std::string &name) const {
  auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

void ShellState::set(const std::string &name, std::string value, SourceRange range) {
  auto [at, isNew] = variables_.try_emplace(name);
  if (isNew)
    order_.push_back(name);
  ShellVariable &variable = at->second;
  variable.isArray = false;
  variable.range = range;
  variable.words = {{std::move(value), range}};
}

void ShellState::assign(const ShellAssignment &assignment) {
  auto old = variables_.find(assignment.name);
  bool hasOld = assignment.append && old != variables_.end();
  if (!assignment.isArray) {
    std::string text = hasOld && !old->second.words.empty() ? old->second.words.front().text : "";
    text += expandOne(assignment.value);
    if (hasOld && old->second.isArray)
      old->second.words.resize(std::max<size_t>(old->second.words.size(), 1));
    else
      set(assignment.name, std::move(text), assignment.value.range);
    return;
  }
  std::vector<RanWord> words;
  if (hasOld)
    words = old->second.words;
  for (const ShellWord &element : assignment.elements)
    for (RanWord &word : expand(element))
      words.push_back(std::move(word));
  auto [at, isNew] = variables_.try_emplace(assignment.name);
  if (isNew)
    order_.push_back(assignment.name);
  at->second.isArray = true;
  at->second.words = std::move(words);
}

std::string ShellState::expandOne(const ShellWord &word, bool unsetIsEmpty) {
  bool before = unsetIsEmpty_;
  unsetIsEmpty_ |= unsetIsEmpty;
  Fields fields(1);
  for (const ShellPart &part : word.parts)
    expandPart(part, word.range, fields, /*splits=*/false);
  unsetIsEmpty_ = before;
  std::string out;
  for (size_t i = 0; i < fields.size(); ++i)
    out += (i == 0 ? "" : " ") + fields[i].text;
  return out;
}

std::vector<RanWord> ShellState::expand(const ShellWord &word) {
  Fields fields(1);
  emptyArray_ = false;
  for (const ShellPart &part : word.parts)
    expandPart(part, word.range, fields, /*splits=*/true);
  std::vector<RanWord> words;
  // "${NAME[@]}" of an empty array is no word at all, where other quotes make an empty one.
  if (emptyArray_ && fields.size() == 1 && fields.front().text.empty())
    return words;
  for (Field &field : fields)
    if (!field.text.empty() || field.hasQuotes)
      words.push_back({std::move(field.text), field.range.isValid() ? field.range : word.range});
  return words;
}

/// Adds text to the last field; unquoted blanks begin a new one.
void ShellState::appendText(Fields &fields, llvm::StringRef text, bool quoted, bool splits) {
  if (!spend(text.size() + 1, {}))
    return;
  if (quoted || !splits) {
    fields.back().text += text.str();
    fields.back().hasQuotes |= quoted;
    return;
  }
  for (char c : text) {
    bool isBlank = c == ' ' || c == '\t' || c == '\n';
    if (!isBlank)
      fields.back().text += c;
    else if (!fields.back().text.empty() || fields.back().hasQuotes)
      fields.push_back({});
  }
}

void ShellState::appendWords(Fields &fields, const std::vector<RanWord> &words,
                             const ShellPart &part, bool splits) {
  bool apart = part.quoted && part.index == "@" && splits;
  emptyArray_ |= apart && words.empty();
  for (size_t i = 0; i < words.size() && !isExhausted(); ++i) {
    if (i > 0 && apart)
      fields.push_back({});
    else if (i > 0)
      appendText(fields, " ", part.quoted, splits);
    size_t first = fields.size() - 1;
    appendText(fields, words[i].text, part.quoted, splits);
    for (size_t at = first; at < fields.size(); ++at)
      fields[at].range = words[i].range;
  }
}

std::string ShellState::unsetText(const ShellPart &part) const {
  return unsetIsEmpty_ || part.name == "@" || part.name == "*" ? "" : "${" + part.name + "}";
}

/// `${NAME:-word}` and its like; true if the operator has said all.
bool ShellState::applyOperator(const ShellPart &part, const ShellVariable *held, Fields &fields,
                               bool splits) {
  if (part.op.empty())
    return false;
  if (part.op == "#") {
    size_t size = held == nullptr       ? 0
                  : !part.index.empty() ? held->words.size()
                  : held->words.empty() ? 0
                                        : held->words.front().text.size();
    appendText(fields, std::to_string(size), true, splits);
    return true;
  }
  if (part.op == "foreign") {
    appendText(fields, "${" + part.name + "...}", true, splits);
    return true;
  }
  bool isEmpty =
      held == nullptr || held->words.empty() ||
      (part.op.front() == ':' && held->words.size() == 1 && held->words.front().text.empty());
  char kind = part.op.back();
  if (kind == '+' ? isEmpty : !isEmpty)
    return kind == '+';
  if (kind == '?')
    return false;
  if (part.argument == nullptr || ++depth_ > kDepthMax) {
    depth_ -= part.argument == nullptr ? 0 : 1;
    return true;
  }
  std::string text = expandOne(*part.argument);
  --depth_;
  if (kind == '=')
    set(part.name, text, part.argument->range);
  appendText(fields, text, part.quoted, splits);
  return true;
}

void ShellState::expandPart(const ShellPart &part, SourceRange range, Fields &fields, bool splits) {
  switch (part.kind) {
  case ShellPart::Kind::Text:
    // Text of the script itself is never split.
    appendText(fields, part.text, part.quoted, /*splits=*/false);
    return;
  case ShellPart::Kind::Command:
    appendText(fields, "$(" + part.text + ")", /*quoted=*/true, splits);
    return;
  case ShellPart::Kind::Arithmetic:
    appendText(fields, arithmetic(part.text), part.quoted, splits);
    return;
  case ShellPart::Kind::Variable:
    break;
  }
  ShellVariable arguments;
  const ShellVariable *held = find(part.name);
  unsigned number = 0;
  if (part.name == "@" || part.name == "*") {
    arguments = {true, positional, false, range};
    held = &arguments;
  } else if (!llvm::StringRef(part.name).getAsInteger(10, number)) {
    if (number > 0 && number <= positional.size()) {
      arguments = {false, {positional[number - 1]}, false, range};
      held = &arguments;
    }
  }
  if (applyOperator(part, held, fields, splits))
    return;
  if (held == nullptr) {
    appendText(fields, unsetText(part), true, splits);
    fields.back().hasQuotes = part.quoted || !fields.back().text.empty();
    return;
  }
  ShellPart whole = part;
  if (part.name == "@" || part.name == "*")
    whole.index = part.name;
  if (whole.index == "@" || whole.index == "*") {
    appendWords(fields, held->words, whole, splits);
    return;
  }
  unsigned index = 0;
  llvm::StringRef(whole.index).getAsInteger(10, index);
  if (index < held->words.size())
    appendText(fields, held->words[index].text, part.quoted, splits);
}

std::string ShellState::arithmetic(llvm::StringRef text) {
  if (depth_ > kDepthMax)
    return "$((...))";
  ++depth_;
  Arithmetic evaluation(text, [&](llvm::StringRef name) -> std::optional<int64_t> {
    const ShellVariable *held = find(name.str());
    int64_t value = 0;
    if (held == nullptr || held->words.size() != 1 ||
        llvm::StringRef(held->words.front().text).trim().getAsInteger(10, value))
      return std::nullopt;
    return value;
  });
  std::optional<int64_t> value = evaluation.run();
  --depth_;
  return value ? std::to_string(*value) : fmt::format("${{{}}}", text.str());
}

} // namespace shardc::importer
