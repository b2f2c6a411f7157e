// How the ranks of a plan differ: what moves with a rank's index in a group, and the stages of a
// pipeline. docs/coordinates.md explains groups and indices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- what moves with a rank's index in one group ----

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

// ---- roles that send to each other are the stages of a pipeline ----

/// Roles send to each other: they are stages, in the plan's order.
bool isPipeline(const Plan &plan);
/// `, stage 2 of 4` of a role of a pipeline, to stand behind a rank; empty of other roles.
std::string stageOf(const Plan &plan, uint32_t role);

// ---- channels ----

/// The channels that ops of these roles use, in the order in which ranks create them: that of the
/// plan's table. It is one order for all ranks, so of all channels that are left, all members of
/// the first are there to create it.
std::vector<ChannelId> channelOrder(const Plan &plan, std::span<const uint32_t> roles);

} // namespace shardc::plan
