#include "compiler/upstream/ShellExpand.h"

#include <functional>

#include "compiler/basic/Format.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kExpansionDepthMax = 40;

/// Arithmetic: whole numbers, variables and + - * / % with brackets.
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
      if (!right || (op != '*' && *right == 0))
        return std::nullopt;
      if (op == '%' && *right == -1) {
        value = 0; // the quotient may not fit
        continue;
      }
      if (op == '/' && *right == -1)
        op = '*';
      if (op == '*' && __builtin_mul_overflow(*value, *right, &*value))
        return std::nullopt;
      if (op != '*')
        value = op == '/' ? *value / *right : *value % *right;
    }
    return value;
  }

  std::optional<int64_t> negated() {
    rest_ = rest_.drop_front();
    ++depth_;
    std::optional<int64_t> value = atom();
    --depth_;
    int64_t result = 0;
    if (!value || __builtin_sub_overflow(int64_t{0}, *value, &result))
      return std::nullopt;
    return result;
  }

  std::optional<int64_t> atom() {
    if (depth_ > kExpansionDepthMax)
      return std::nullopt;
    if (next() == '-')
      return negated();
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
    if (!rest_.consumeInteger(0, number)) // 0x10 and 010 as in C
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

/// The characters of a text in UTF-8.
size_t numCharacters(llvm::StringRef text) {
  return static_cast<size_t>(
      llvm::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

} // namespace

bool ShellState::spend(size_t bytes, SourceRange range) {
  if (budget_ == 0)
    return false;
  if (bytes < budget_) {
    budget_ -= bytes;
    return true;
  }
  budget_ = 0;
  diags_.report(diag::ImportMalformed, range, "its variables become too large");
  return false;
}

const ShellVariable *ShellState::find(const std::string &name) const {
  auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

std::vector<RanWord> ShellVariable::words() const {
  std::vector<RanWord> words;
  for (const auto &[index, word] : elements)
    words.push_back(word);
  return words;
}

void ShellState::set(const std::string &name, std::string value, SourceRange range) {
  auto [at, isNew] = variables_.try_emplace(name);
  if (isNew)
    order_.push_back(name);
  ShellVariable &variable = at->second;
  variable.range = range;
  // A plain value of an array is its first element.
  if (!variable.isArray)
    variable.elements.clear();
  variable.elements[0] = {std::move(value), range};
}

/// The index that an expression names in an array, from its end if it is negative.
std::optional<int64_t> ShellState::indexOf(const std::string &expression,
                                           const ShellVariable *array) {
  std::optional<int64_t> index =
      expression.empty() ? std::optional<int64_t>(0) : evaluate(expression);
  bool isFromEnd = index && *index < 0;
  if (isFromEnd && array != nullptr && !array->elements.empty())
    index = array->elements.rbegin()->first + 1 + *index;
  return index && *index >= 0 ? index : std::nullopt;
}

void ShellState::assign(const ShellAssignment &assignment) {
  if (assignment.isArray)
    return assignArray(assignment);
  const ShellVariable *old = find(assignment.name);
  std::string value = expandOne(assignment.value);
  std::optional<int64_t> index = indexOf(assignment.index, old);
  if (!index)
    return;
  if (assignment.append && old != nullptr)
    if (auto element = old->elements.find(*index); element != old->elements.end())
      value.insert(0, element->second.text);
  if (!spend(value.size() + 1, assignment.value.range))
    return;
  if (assignment.index.empty())
    return set(assignment.name, std::move(value), assignment.value.range);
  auto [at, isNew] = variables_.try_emplace(assignment.name);
  if (isNew)
    order_.push_back(assignment.name);
  at->second.isArray = true;
  at->second.range = assignment.value.range;
  at->second.elements[*index] = {std::move(value), assignment.value.range};
}

void ShellState::assignArray(const ShellAssignment &assignment) {
  ShellVariable array;
  if (const ShellVariable *old = find(assignment.name)) {
    array.exported = old->exported;
    array.range = old->range;
    if (assignment.append)
      array.elements = old->elements;
  }
  array.isArray = true;
  int64_t next = array.elements.empty() ? 0 : array.elements.rbegin()->first + 1;
  for (const ShellElement &element : assignment.elements) {
    if (!element.index.empty()) {
      std::optional<int64_t> index = indexOf(element.index, &array);
      std::string value = expandOne(element.word);
      if (!index || !spend(value.size() + 1, element.word.range))
        continue;
      array.elements[*index] = {std::move(value), element.word.range};
      next = *index + 1;
      continue;
    }
    for (RanWord &word : expand(element.word))
      if (spend(word.text.size() + 1, element.word.range))
        array.elements[next++] = std::move(word);
  }
  auto [at, isNew] = variables_.try_emplace(assignment.name);
  if (isNew)
    order_.push_back(assignment.name);
  at->second = std::move(array);
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
  for (const ShellPart &part : word.parts)
    expandPart(part, word.range, fields, /*splits=*/true);
  std::vector<RanWord> words;
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
  bool apart = part.quoted && (part.index == "@" || part.name == "@") && splits;
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
bool ShellState::applyOperator(const ShellPart &part, const Held &held, Fields &fields,
                               bool splits) {
  if (part.op.empty())
    return false;
  if (part.op == "#") {
    size_t size = held.isList    ? held.words.size()
                  : held.isSet() ? numCharacters(held.words.front().text)
                                 : 0;
    appendText(fields, std::to_string(size), part.quoted, splits);
    return true;
  }
  if (part.op == "foreign") {
    appendText(fields, "${" + part.name + "...}", true, splits);
    return true;
  }
  bool isEmpty = !held.isSet() || (part.op.front() == ':' && held.words.size() == 1 &&
                                   held.words.front().text.empty());
  char kind = part.op.back();
  if (kind == '+' ? isEmpty : !isEmpty) {
    // Nothing, which is a word of its own between quotes.
    if (kind == '+')
      appendText(fields, "", part.quoted, splits);
    return kind == '+';
  }
  if (kind == '?')
    return false;
  if (part.argument == nullptr || depth_ >= kExpansionDepthMax)
    return true;
  ++depth_;
  if (kind == '=') {
    std::string text = expandOne(*part.argument);
    set(part.name, text, part.argument->range);
    appendText(fields, text, part.quoted, splits);
  } else {
    expandArgument(part, fields, splits);
  }
  --depth_;
  return true;
}

/// The word after an operator: what is quoted in it stays together, and all of it does between
/// quotes.
void ShellState::expandArgument(const ShellPart &part, Fields &fields, bool splits) {
  for (const ShellPart &inner : part.argument->parts) {
    if (inner.kind == ShellPart::Kind::Text) {
      appendText(fields, inner.text, inner.quoted || part.quoted, splits);
      continue;
    }
    ShellPart one = inner;
    one.quoted |= part.quoted;
    expandPart(one, part.argument->range, fields, splits);
  }
}

/// The elements of a variable that a part names.
ShellState::Held ShellState::look(const ShellPart &part, SourceRange range) {
  Held held;
  unsigned number = 0;
  if (part.name == "@" || part.name == "*")
    return {true, true, positional};
  if (part.name == "#")
    return isInFunction ? Held{true, false, {{std::to_string(positional.size()), range}}} : held;
  if (!llvm::StringRef(part.name).getAsInteger(10, number)) {
    held.isKnown = isInFunction && number > 0;
    if (number > 0 && number <= positional.size())
      held.words = {positional[number - 1]};
    return held;
  }
  const ShellVariable *variable = find(part.name);
  if (variable == nullptr)
    return held;
  held.isKnown = true;
  held.isList = part.index == "@" || part.index == "*";
  if (held.isList) {
    held.words = variable->words();
  } else if (std::optional<int64_t> index = indexOf(part.index, variable)) {
    if (auto element = variable->elements.find(*index); element != variable->elements.end())
      held.words = {element->second};
  }
  return held;
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
  Held held = look(part, range);
  if (applyOperator(part, held, fields, splits))
    return;
  if (!held.isKnown) {
    appendText(fields, unsetText(part), true, splits);
    fields.back().hasQuotes = part.quoted || !fields.back().text.empty();
    return;
  }
  if (held.isList)
    appendWords(fields, held.words, part, splits);
  else
    appendText(fields, held.isSet() ? held.words.front().text : "", part.quoted, splits);
}

std::optional<int64_t> ShellState::evaluate(llvm::StringRef text) {
  if (depth_ > kExpansionDepthMax)
    return std::nullopt;
  ++depth_;
  Arithmetic evaluation(text, [&](llvm::StringRef name) -> std::optional<int64_t> {
    ShellPart part;
    part.kind = ShellPart::Kind::Variable;
    part.name = name.str();
    Held held = look(part, {});
    int64_t value = 0;
    if (!held.isSet() || llvm::StringRef(held.words.front().text).trim().getAsInteger(0, value))
      return std::nullopt;
    return value;
  });
  std::optional<int64_t> value = evaluation.run();
  --depth_;
  return value;
}

std::string ShellState::arithmetic(llvm::StringRef text) {
  if (depth_ > kExpansionDepthMax)
    return "$((...))";
  std::optional<int64_t> value = evaluate(text);
  return value ? std::to_string(*value) : fmt::format("${{{}}}", text.str());
}

} // namespace shardc::upstream
