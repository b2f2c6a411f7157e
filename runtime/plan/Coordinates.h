// Rank-dependent parts of a plan: offsets that depend on a rank's index in a group, and pipeline
// stages. docs/coordinates.md explains groups and indices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- offsets that depend on a rank's index in one group ----

/// A linear function of a rank's index in one group: offset + coef · index(group).
struct Moving {
  int64_t offset = 0;
  int64_t coef = 0;
  int16_t group = -1; ///< index in Plan::groups; -1 where coef is 0

  bool isFixed() const { return coef == 0; }
  int64_t at(int64_t index) const { return offset + coef * index; }
  bool operator==(const Moving &) const = default;
  auto operator<=>(const Moving &) const = default;
};

/// The index of the view's first element in its operand, counted in elements.
Moving beginOf(const Op &view);

/// The sum of two linear functions, or nothing if no single group of the plan expresses it. Let i
/// be the index in a group of n ranks and j the index in another group. If the plan has a group
/// with the axes of both, the index there is n · i + j; so a sum with the coefficients n · c of i
/// and c of j has the coefficient c in that group.
std::optional<Moving> sumOf(const Plan &plan, const Moving &a, const Moving &b);

/// Whether the axes of `group` are those of `first` followed by those of `second`. Axes of size 1
/// are ignored; group -1 has no axes.
bool isComposedOf(const Plan &plan, int16_t group, int16_t first, int16_t second);

// ---- pipeline stages ----

/// Whether roles send to each other: they are then pipeline stages, in the plan's order.
bool isPipeline(const Plan &plan);
/// Text for messages, such as `, stage 2 of 4`, to append to a rank; empty without a pipeline.
std::string stageOf(const Plan &plan, uint32_t role);

// ---- channels ----

/// The channels that ops of these roles use, in the order in which ranks create their
/// communicators: the order of the plan's table. All ranks follow this one order, so the members of
/// the first channel that is still missing are always ready to create it: creation cannot deadlock.
std::vector<ChannelId> channelOrder(const Plan &plan, std::span<const uint32_t> roles);

} // namespace shardc::plan
