// Unfolds a fused op into the plain ones that its lemma says.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

std::vector<State> Compute::apply(const Call &call) {
  why_.clear();
  const Lemma *lemma = lemmaOf(call.kind, call.operands.size(), call.results.size());
  return lemma ? unfold(*lemma, call) : applyPlain(call);
}

std::vector<State> Compute::unfold(const Lemma &lemma, const Call &call) {
  std::vector<std::optional<State>> values(lemma.valueCount);
  std::vector<const Type *> types(lemma.valueCount);
  for (size_t i = 0; i < call.operands.size(); ++i)
    values[i] = *call.operands[i].state, types[i] = call.operands[i].type;
  std::vector<bool> isNeeded(lemma.valueCount);
  for (size_t r = 0; r < call.results.size(); ++r)
    isNeeded[lemma.results[r]] = true, types[lemma.results[r]] = call.results[r];
  std::vector<bool> isRun(lemma.steps.size());
  for (size_t s = lemma.steps.size(); s-- > 0;) {
    isRun[s] =
        std::ranges::any_of(lemma.steps[s].results, [&](uint8_t value) { return isNeeded[value]; });
    if (isRun[s])
      for (uint8_t value : lemma.steps[s].operands)
        isNeeded[value] = true;
  }
  for (const Attr &attr : call.attrs) {
    bool isHanded = std::ranges::any_of(lemma.steps, [&](const LemmaStep &step) {
      return opInfo(step.kind).attrs.has(attr.key);
    });
    if (!isHanded && !opInfo(call.kind).unmeant.has(attr.key))
      refuse(fmt::format("has {}, which no step of its row takes", attrInfo(attr.key).name));
  }
  const Type *first = call.operands[0].type;
  bool isProduct = opInfo(call.kind).work.cost == CostClass::Product;
  if (isProduct && call.results[0]) // which may be of another type than its factors
    first = call.results[0];
  DType between = first ? first->dtype : call.between;
  for (size_t s = 0; s < lemma.steps.size() && why_.empty(); ++s) {
    if (!isRun[s])
      continue;
    const LemmaStep &step = lemma.steps[s];
    Call plain = {step.kind, {}, call.group, {}, {}, between, 0};
    for (const Attr &attr : call.attrs)
      if (opInfo(step.kind).attrs.has(attr.key))
        plain.attrs.push_back(attr);
    for (auto [key, value] : step.set)
      plain.attrs.push_back({key, {.i = value}});
    std::ranges::sort(plain.attrs, {}, &Attr::key);
    for (uint8_t value : step.operands)
      if (values[value])
        plain.operands.push_back({&*values[value], types[value]});
    for (uint8_t value : step.results)
      plain.results.push_back(types[value]);
    if (!opInfo(step.kind).takesIndex())
      plain.group.clear();
    std::vector<State> made = applyPlain(plain);
    for (size_t r = 0; r < step.results.size(); ++r)
      values[step.results[r]] = std::move(made[r]);
  }
  std::vector<State> results;
  for (size_t r = 0; r < call.results.size(); ++r)
    results.push_back(values[lemma.results[r]].value_or(State()));
  return results;
}

} // namespace shardc::plan::spec
