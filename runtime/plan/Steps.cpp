// Parses the rows of Steps.def, once.
#include "runtime/plan/Steps.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace shardc::plan {
namespace {

/// Reads a row from left to right. Values are numbered in the order in which their names appear.
class StepsReader {
public:
  explicit StepsReader(OpForm form) { row_.form = form; }

  std::optional<OpSteps> read(std::string_view values, std::string_view steps) {
    size_t arrow = values.find("->");
    if (arrow == std::string_view::npos)
      return std::nullopt;
    std::string_view operands = values.substr(0, arrow), results = values.substr(arrow + 2);
    for (std::string_view name = word(operands); !name.empty(); name = word(operands)) {
      number(withoutMark(name));
      ++row_.operandsMax;
      row_.operandsMin += name.ends_with('?') ? 0 : 1;
    }
    while (!steps.empty())
      if (!readStep(takeUntil(steps, ';')))
        return std::nullopt;
    for (std::string_view name = word(results); !name.empty(); name = word(results)) {
      row_.results.push_back(number(withoutMark(name)));
      if (!isMade(row_.results.back()))
        return std::nullopt;
    }
    row_.valueCount = static_cast<uint8_t>(names_.size());
    bool fits = row_.steps.size() <= kStepsMax && names_.size() <= kValuesOfStepsMax;
    return fits ? std::optional(row_) : std::nullopt;
  }

private:
  static std::string_view word(std::string_view &text) {
    text = trimmed(text);
    return takeUntil(text, ' ');
  }
  static std::string_view withoutMark(std::string_view name) {
    return name.substr(0, name.size() - (name.ends_with('?') ? 1 : 0));
  }

  uint8_t number(std::string_view name) {
    auto at = std::ranges::find(names_, name);
    if (at == names_.end())
      at = names_.insert(at, name);
    return static_cast<uint8_t>(at - names_.begin());
  }
  bool isMade(uint8_t value) const {
    if (value < row_.operandsMax)
      return true;
    return std::ranges::any_of(row_.steps, [&](const OpStep &step) {
      return std::ranges::find(step.results, value) != step.results.end();
    });
  }

  bool readStep(std::string_view text) {
    OpStep step;
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
      row_.wide |= isTyped ? 1u << step.results.back() : 0;
    }
    row_.steps.push_back(std::move(step));
    return true;
  }

  bool readAttrs(std::string_view text, OpStep &step) const {
    for (std::string_view each = word(text); !each.empty(); each = word(text)) {
      std::string_view name = takeUntil(each, '=');
      std::optional<AttrKey> key = parseAttrKey(name), from = parseAttrKey(each);
      if (!key || !opInfo(step.kind).attrs.has(*key))
        return false;
      int64_t value = 0;
      if (from ? !opInfo(row_.form.kind, row_.form.epilogue).attrs.has(*from)
               : std::from_chars(each.data(), each.data() + each.size(), value).ec != std::errc())
        return false;
      step.set.push_back({*key, value, from});
    }
    return true;
  }

  OpSteps row_;
  std::vector<std::string_view> names_;
};

std::vector<OpSteps> readRows() {
  std::vector<OpSteps> rows;
  auto add = [&](OpForm form, std::string_view values, std::string_view steps) {
    rows.push_back(parseSteps(form, values, steps).value());
  };
  auto addForm = [&](OpForm form, std::string_view steps) {
    const OpInfo &info = opInfo(form.kind, form.epilogue);
    add(form, std::string(info.operands) + " -> " + std::string(info.results), steps);
  };
#define FUSED(op, values, steps) add({OpKind::op}, values, steps);
#define EQUALS(op, values, steps) add({OpKind::op}, values, steps);
#define FORM(op, epilogue, steps) addForm({OpKind::op, Epilogue::epilogue}, steps);
#include "runtime/plan/Steps.def"
  return rows;
}

} // namespace

std::optional<OpSteps> parseSteps(OpForm form, std::string_view values, std::string_view steps) {
  return StepsReader(form).read(values, steps);
}

std::span<const OpSteps> allSteps() {
  static const std::vector<OpSteps> kRows = readRows();
  return kRows;
}

const OpSteps *stepsOf(OpForm form, size_t operands, size_t results) {
  for (const OpSteps &row : allSteps())
    if (row.form.kind == form.kind && row.form.epilogue == form.epilogue &&
        operands >= row.operandsMin && operands <= row.operandsMax && results <= row.results.size())
      return &row;
  return nullptr;
}

NeededSteps neededSteps(const OpSteps &row, size_t results) {
  NeededSteps needed;
  for (size_t r = 0; r < results; ++r)
    needed.values |= 1u << row.results[r];
  for (size_t s = row.steps.size(); s-- > 0;) {
    const OpStep &step = row.steps[s];
    if (std::ranges::none_of(step.results, [&](uint8_t value) { return needed.hasValue(value); }))
      continue;
    needed.steps |= 1u << s;
    for (uint8_t value : step.operands)
      needed.values |= 1u << value;
  }
  return needed;
}

} // namespace shardc::plan
