#include "compiler/upstream/ReadValue.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/EndSignals.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::upstream {
namespace {

using config::OptionType;
using config::Value;
using config::ValueType;

constexpr size_t kElementsMax = 100'000;
constexpr unsigned kBracketsMax = 40;

/// A list, or a single number.
struct Operand {
  bool isList = false;
  std::vector<int64_t> elements;
};
using Evaluated = std::optional<Operand>;

class Lists {
public:
  explicit Lists(llvm::StringRef text) : rest_(text) {}

  Evaluated run() {
    Evaluated value = operation('+');
    return value && value->isList && rest_.ltrim(" \t").empty() ? value : std::nullopt;
  }

private:
  bool consume(llvm::StringRef what) {
    rest_ = rest_.ltrim(" \t");
    return rest_.consume_front(what);
  }

  /// Parses a sum, whose operands are products, or a product, whose operands are atoms.
  Evaluated operation(char sign) {
    bool isSum = sign == '+';
    Evaluated left = isSum ? operation('*') : atom();
    while (left && consume({&sign, 1})) {
      Evaluated right = isSum ? operation('*') : atom();
      if (!right || (isSum ? !left->isList || !right->isList : left->isList == right->isList))
        return std::nullopt;
      if (!isSum && !left->isList)
        std::swap(left, right);
      // Of a product, the left operand is now the list, and the right one says how often it
      // repeats.
      auto times = isSum ? int64_t{1} : std::max<int64_t>(right->elements.front(), 0);
      const std::vector<int64_t> added = isSum ? right->elements : left->elements;
      if (!isSum)
        left->elements.clear();
      for (; times > 0 && !added.empty(); --times) {
        if (left->elements.size() + added.size() > kElementsMax)
          return std::nullopt;
        left->elements.insert(left->elements.end(), added.begin(), added.end());
      }
    }
    return left;
  }

  /// Parses a list, a number, or a sum in parentheses.
  Evaluated atom() {
    if (consume("(")) {
      Evaluated inner = ++depth_ > kBracketsMax ? std::nullopt : operation('+');
      --depth_;
      return inner && consume(")") ? inner : std::nullopt;
    }
    Operand out{consume("["), {}};
    while (!(out.isList && consume("]"))) {
      int64_t number = 0;
      if ((!out.elements.empty() && !consume(",")) || out.elements.size() >= kElementsMax)
        return std::nullopt;
      rest_ = rest_.ltrim(" \t");
      if (rest_.consumeInteger(10, number))
        return std::nullopt;
      out.elements.push_back(number);
      if (!out.isList)
        return out;
    }
    return out;
  }

