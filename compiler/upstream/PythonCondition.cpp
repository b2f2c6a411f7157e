#include "compiler/upstream/PythonCondition.h"

#include <algorithm>
#include <optional>

#include "compiler/upstream/Python.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kConditionDepthMax = 64;

Truth truthOf(bool holds) { return holds ? Truth::Yes : Truth::No; }

std::optional<double> comparedNumber(const Tree &tree) {
  if (tree.kind == Tree::Kind::Bool)
    return tree.boolean ? 1 : 0;
  if (tree.kind == Tree::Kind::Int)
    return static_cast<double>(tree.integer);
  return tree.kind == Tree::Kind::Float ? std::optional(tree.number) : std::nullopt;
}

class Condition {
public:
  explicit Condition(const std::function<TreePtr(const Tree &)> &resolve) : resolve_(resolve) {}

  Truth evaluate(llvm::StringRef text, unsigned depth = 0) const {
    text = text.trim();
    if (depth > kConditionDepthMax)
      return Truth::Unknown;
    if (size_t at = find(text, " or "); at != llvm::StringRef::npos)
      return negated(both(negated(evaluate(text.substr(0, at), depth + 1)),
                          negated(evaluate(text.substr(at + 4), depth + 1))));
    if (size_t at = find(text, " and "); at != llvm::StringRef::npos)
      return both(evaluate(text.substr(0, at), depth + 1),
                  evaluate(text.substr(at + 5), depth + 1));
    if (text.consume_front("not "))
      return negated(evaluate(text, depth + 1));
    // Longer signs first.
    for (llvm::StringRef sign : {" is not ", " is ", "==", "!=", "<=", ">=", "<", ">"})
      if (size_t at = find(text, sign); at != llvm::StringRef::npos)
        return compare(valueOf(text.substr(0, at)), sign.trim(),
                       valueOf(text.substr(at + sign.size())));
    TreePtr value = valueOf(text);
    return value == nullptr ? Truth::Unknown : truth(*value);
  }

private:
  /// The first place of the sign outside of brackets and texts.
  static size_t find(llvm::StringRef text, llvm::StringRef sign) {
    int open = 0;
    char quote = '\0';
    for (size_t i = 0; i < text.size(); ++i) {
      char c = text[i];
      if (quote != '\0')
        quote = c == quote ? '\0' : quote;
      else if (c == '"' || c == '\'')
        quote = c;
      else if (open == 0 && text.substr(i).startswith(sign))
        return i;
      open += c == '(' || c == '[' || c == '{' ? 1 : 0;
      open -= c == ')' || c == ']' || c == '}' ? 1 : 0;
    }
    return llvm::StringRef::npos;
  }

  /// A literal; null for anything else.
  TreePtr valueOf(llvm::StringRef text) const {
    TreePtr value = readPythonValue(text.trim(), SourceLoc());
    value = value == nullptr ? nullptr : resolve_(*value);
    bool isLiteral = value != nullptr && value->kind != Tree::Kind::Name && value->call.empty();
    return isLiteral ? value : nullptr;
  }

  static Truth truth(const Tree &value) {
    if (std::optional<double> number = comparedNumber(value))
      return truthOf(*number != 0);
    return truthOf(!value.text.empty() || !value.items.empty() || !value.entries.empty());
  }

  static Truth compare(const TreePtr &left, llvm::StringRef sign, const TreePtr &right) {
    if (left == nullptr || right == nullptr)
      return Truth::Unknown;
    if (sign == "is" || sign == "is not") {
      bool isNone = left->isNone() || right->isNone();
      Truth same = isNone ? truthOf(left->isNone() && right->isNone()) : Truth::Unknown;
      return sign == "is" ? same : negated(same);
    }
    std::optional<double> a = comparedNumber(*left), b = comparedNumber(*right);
    if (a && b)
      return truthOf(sign == "=="   ? *a == *b
                     : sign == "!=" ? *a != *b
                     : sign == "<"  ? *a < *b
                     : sign == "<=" ? *a <= *b
                     : sign == ">"  ? *a > *b
                                    : *a >= *b);
    bool isScalar = left->items.empty() && right->items.empty() && left->entries.empty() &&
                    right->entries.empty();
    if (!isScalar || (sign != "==" && sign != "!="))
      return Truth::Unknown;
    bool isSame = left->kind == right->kind && left->text == right->text;
    return truthOf(isSame == (sign == "=="));
  }

  const std::function<TreePtr(const Tree &)> &resolve_;
};

} // namespace

Truth evaluateCondition(llvm::StringRef text, const std::function<TreePtr(const Tree &)> &resolve) {
  return Condition(resolve).evaluate(text);
}

} // namespace shardc::upstream
