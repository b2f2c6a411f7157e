// Compares a checkpoint's description of its model with the recipe, for differences that shapes of
// tensors do not show. With other settings, the same weights would compute another function.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

struct ModelDifference {
  std::string option; ///< path of the option
  std::string saved;  ///< value in the checkpoint, as text
  std::string ours;
};

/// Options for which the checkpoint has another value. Options without a value in the checkpoint
/// are not compared.
std::vector<ModelDifference> modelDifferences(const plan::Job &job,
                                              const checkpoint::RunState &state);

/// Adds differences that follow from tensors: trained rows of the vocabulary, and a separate output
/// layer, which the run would drop. `hasOutput` says whether the checkpoint has an output layer,
/// and `rows` is the number of rows of its embeddings.
void addDroppedTensors(const plan::Job &job, const checkpoint::RunState &state, bool hasOutput,
                       int64_t rows, std::vector<ModelDifference> &found);

/// Adds differences in the settings of adapters: `alpha`, `rslora`, and the scheme if the
/// checkpoint was trained with DoRA and the run would train without it.
void addAdapterDifferences(const plan::Job &job, const checkpoint::PeftSettings &saved,
                           std::vector<ModelDifference> &found);

/// Removes the differences that 'checkpoint.accept_differences' lists, and reports them to `emit`.
/// ModelDiffers with the remaining ones, or if it lists an option that is not compared.
Status judgeDifferences(const plan::Job &job, const std::string &folder,
                        const std::vector<ModelDifference> &found, const ReportSink &emit);

} // namespace shardc::save
