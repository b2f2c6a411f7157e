#include "compiler/upstream/Pattern.h"

namespace shardc::upstream {
namespace {

constexpr size_t kElementsMax = 100'000;
constexpr unsigned kPatternDepthMax = 16;

/// A list, or a number that a list is multiplied by.
struct Operand {
  bool isList = false;
  int64_t number = 0;
  std::vector<int64_t> list;
};

class PatternReader {
public:
  explicit PatternReader(llvm::StringRef text) : rest_(text) {}

  std::optional<std::vector<int64_t>> read() {
    std::optional<Operand> sum = readSum();
    skipBlanks();
    if (!sum || !sum->isList || !rest_.empty())
      return std::nullopt;
    return std::move(sum->list);
  }

private:
  void skipBlanks() { rest_ = rest_.ltrim(" \t"); }
  bool consume(char c) {
    skipBlanks();
    return rest_.consume_front(llvm::StringRef(&c, 1));
  }

  std::optional<Operand> readSum() {
    std::optional<Operand> sum = readProduct();
    while (sum && consume('+')) {
      std::optional<Operand> next = readProduct();
      if (!next || next->isList != sum->isList ||
          sum->list.size() + next->list.size() > kElementsMax ||
          __builtin_add_overflow(sum->number, next->number, &sum->number))
        return std::nullopt;
      sum->list.insert(sum->list.end(), next->list.begin(), next->list.end());
    }
    return sum;
  }

  std::optional<Operand> readProduct() {
    std::optional<Operand> product = readAtom();
    while (product && consume('*')) {
      std::optional<Operand> next = readAtom();
      if (!next || (next->isList && product->isList))
        return std::nullopt;
      product = multiply(*product, *next);
    }
    return product;
  }

  static std::optional<Operand> multiply(const Operand &a, const Operand &b) {
    Operand out;
    if (!a.isList && !b.isList)
      return __builtin_mul_overflow(a.number, b.number, &out.number) ? std::nullopt
                                                                     : std::optional(out);
    const Operand &list = a.isList ? a : b;
    int64_t times = a.isList ? b.number : a.number;
    out.isList = true;
    if (times > 0 && !list.list.empty() &&
        static_cast<uint64_t>(times) > kElementsMax / list.list.size())
      return std::nullopt;
    for (int64_t i = 0; i < times && !list.list.empty(); ++i)
      out.list.insert(out.list.end(), list.list.begin(), list.list.end());
    return out;
  }

  std::optional<Operand> readAtom() {
    skipBlanks();
    if (depth_ >= kPatternDepthMax)
      return std::nullopt;
    if (consume('(')) {
      ++depth_;
      std::optional<Operand> inner = readSum();
      --depth_;
      return inner && consume(')') ? inner : std::nullopt;
    }
    if (consume('['))
      return readList();
    Operand out;
    if (rest_.consumeInteger(10, out.number))
      return std::nullopt;
    return out;
  }

  std::optional<Operand> readList() {
    Operand out;
    out.isList = true;
    while (!consume(']')) {
      if (!out.list.empty() && !consume(','))
        return std::nullopt;
      skipBlanks();
      int64_t number = 0;
      if (rest_.consumeInteger(10, number) || out.list.size() >= kElementsMax)
        return std::nullopt;
      out.list.push_back(number);
    }
    return out;
  }

  llvm::StringRef rest_;
  unsigned depth_ = 0;
};

} // namespace

std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text) {
  return PatternReader(text).read();
}

} // namespace shardc::upstream
