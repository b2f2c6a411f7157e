// Automatic activation recomputation (`model.recompute_granularity = auto`).
#pragma once

#include <vector>

#include "compiler/passes/Pipeline.h"

namespace shardc::passes {

/// By unit: bytes of the activations that the unit computes and keeps from the forward to the
/// backward pass.
std::vector<int64_t> keptBytesOfUnits(const plan::Segment &body, size_t units);

/// Whether the job requests an automatic choice that has not been made yet.
bool choosesRecompute(const plan::Plan &plan);

/// For each layer of a logical plan, chooses to recompute nothing, some modules, or the whole
/// layer. Among the choices with which each stage fits the device's memory (Plan::deviceBytes), it
/// takes the one with the least predicted recomputation time, and writes it into the job as
/// `model.recompute_layers`. Of layers with equal cost, earlier ones of a stage recompute more,
/// because their activations live longer. If nothing fits, it takes the choice that needs the least
/// memory. Memory is measured on the address map, so the pipeline of passes runs several times on
/// copies of the plan. A balanced split into stages (`model.pipeline_split`) is made before, with
/// times of layers that recompute nothing. Returns false, with the choice open, if
/// PipelineOptions::isWanted says so.
bool chooseRecompute(plan::Plan &plan, const PipelineOptions &options, Notes &notes);

} // namespace shardc::passes
