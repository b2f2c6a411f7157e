// Delayed scaling: tensors are quantised by magnitudes that steps before have seen. Each product of
// a weight has three of them: of its activation, of the weight, and of the gradient that comes
// back. Products of experts have so many for each expert of all ranks.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

enum class Quantised : uint8_t { Activation, Weight, Gradient };

/// The cells of a role in which magnitudes lie, and the slots of tensors in them.
struct DelayedScaling {
  /// Of the tensors of a parameter's products: activations of all experts, then weights, then
  /// gradients.
  struct Slots {
    int64_t first, experts;
  };
  uint32_t amax = plan::kNone, seen = plan::kNone; ///< cells
  std::map<int32_t, Slots> slots;                  ///< by parameter

  /// That of the first expert.
  int64_t slotOf(int32_t param, Quantised tensor) const {
    const Slots &its = slots.at(param);
    return its.first + static_cast<int64_t>(tensor) * its.experts;
  }
};

/// Gives slots to the tensors of these parameters' products, in this order, and adds the cells.
DelayedScaling addDelayedScaling(const plan::Plan &plan, plan::Role &role,
                                 const std::vector<int32_t> &params);

/// For each value the parameter that it is, or whose gradient is made of it; -1 for other values.
std::vector<int32_t> paramsOfValues(const plan::Role &role, const plan::Segment &segment);

/// The largest magnitudes on all ranks: those with other data, and those with other parts of a
/// tensor.
plan::ValueId largestOfRanks(plan::Plan &plan, plan::Segment &segment, plan::ValueId magnitudes);

/// Adds the cell of the history to a role with such cells, and to the segments around the bodies
/// what it needs: its start, what the prologue takes from it, and at the end of a step the maximum
/// of what all ranks have seen. A stage that quantises nothing has the history alone. `state` is
/// the step state as the step leaves it.
void addAmaxHistory(const plan::Plan &plan, plan::Role &role);
void initAmaxHistory(const plan::Role &role, plan::Segment &init);
void takeAmax(const plan::Role &role, plan::Segment &prologue);
void updateAmaxHistory(plan::Plan &plan, const plan::Role &role, plan::Segment &update,
                       plan::ValueId state);

} // namespace shardc::passes