  llvm::StringRef rest_;
  unsigned depth_ = 0;
};

std::optional<Value> readBool(const Tree &tree) {
  if (tree.kind == Tree::Kind::Bool)
    return Value::ofBool(tree.boolean);
  // As in Python, any number except 0 is true; Megatron-Bridge's recipes use 100.
  if (tree.kind == Tree::Kind::Int)
    return Value::ofBool(tree.integer != 0);
  if (!tree.isWord())
    return std::nullopt;
  std::string word = llvm::StringRef(tree.text).lower();
  if (word == "true" || word == "1" || word == "yes" || word == "on")
    return Value::ofBool(true);
  if (word == "false" || word == "0" || word == "no" || word == "off")
    return Value::ofBool(false);
  return std::nullopt;
}

std::optional<double> numberOf(const Tree &tree) {
  double value = 0;
  if (tree.kind == Tree::Kind::Int)
    return static_cast<double>(tree.integer);
  if (tree.kind == Tree::Kind::Float)
    return tree.number;
  if (tree.isWord() && readNumber(tree.text, value))
    return value;
  return std::nullopt;
}

/// Reads a whole number, such as milliseconds from a number of a larger unit.
std::optional<Value> readWhole(const Tree &tree, int64_t unit = 1) {
  int64_t whole = tree.integer;
  bool isInteger = tree.kind == Tree::Kind::Int || (tree.isWord() && readInteger(tree.text, whole));
  if (isInteger && unit == 1)
    return Value::ofInt(whole);
  double units = numberOf(tree).value_or(NAN) * static_cast<double>(unit);
  bool isWhole = std::floor(units) == units && std::abs(units) < 9e15;
  return isWhole ? std::optional(Value::ofInt(static_cast<int64_t>(units))) : std::nullopt;
}

std::optional<Value> readReal(const Tree &tree) {
  std::optional<double> number = numberOf(tree);
  return number ? std::optional(Value::ofFloat(*number)) : std::nullopt;
}

/// The name of an enumerator: a word, the last part of a Python name or of `_target_`, or the
/// argument of a call that returns an enumerator.
std::string enumeratorWord(const Tree &tree) {
  if (tree.isWord())
    return tree.text;
  if (tree.kind == Tree::Kind::Bool)
    return tree.boolean ? "true" : "false";
  if (tree.kind != Tree::Kind::Map)
    return {};
  // Only a class, or the function that looks up a preset, returns an enumerator with the argument's
  // name.
  llvm::StringRef call = tree.callName();
  bool takesName = call.empty() || (call.front() >= 'A' && call.front() <= 'Z') ||
                   call == "get_mixed_precision_config";
  if (tree.items.size() == 1 && tree.items.front()->isWord() && takesName)
    return tree.items.front()->text;
  return tree.items.empty() ? tree.callName().str() : std::string();
}

/// Finds an enumerator by the number in a call such as `AttnBackend(5)`: Megatron's enumeration of
/// attention backends, or a signal's number on Linux.
std::optional<size_t> byNumber(config::EnumKind kind, const Tree &tree) {
  using config::AttentionBackend;
  constexpr AttentionBackend kBackends[] = {AttentionBackend::Flash, AttentionBackend::Fused,
                                            AttentionBackend::Unfused, AttentionBackend::Local,
                                            AttentionBackend::Auto};
  bool isCall = tree.kind == Tree::Kind::Map && tree.items.size() == 1;
  std::optional<Value> read = isCall ? readWhole(*tree.items.front()) : std::nullopt;
  int64_t number = read ? *read->asInt() : 0;
  if (kind == config::EnumKind::AttentionBackend && number >= 1 &&
      number <= static_cast<int64_t>(std::size(kBackends)))
    return static_cast<size_t>(kBackends[number - 1]);
  const int *signal = std::ranges::find(kExitSignals, number);
  if (kind == config::EnumKind::ExitSignal && tree.callName() == "Signals" &&
      signal != std::end(kExitSignals))
    return static_cast<size_t>(signal - kExitSignals);
  return std::nullopt;
}

std::optional<Value> readEnum(config::EnumKind kind, const Tree &tree) {
  if (std::optional<size_t> index = byNumber(kind, tree))
    return Value::ofIndex(*index);
  std::string word = tree.isNone() ? "none" : enumeratorWord(tree);
  for (const std::string &form :
       {word, lastPart(word).str(), llvm::StringRef(word).lower(), lastPart(word).lower()})
    if (!form.empty())
      if (std::optional<size_t> index = config::findEnumerator(kind, form))
        return Value::ofIndex(*index);
  return std::nullopt;
}

/// The elements of a list, of one word with commas, or of a single value.
std::vector<TreePtr> elementsOf(const Tree &tree) {
  if (tree.kind == Tree::Kind::List)
    return tree.items;
  std::vector<TreePtr> elements;
  if (!tree.isWord()) {
    elements.push_back(std::make_shared<Tree>(tree));
    return elements;
  }
  llvm::SmallVector<llvm::StringRef> parts;
  llvm::StringRef(tree.text).trim("()[]").split(parts, ',', -1, false);
  for (llvm::StringRef part : parts)
    elements.push_back(makeText(part.trim(" '\""), tree.range));
  return elements;
}

template <typename Read> std::optional<Value> readList(const Tree &tree, Read read) {
  Value::List list;
  for (const TreePtr &element : elementsOf(tree)) {
    std::optional<Value> value = read(*element);
    if (!value)
      return std::nullopt;
    list.push_back(std::move(*value));
  }
  return Value::ofList(std::move(list));
}

std::optional<Value> readIntList(const Tree &tree) {
  if (tree.isWord())
    if (std::optional<std::vector<int64_t>> pattern = readPattern(tree.text)) {
      Value::List list;
      for (int64_t number : *pattern)
        list.push_back(Value::ofInt(number));
      return Value::ofList(std::move(list));
    }
  return readList(tree, [](const Tree &element) { return readWhole(element); });
}

std::optional<Value> readString(const Tree &tree) {
  if (tree.isWord())
    return Value::ofString(tree.text);
  using Kind = Tree::Kind;
  if (tree.kind == Kind::Int || tree.kind == Kind::Bool || tree.kind == Kind::Float)
    return Value::ofString(describe(tree));
  // The result is known only for calls that create paths.
  bool isPath = tree.callName().endswith("Path") || tree.callName() == "str";
  if (isPath && tree.items.size() == 1 && tree.items.front()->isWord())
    return Value::ofString(tree.items.front()->text);
  return std::nullopt;
}

/// Reads paths, or alternating weights and paths. Also reads Megatron-Core's form: a list of paths
/// and a list of weights.
std::optional<Value> readBlend(const Tree &tree) {
  std::vector<TreePtr> flat = elementsOf(tree);
  if (flat.size() == 2 && flat[0]->kind == Tree::Kind::List &&
      (flat[1]->kind == Tree::Kind::List || flat[1]->isNone())) {
    std::vector<TreePtr> paths = flat[0]->items, weights = flat[1]->items;
    if (!weights.empty() && weights.size() != paths.size())
      return std::nullopt;
    flat.clear();
    for (size_t i = 0; i < paths.size(); ++i) {
      if (!weights.empty())
        flat.push_back(weights[i]);
      flat.push_back(paths[i]);
    }
  }
  Value::List list;
  for (const TreePtr &element : flat) {
    std::optional<Value> weight = readReal(*element), path = readString(*element);
    if (!weight && !path)
      return std::nullopt;
    list.push_back(weight ? *weight : *path);
  }
  return Value::ofList(std::move(list));
}

} // namespace

std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text) {
  Evaluated value = Lists(text).run();
  return value ? std::optional(std::move(value->elements)) : std::nullopt;
}

std::optional<Value> readValue(const OptionType &type, const Tree &tree) {
  switch (type.type) {
  case ValueType::Bool:
    return readBool(tree);
  case ValueType::Int:
  case ValueType::Size:
    return readWhole(tree);
  case ValueType::Float:
    return readReal(tree);
  case ValueType::String:
    return readString(tree);
  case ValueType::Duration:
    return readWhole(tree, config::unitMs(type.unit));
  case ValueType::Enum:
    return readEnum(type.enumKind, tree);
  case ValueType::IntList:
    return readIntList(tree);
  case ValueType::FloatList:
    return readList(tree, readReal);
  case ValueType::StringList:
    return readList(tree, readString);
  case ValueType::EnumList:
    return readList(tree, [&](const Tree &element) { return readEnum(type.enumKind, element); });
  case ValueType::Blend:
    return readBlend(tree);
  }
  return std::nullopt;
}

} // namespace shardc::upstream
