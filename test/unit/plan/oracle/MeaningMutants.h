// Changes of what a plan means: operands, attributes, tables, parts, scales, microbatches. Most
// keep every rule of form, so that only a proof of what is computed can tell.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

enum class Meaning : uint8_t {
  Operand,
  Attribute,
  NewAttribute,
  Table,
  Offset,
  Copies,
  Group,
  DroppedOp,
  Microbatch,
  Cell,
  Results,
  Kind,
  Program
};
inline constexpr int kMeaningCount = static_cast<int>(Meaning::Program) + 1;
std::string_view toString(Meaning meaning);

/// Changes the plan at a place drawn from `random`. Returns what was done; empty if there is no
/// such place, and then the plan may be anything.
std::string mutateMeaning(Plan &plan, Meaning meaning, std::mt19937_64 &random);

} // namespace shardc::plan::oracle
