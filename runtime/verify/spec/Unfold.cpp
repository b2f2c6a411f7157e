// Unfolds a fused op into the plain ones that its steps say.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

std::vector<State> Compute::apply(const Call &call) {
  why_.clear();
  const OpSteps *row = stepsOf(call.kind, call.operands.size(), call.results.size());
  return row ? unfold(*row, call) : applyPlain(call);
}

std::vector<State> Compute::unfold(const OpSteps &row, const Call &call) {
  std::vector<std::optional<State>> values(row.valueCount);
  std::vector<const Type *> types(row.valueCount);
  for (size_t i = 0; i < call.operands.size(); ++i)
    values[i] = *call.operands[i].state, types[i] = call.operands[i].type;
  for (size_t r = 0; r < call.results.size(); ++r)
    types[row.results[r]] = call.results[r];
  const NeededSteps needed = neededSteps(row, call.results.size());
  for (const Attr &attr : call.attrs) {
    bool isHanded = std::ranges::any_of(
        row.steps, [&](const OpStep &step) { return opInfo(step.kind).attrs.has(attr.key); });
    if (!isHanded && !opInfo(call.kind).unmeant.has(attr.key))
      refuse(fmt::format("has {}, which no step of its row takes", attrInfo(attr.key).name));
  }
  // A product may be of another type than its factors.
  bool isProduct = opInfo(call.kind).work.cost == CostClass::Product;
  const Type *first = isProduct ? call.results[0] : call.operands[0].type;
  DType between = first ? first->dtype : call.between;
  for (size_t s = 0; s < row.steps.size() && why_.empty(); ++s) {
    if (!needed.hasStep(s))
      continue;
    const OpStep &step = row.steps[s];
    Call plain = {step.kind, {}, call.group, {}, {}, between, 0};
    for (const Attr &attr : call.attrs)
      if (opInfo(step.kind).attrs.has(attr.key))
        plain.attrs.push_back(attr);
    for (const OpStep::Set &set : step.set)
      plain.attrs.push_back({set.key, {.i = set.value}});
    std::ranges::sort(plain.attrs, {}, &Attr::key);
    for (uint8_t value : step.operands)
      if (values[value])
        plain.operands.push_back({&*values[value], types[value]});
    for (uint8_t value : step.results)
      plain.results.push_back(types[value]);
    if (!opInfo(step.kind).takesIndex() ||
        (factorsOf(step.kind).hasShares() && !factorsOf(call.kind).hasShares()))
      plain.group.clear();
    const OpSteps *more = step.kind == call.kind
                              ? nullptr
                              : stepsOf(step.kind, plain.operands.size(), plain.results.size());
    std::vector<State> made = more ? unfold(*more, plain) : applyPlain(plain);
    for (size_t r = 0; r < step.results.size(); ++r)
      values[step.results[r]] = std::move(made[r]);
  }
  std::vector<State> results;
  for (size_t r = 0; r < call.results.size(); ++r)
    results.push_back(values[row.results[r]].value_or(State()));
  return results;
}

} // namespace shardc::plan::spec
