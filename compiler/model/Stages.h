// Divides the layers of a decoder among the stages of a pipeline. With virtual stages, each stage
// has several chunks of layers: chunk c of the model is on stage c modulo the number of stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/model/Placement.h"

namespace shardc::model {

/// Maximum number of chunks in a layout.
inline constexpr int64_t kChunksMax = int64_t{1} << 20;

/// The split that a recipe requests.
struct StageRequest {
  int64_t layers = 0;
  int64_t stages = 1;
  int64_t chunks = 1;          ///< per stage
  int64_t first = 0, last = 0; ///< layers of the first and last stage; 0: as the others
  bool countsEmbedding = false, countsLoss = false; ///< each counts as a layer
  bool isBalanced = false;                          ///< by time instead of by number
  /// For a balanced split: the seconds of each layer (all equal if empty), of the first stage
  /// before its layers, and of the last stage after them.
  std::vector<double> seconds;
  double before = 0, behind = 0;
  std::optional<Placement> placement; ///< of chunks on stages; looped if empty
  std::string layout; ///< content of each chunk; empty if the numbers above define the split
};

/// The result of a split: layers by chunk, or the reason why there is none.
struct StageLayout {
  /// The reason why there is no such split. Text: the layout is malformed, or has other numbers.
  /// Remainder: layers do not divide evenly. Chunks: a stage's layers do not divide evenly among
  /// its chunks. Empty: an inner chunk would have no layer, which is always so beyond kChunksMax
  /// chunks.
  enum class Fault : uint8_t { None, Text, Remainder, Chunks, Empty };

  std::vector<int64_t> layers; ///< of each chunk, in model order
  Fault fault = Fault::None;
  std::string problem; ///< description of the fault

  bool isValid() const { return fault == Fault::None; }
};

/// The text of a layout lists the content of each stage in order: `E` is the embedding, `t` a
/// layer, `L` the loss; `|` ends a stage or chunk; `*n` repeats the preceding item; parentheses
/// group: `Et*3|(t*4|)*2tttL`. Commas and blanks are ignored. A balanced split minimises the time
/// of the longest chunk, up to 0.5 %. Beyond that, a chunk takes at most an equal share of the time
/// of itself and all preceding chunks, if these can hold the rest. If equal numbers of layers have
/// a longest stage that is as short, they are preferred. Each chunk but the last one has a layer.
StageLayout divideLayers(const StageRequest &request);

/// Whether stages with several chunks can run this many microbatches. Each chunk runs `group`
/// microbatches before the next chunk does. The first stage waits for the last stage's results of a
/// group, so a last group with fewer microbatches than stages would stall both.
inline bool canInterleave(int64_t stages, int64_t group, int64_t microbatches) {
  int64_t rest = microbatches % group;
  return microbatches <= group || rest == 0 || rest >= stages;
}

/// The text of a layout with these numbers of layers per chunk.
std::string layoutText(const std::vector<int64_t> &layers);

} // namespace shardc::model
