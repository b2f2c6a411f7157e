// Parses the rows of Spec.def, once.
#include "runtime/verify/spec/Rows.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace shardc::plan::spec {
namespace {

/// Reads a row from left to right. Values are numbered in the order in which their names appear.
class LemmaReader {
public:
  explicit LemmaReader(OpKind kind) { lemma_.kind = kind; }

  std::optional<Lemma> read(std::string_view values, std::string_view steps) {
    size_t arrow = values.find("->");
    if (arrow == std::string_view::npos)
      return std::nullopt;
    std::string_view operands = values.substr(0, arrow), results = values.substr(arrow + 2);
    for (std::string_view name = word(operands); !name.empty(); name = word(operands)) {
      bool mayLack = name.ends_with('?');
      number(mayLack ? name.substr(0, name.size() - 1) : name);
      ++lemma_.operandsMax;
      lemma_.operandsMin += mayLack ? 0 : 1;
    }
    while (!steps.empty())
      if (!readStep(takeUntil(steps, ';')))
        return std::nullopt;
    for (std::string_view name = word(results); !name.empty(); name = word(results)) {
      lemma_.results.push_back(number(name));
      if (!isMade(lemma_.results.back()))
        return std::nullopt;
    }
    lemma_.valueCount = static_cast<uint8_t>(names_.size());
    return lemma_;
  }

private:
  static std::string_view word(std::string_view &text) {
    text = trimmed(text);
    return takeUntil(text, ' ');
  }

  uint8_t number(std::string_view name) {
    auto at = std::ranges::find(names_, name);
    if (at == names_.end())
      at = names_.insert(at, name);
    return static_cast<uint8_t>(at - names_.begin());
  }
  bool isMade(uint8_t value) const {
    if (value < lemma_.operandsMax)
      return true;
    return std::ranges::any_of(lemma_.steps, [&](const LemmaStep &step) {
      return std::ranges::find(step.results, value) != step.results.end();
    });
  }

  bool readStep(std::string_view text) {
    LemmaStep step;
    std::string_view results = takeUntil(text, '=');
    text = trimmed(text);
    size_t end = text.find_first_of("{ ");
    std::optional<OpForm> form = parseOpForm(text.substr(0, end));
    if (!form)
      return false;
    step.kind = form->kind;
    text.remove_prefix(std::min(end, text.size()));
    if (text.starts_with('{')) {
      text.remove_prefix(1);
      if (!readAttrs(takeUntil(text, '}'), step))
        return false;
    }
    for (std::string_view name = word(text); !name.empty(); name = word(text)) {
      step.operands.push_back(number(name));
      if (!isMade(step.operands.back()))
        return false;
    }
    for (std::string_view name = word(results); !name.empty(); name = word(results)) {
      bool isTyped = name.ends_with(':');
      step.results.push_back(number(name.substr(0, name.size() - (isTyped ? 1 : 0))));
      if (isTyped && word(results) != "f32")
        return false;
      lemma_.wide |= isTyped ? 1u << step.results.back() : 0;
    }
    lemma_.steps.push_back(std::move(step));
    return true;
  }

  static bool readAttrs(std::string_view text, LemmaStep &step) {
    for (std::string_view each = word(text); !each.empty(); each = word(text)) {
      std::string_view name = takeUntil(each, '=');
      std::optional<AttrKey> key = parseAttrKey(name);
      if (!key || !opInfo(step.kind).attrs.has(*key))
        return false;
      int64_t value = 0;
      if (std::from_chars(each.data(), each.data() + each.size(), value).ec != std::errc())
        return false;
      step.set.emplace_back(*key, value);
    }
    return true;
  }

  Lemma lemma_;
  std::vector<std::string_view> names_;
};

std::vector<Lemma> readLemmas() {
  std::vector<Lemma> lemmas;
#define LEMMA(op, values, steps) lemmas.push_back(parseLemma(OpKind::op, values, steps).value());
#include "runtime/verify/spec/Spec.def"
  return lemmas;
}

/// A bit for each of the op's operands with one of these names.
consteval uint32_t operandBits(OpKind kind, std::string_view names) {
  uint32_t bits = 0;
  while (!names.empty())
    bits |= 1u << positionOf(names::kOperands[static_cast<size_t>(kind)], takeUntil(names, ' '));
  return bits;
}

} // namespace

std::optional<Lemma> parseLemma(OpKind kind, std::string_view values, std::string_view steps) {
  return LemmaReader(kind).read(values, steps);
}

std::span<const Lemma> allLemmas() {
  static const std::vector<Lemma> kLemmas = readLemmas();
  return kLemmas;
}

const Lemma *lemmaOf(OpKind kind, size_t operands, size_t results) {
  for (const Lemma &lemma : allLemmas())
    if (lemma.kind == kind && operands >= lemma.operandsMin && operands <= lemma.operandsMax &&
        results <= lemma.results.size())
      return &lemma;
  return nullptr;
}

Linearity linearity(OpKind kind, size_t operand) {
  auto has = [&](uint32_t bits) { return operand < 32 && (bits >> operand & 1u) != 0; };
#define LINEAR(op, how, operands)                                                                  \
  if (kind == OpKind::op && has(operandBits(OpKind::op, operands)))                                \
    return Linearity::how;
#include "runtime/verify/spec/Spec.def"
  return Linearity::None;
}

int unusedOperand(OpKind kind, std::span<const Attr> attrs) {
  for (const Attr &attr : attrs)
#define UNUSED(op, operand, attribute)                                                             \
  if (kind == OpKind::op && attr.key == AttrKey::attribute && attr.i != 0)                         \
    return static_cast<int>(operandIndex<OpKind::op>(#operand));
#include "runtime/verify/spec/Spec.def"
    return -1;
}

std::vector<Attr> meantAttrs(OpKind kind, std::span<const Attr> attrs) {
  std::vector<Attr> meant;
  std::ranges::copy_if(attrs, std::back_inserter(meant),
                       [&](const Attr &attr) { return !opInfo(kind).unmeant.has(attr.key); });
  return meant;
}

} // namespace shardc::plan::spec
