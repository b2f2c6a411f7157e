// The steps of fused ops: the rows FUSED, FORM and EQUALS of Ops.def, parsed. Passes, backends and
// the proof of plans read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/plan/Factors.h"

namespace shardc::plan {

inline constexpr size_t kStepsMax = 8, kValuesOfStepsMax = 24; ///< of one row

/// One op of the steps. Values are numbered; the operands of the fused op come first.
struct OpStep {
  /// An attribute that the step sets: to a number, or to another attribute of the fused op.
  struct Set {
    AttrKey key{};
    int64_t value = 0;
    std::optional<AttrKey> from;
  };
  OpKind kind = OpKind::Add;
  ShortList<Set, 3> set;
  AttrSet own; ///< attributes that it does not take from the fused op
  ShortList<uint8_t, kOperandsOfOpMax> operands;
  ShortList<uint8_t, kResultsOfOpMax> results;
};

/// The other ops that a fused op equals.
struct OpSteps {
  OpKind kind = OpKind::Add;
  uint8_t operandsMin = 0, operandsMax = 0, valueCount = 0;
  ShortList<uint8_t, kResultsOfOpMax> results; ///< value numbers of the op's results
  uint32_t wide = 0;                           ///< a bit for each value between steps that is f32
  ShortList<OpStep, kStepsMax> steps;

  bool isWide(uint8_t value) const { return (wide >> value & 1u) != 0; }
};

/// The steps of an op with this many operands and results; null if it has none.
const OpSteps *stepsOf(OpKind kind, size_t operands, size_t results);
/// All rows of the table, in its order.
std::span<const OpSteps> allSteps();
/// Parses the text of a row; none if it is malformed. Tests compare wrong rows with kernels.
std::optional<OpSteps> parseSteps(OpKind kind, std::string_view values, std::string_view steps);
/// The steps and values that the first `results` results of the op need: a bit for each.
struct NeededSteps {
  uint32_t steps = 0, values = 0;
  bool hasStep(size_t step) const { return (steps >> step & 1u) != 0; }
  bool hasValue(uint8_t value) const { return (values >> value & 1u) != 0; }
};
NeededSteps neededSteps(const OpSteps &row, size_t results);

} // namespace shardc::plan
