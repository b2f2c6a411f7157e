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
    Evaluated value = sum();
    return value && value->isList && rest_.ltrim(" \t").empty() ? value : std::nullopt;
  }

private:
  bool consume(llvm::StringRef what) {
    rest_ = rest_.ltrim(" \t");
    return rest_.consume_front(what);
  }

  Evaluated sum() {
    Evaluated left = product();
    while (left && consume("+")) {
      Evaluated right = product();
      if (!right || !left->isList || !right->isList ||
          left->elements.size() + right->elements.size() > kElementsMax)
        return std::nullopt;
      left->elements.insert(left->elements.end(), right->elements.begin(), right->elements.end());
    }
    return left;
  }

  Evaluated product() {
    Evaluated left = atom();
    while (left && consume("*")) {
      Evaluated right = atom();
      if (!right || left->isList == right->isList)
        return std::nullopt;
      const std::vector<int64_t> &list = (left->isList ? left : right)->elements;
      int64_t times = (left->isList ? right : left)->elements.front();
      if (times > 0 &&
          static_cast<uint64_t>(times) > kElementsMax / std::max<size_t>(list.size(), 1))
        return std::nullopt;
      Operand product{true, {}};
      for (int64_t i = 0; i < times && !list.empty(); ++i)
        product.elements.insert(product.elements.end(), list.begin(), list.end());
      left = std::move(product);
    }
    return left;
  }

  /// Parses a list, a number, or a sum in parentheses.
  Evaluated atom() {
    if (consume("(")) {
      Evaluated inner = ++depth_ > kBracketsMax ? std::nullopt : sum();
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
