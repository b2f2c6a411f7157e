// The kinds of names that a plan's text declares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/plan/Limits.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

enum class NameKind : uint8_t {
  Option,
  Axis,
  Group,
  Stream,
  Channel,
  Class,
  Unit,
  Block,
  Param,
  Role,
  Cell,
  Segment,
  kLast = Segment
};
inline constexpr size_t kNameKinds = static_cast<size_t>(NameKind::kLast) + 1;

/// How messages call an entry and entries of a table, and how many it may have.
struct NameInfo {
  std::string_view what, plural;
  int64_t max;
};
constexpr NameInfo info(NameKind kind) {
  constexpr NameInfo kInfos[kNameKinds] = {
      {"option", "variables", limits::kVariablesMax},
      {"mesh axis", "mesh axes", limits::kMeshAxesMax},
      {"group", "groups", limits::kGroupsMax},
      {"stream", "streams", static_cast<int64_t>(kStreamsMax)},
      {"channel", "channels", limits::kChannelsMax},
      {"class", "classes", limits::kClassesMax},
      {"unit", "units", limits::kUnitsMax},
      {"block", "blocks", limits::kBlocksMax},
      {"parameter", "parameters", limits::kParamsMax},
      {"role", "roles", limits::kRolesMax},
      {"cell", "cells", limits::kCellsMax},
      {"segment", "segments", limits::kSegmentsMax},
  };
  return kInfos[static_cast<size_t>(kind)];
}

} // namespace shardc::plan
