// Delayed scaling of fp8: tensors are quantised with amax values of earlier steps. Each product
// with a weight has three of these values: for its activation, its weight and its incoming
// gradient. Grouped products have three for each expert, counted over all ranks.
#pragma once

#include <map>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The tensors of a product that are quantised, in the order of their slots.
enum class Quantised : uint8_t { Activation, Weight, Gradient };

/// The cells of a role that hold amax values, and the slot of each tensor in them.
struct DelayedScaling {
  /// Slots of the tensors of a parameter's products: first the activations of all experts, then
  /// their weights, then their gradients.
  struct Slots {
    int64_t first, experts;
  };
  uint32_t amax = plan::kNone, seen = plan::kNone; ///< cells: expected values, observed values
  std::map<int32_t, Slots> slots;                  ///< by parameter

  /// The slot of the tensor of the first expert.
  int64_t slotOf(int32_t param, Quantised tensor) const {
    const Slots &its = slots.at(param);
    return its.first + static_cast<int64_t>(tensor) * its.experts;
  }
};

/// Assigns slots to the tensors of these parameters' products, in this order, and adds the cells to
/// the role.
DelayedScaling addDelayedScaling(const plan::Plan &plan, plan::Role &role,
                                 const std::vector<int32_t> &params);

/// For each value, the index of the parameter that it holds or whose gradient is computed from it;
/// -1 for other values.
std::vector<int32_t> paramsOfValues(const plan::Role &role, const plan::Segment &segment);

/// Appends an all-reduce (max) of amax values over the ranks that have other data or other parts of
/// a tensor. Returns its result.
plan::ValueId largestOfRanks(plan::Plan &plan, plan::Segment &segment, plan::ValueId amaxes);

/// Adds the amax history to a role that quantises, and the ops that need it around the body: the
/// initial history, what the prologue reads, and at the end of a step the maximum over all ranks. A
/// stage that quantises nothing has only the history cell.
void addAmaxHistory(const plan::Plan &plan, plan::Role &role);
void initAmaxHistory(const plan::Role &role, plan::Segment &init);
void takeAmax(const plan::Role &role, plan::Segment &prologue);
void updateAmaxHistory(plan::Plan &plan, const plan::Role &role, plan::Segment &update,
                       plan::ValueId state);

} // namespace shardc::passes
