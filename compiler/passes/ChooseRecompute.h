// Chooses what the backward pass recomputes (`model.recompute_granularity = auto`).
#pragma once

#include <vector>

#include "compiler/passes/Pipeline.h"

namespace shardc::passes {

/// Bytes of activations that a body keeps from the forward to the backward pass, by the unit that
/// computes them.
std::vector<int64_t> keptBytesOfUnits(const plan::Segment &body, size_t units);

/// Whether the job asks for a choice that has not been made.
bool choosesRecompute(const plan::Plan &plan);

/// Of each layer of a logical plan, chooses nothing, modules, or all of it to be recomputed, so
/// that each stage fits into the device's memory (Plan::deviceBytes) and the predicted time of what
/// is recomputed there is least; writes the choice into the job as `model.recompute_layers`. Layers
/// that cost the same differ in an order of their stage: more is recomputed of earlier ones, whose
/// activations are kept longer. If nothing fits, the choice saves the most.
///
/// Which choices fit decides the address map: the pipeline runs on copies of the plan, with the
/// options, some times. A balanced split of stages (`model.pipeline_split`) is made before, by the
/// time of layers that recompute nothing.
void chooseRecompute(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

} // namespace shardc::passes
