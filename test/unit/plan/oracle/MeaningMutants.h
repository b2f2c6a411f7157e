// Changes of a plan's meaning: operands, attributes, tables, parts, scales, microbatches. Most keep
// all rules of form, so only a proof of what is computed can find them.
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

/// Changes the plan at a random place. Returns what was done; empty if there is no such place, and
/// then the plan may have been changed in any way.
std::string mutateMeaning(Plan &plan, Meaning meaning, std::mt19937_64 &random);

} // namespace shardc::plan::oracle
