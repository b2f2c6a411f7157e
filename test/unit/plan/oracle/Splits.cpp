#include "Splits.h"

#include <algorithm>

namespace shardc::plan::oracle {

Splits::Splits(const Plan &plan, const Positions &positions)
    : plan_(plan), positions_(positions),
      any_(std::ranges::any_of(plan.params,
                               [](const Param &param) { return !param.splits.empty(); })) {}

bool Splits::areSame(const Param &param, int64_t a, int64_t b) const {
  return std::ranges::all_of(param.splits, [&](const Split &split) {
    return positions_.in(split.group, a) == positions_.in(split.group, b);
  });
}

bool Splits::areSame(int32_t block, int64_t a, int64_t b) const {
  return std::ranges::all_of(plan_.params, [&](const Param &param) {
    return param.block != block || areSame(param, a, b);
  });
}

std::vector<const Param *> Splits::shared(int32_t block, int64_t a, int64_t b) const {
  std::vector<const Param *> params;
  for (const Param &param : plan_.params)
    if (param.block == block && areSame(param, a, b))
      params.push_back(&param);
  return params;
}

Number Splits::of(int32_t block, int64_t begin, int64_t numel, int64_t rank) const {
  Number number = 0;
  for (const Param &param : plan_.params)
    for (const Split &split : param.splits)
      if (param.block == block && param.offset < begin + numel &&
          begin < param.offset + param.type.numel())
        number = mix(number, static_cast<Number>(positions_.in(split.group, rank)) + 1);
  return number;
}

bool Splits::counts(const Param &param, int64_t rank) const {
  return std::ranges::all_of(param.copies,
                             [&](int16_t group) { return positions_.in(group, rank) == 0; });
}

bool areAlike(const Pieces &a, const Pieces &b, int64_t begin, int64_t numel) {
  auto countsAt = [](const Pieces &pieces, int64_t element) {
    std::map<Number, int> counts;
    for (const Piece &piece : pieces)
      if (piece.begin <= element && element < piece.end)
        counts.insert(piece.counts.begin(), piece.counts.end());
    return counts;
  };
  for (int64_t element = begin; element < begin + numel; ++element)
    if (countsAt(a, element) != countsAt(b, element))
      return false;
  return true;
}

} // namespace shardc::plan::oracle
