// What differs between the ranks of a role: it moves with a rank's index in one group.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// offset + coef · index(group)
struct Moving {
  int64_t offset = 0;
  int64_t coef = 0;
  int16_t group = -1; ///< index in Plan::groups; -1 where coef is 0

  bool isFixed() const { return coef == 0; }
  int64_t at(int64_t index) const { return offset + coef * index; }
  bool operator==(const Moving &) const = default;
  auto operator<=>(const Moving &) const = default;
};

/// The first element of a view in its operand.
Moving beginOf(const Op &view);

/// The sum of both. Nothing if it moves with the index of no single group of the plan. It does for
/// the index i in a group of n ranks and j in another one where a group has the axes of both:
/// its index is n · i + j, so what moves by n · c with i and by c with j moves by c with it.
std::optional<Moving> sumOf(const Plan &plan, const Moving &a, const Moving &b);

/// True if the axes of `group` that have several coordinates are those of `first` and then those of
/// `second`. Group -1 has none.
bool isComposedOf(const Plan &plan, int16_t group, int16_t first, int16_t second);
/// True if the axes of `larger` that have several coordinates begin with those of `group`.
bool isExtendedBy(const Plan &plan, int16_t group, int16_t larger);

} // namespace shardc::plan
