// Which activations lie in the host's memory between forward and backward pass
// (`model.offload_layers`).
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The value whose bytes a view names, through any number of views.
plan::ValueId rootOf(const plan::Segment &segment, plan::ValueId value);

/// By value of the segment: the layer's unit whose backward pass reads it from the host; -1 if it
/// stays on the device. With `onlyNamed`, entries `all` name nothing: they mean what is kept
/// anyway. Values of the last layer stay, since its backward pass follows at once. So do small
/// values, values that another op overwrites, and parts of packs.
std::vector<int32_t> hostLayersOf(const plan::Plan &plan, const plan::Segment &segment,
                                  bool onlyNamed);

/// The next unit that is a layer, -1 if there is none.
int32_t layerAfter(const plan::Plan &plan, int32_t unit);

} // namespace shardc::passes
