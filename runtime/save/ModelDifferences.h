// Compares a checkpoint's description of its model with the recipe, as far as shapes of tensors do
// not show differences. With other settings, the same weights would define another function.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/RunState.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

struct ModelDifference {
  std::string option; ///< its path
  std::string saved;  ///< what the checkpoint has, as text
  std::string ours;
};

/// Options of which the checkpoint has another value. What it does not say is not compared.
std::vector<ModelDifference> modelDifferences(const plan::Job &job,
                                              const checkpoint::RunState &state);

/// The same of the tensors: rows of the vocabulary that were trained, and an output layer of its
/// own, which the run would drop. `hasOutput` is whether the checkpoint has that, `rows` how many
/// its embeddings have.
void addDroppedTensors(const plan::Job &job, const checkpoint::RunState &state, bool hasOutput,
                       int64_t rows, std::vector<ModelDifference> &found);

/// Removes the differences that 'checkpoint.accept_differences' accepts, and reports them to
/// `emit`. ModelDiffers with the others; also if it names an option that is not compared.
Status judgeDifferences(const plan::Job &job, const std::string &folder,
                        const std::vector<ModelDifference> &found, const ReportSink &emit);

} // namespace shardc::save
