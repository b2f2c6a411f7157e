// A model with an embedding, three layers and a head, divided into stages, with alternating forward
// and backward passes (1F1B). Each stage has its own block, sharded over the ranks with other
// samples.
#pragma once

#include <string>

namespace shardc::test {

struct PipelineOptions {
  int stages = 2;
  int microbatches = 3;
  int steps = 4;
  int dp = 2;
  /// Background segments copy the weights of each stage, those of the first one in two pieces.
  bool snapshots = false;
};

/// For names of tests.
inline std::string nameOf(const PipelineOptions &options) {
  return "Stages" + std::to_string(options.stages) + "Microbatches" +
         std::to_string(options.microbatches) + "Data" + std::to_string(options.dp);
}

inline constexpr int kPipelineLayers = 3;

/// The plan as text. With one stage nothing is sent.
std::string pipelinePlanText(const PipelineOptions &options);

} // namespace shardc::test
