#include "compiler/upstream/Pattern.h"

#include <algorithm>

#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

constexpr size_t kElementsMax = 100'000;
constexpr unsigned kArithmeticDepthMax = 40;

/// A number, or a list of them.
struct Operand {
  int64_t number = 0;
  std::optional<std::vector<int64_t>> list;
};
using Evaluated = std::optional<Operand>;

class Arithmetic {
public:
  using ValueOf = std::function<std::optional<int64_t>(llvm::StringRef)>;

  /// `valueOf`: none for Python's lists.
  Arithmetic(llvm::StringRef text, ValueOf valueOf) : rest_(text), valueOf_(std::move(valueOf)) {}

  Evaluated run() {
    Evaluated value = sum();
    return next() == '\0' && rest_.empty() ? value : std::nullopt;
  }

private:
  bool hasLists() const { return valueOf_ == nullptr; }
  char next() {
    rest_ = hasLists() ? rest_.ltrim(" \t") : rest_.ltrim();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool consume(char c) {
    bool isNext = next() == c && !rest_.empty();
    rest_ = rest_.drop_front(isNext ? 1 : 0);
    return isNext;
  }
  /// The operator that comes next, if it is one of these.
  char takeOperator(llvm::StringRef lists, llvm::StringRef numbers) {
    char op = next();
    bool isOne = op != '\0' && (hasLists() ? lists : numbers).contains(op);
    return isOne && consume(op) ? op : '\0';
  }

  Evaluated sum() {
    Evaluated left = product();
    while (char op = left ? takeOperator("+", "+-") : '\0') {
      Evaluated right = product();
      left = right ? op == '-' ? subtract(*left, *right) : add(*left, *right) : right;
    }
    return left;
  }

  Evaluated product() {
    Evaluated left = atom();
    while (char op = left ? takeOperator("*", "*/%") : '\0') {
      Evaluated right = atom();
      left = right ? op == '*' ? multiply(*left, *right) : divide(*left, *right, op) : right;
    }
    return left;
  }

  static Evaluated add(const Operand &a, const Operand &b) {
    Operand out = a;
    if (a.list.has_value() != b.list.has_value() ||
        (a.list && a.list->size() + b.list->size() > kElementsMax) ||
        __builtin_add_overflow(a.number, b.number, &out.number))
      return std::nullopt;
    if (a.list)
      out.list->insert(out.list->end(), b.list->begin(), b.list->end());
    return out;
  }

  static Evaluated subtract(const Operand &a, const Operand &b) {
    Operand out;
    return __builtin_sub_overflow(a.number, b.number, &out.number) ? Evaluated() : out;
  }

  static Evaluated multiply(const Operand &a, const Operand &b) {
    Operand out;
    if (!a.list && !b.list)
      return __builtin_mul_overflow(a.number, b.number, &out.number) ? Evaluated() : out;
    const std::vector<int64_t> &list = a.list ? *a.list : *b.list;
    int64_t times = list.empty() ? 0 : std::max<int64_t>(a.list ? b.number : a.number, 0);
    if ((a.list && b.list) ||
        (times > 0 && static_cast<uint64_t>(times) > kElementsMax / list.size()))
      return std::nullopt;
    out.list.emplace();
    for (int64_t i = 0; i < times; ++i)
      out.list->insert(out.list->end(), list.begin(), list.end());
    return out;
  }

  static Evaluated divide(const Operand &a, const Operand &b, char op) {
    if (b.number == 0 || b.number == -1)
      return std::nullopt;
    return Operand{op == '/' ? a.number / b.number : a.number % b.number, {}};
  }

  Evaluated atom() {
    if (++depth_ > kArithmeticDepthMax)
      return std::nullopt;
    Evaluated value = atomAtDepth();
    --depth_;
    return value;
  }

  Evaluated atomAtDepth() {
    if (consume('(')) {
      Evaluated inner = sum();
      return inner && consume(')') ? inner : std::nullopt;
    }
    if (hasLists() && consume('['))
      return list();
    if (char sign = takeOperator("-", "+-")) {
      // Two signs in a row are another operator.
      Evaluated value = rest_.startswith("-") || rest_.startswith("+") ? Evaluated() : atom();
      return value && sign == '-' && !value->list ? subtract({}, *value) : value;
    }
    llvm::StringRef word = rest_.take_while([](char c) { return llvm::isAlnum(c) || c == '_'; });
    rest_ = rest_.drop_front(word.size());
    if (word.empty() || rest_.startswith("#") || (!hasLists() && rest_.startswith("[")))
      return std::nullopt;
    int64_t number = 0;
    std::optional<int64_t> value = !hasLists()                     ? valueOf_(word)
                                   : word.getAsInteger(10, number) ? std::nullopt
                                                                   : std::optional(number);
    return value ? Evaluated(Operand{*value, {}}) : std::nullopt;
  }

  Evaluated list() {
    Operand out;
    out.list.emplace();
    while (!consume(']')) {
      int64_t number = 0;
      if ((!out.list->empty() && !consume(',')) || out.list->size() >= kElementsMax ||
          next() == '\0' || rest_.consumeInteger(10, number))
        return std::nullopt;
      out.list->push_back(number);
    }
    return out;
  }

  llvm::StringRef rest_;
  ValueOf valueOf_;
  unsigned depth_ = 0;
};

} // namespace

std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text) {
  Evaluated value = Arithmetic(text, nullptr).run();
  return value ? value->list : std::nullopt;
}

std::optional<int64_t>
evaluateShell(llvm::StringRef text,
              const std::function<std::optional<int64_t>(llvm::StringRef)> &valueOf) {
  Evaluated value = Arithmetic(text, valueOf).run();
  return value ? std::optional(value->number) : std::nullopt;
}

} // namespace shardc::upstream
