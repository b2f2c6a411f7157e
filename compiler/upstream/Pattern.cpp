#include "compiler/upstream/Pattern.h"

#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

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

} // namespace

std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text) {
  Evaluated value = Lists(text).run();
  return value ? std::optional(std::move(value->elements)) : std::nullopt;
}

} // namespace shardc::upstream
