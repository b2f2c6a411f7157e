// How the layers of a decoder are divided among the stages of a pipeline. With virtual stages each
// of them has several chunks of layers: the one with number c in the model is on stage c modulo the
// number of stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardc::model {

/// Chunks of a layout, at most.
inline constexpr int64_t kChunksMax = int64_t{1} << 20;

/// What a recipe says of it.
struct StageRequest {
  int64_t layers = 0;
  int64_t stages = 1;
  int64_t chunks = 1;          ///< on each stage
  int64_t first = 0, last = 0; ///< layers of the first and of the last stage; 0: as the others
  bool countsEmbedding = false, countsLoss = false; ///< as if each were a layer
  bool isBalanced = false;                          ///< by time, and not by number
  /// For a balanced division: the seconds of each layer (all equal if empty), of the first stage
  /// before its layers, and of the last stage after them.
  std::vector<double> seconds;
  double before = 0, behind = 0;
  std::string layout; ///< chunks one by one; empty if the numbers above say it all
};

struct StageLayout {
  /// Why there is no such division: the text is not one, numbers do not add up, the layers of a
  /// stage are not divisible by its chunks, or a chunk between the first and the last one has no
  /// layer: with more than kChunksMax chunks in all, some have none.
  enum class Fault : uint8_t { None, Text, Remainder, Chunks, Empty };

  std::vector<int64_t> layers; ///< of each chunk, in the order of the model
  Fault fault = Fault::None;
  std::string problem; ///< in words

  bool isValid() const { return fault == Fault::None; }
};

/// The text of a layout lists the content of each stage in order: `E` the embedding, `t` a layer,
/// `L` the loss; `|` ends a stage, or a chunk; `*n` repeats the preceding item; parentheses group:
/// `Et*3|(t*4|)*2tttL`. Commas and blanks are ignored. A balanced division makes the longest chunk
/// as short as possible, and then all chunks as equal as contiguous ones can be. If it has a
/// choice, later chunks have more layers. If equal numbers of layers give a longest stage that is
/// as short, they are chosen. Each chunk but the last has a layer.
StageLayout divideLayers(const StageRequest &request);

/// Whether stages with several chunks can run this many microbatches. Each chunk runs `group`
/// microbatches before the next chunk does. The first stage waits for the last stage's results of a
/// group, so a last group with fewer microbatches than stages would stall both.
inline bool canInterleave(int64_t stages, int64_t group, int64_t microbatches) {
  int64_t rest = microbatches % group;
  return microbatches <= group || rest == 0 || rest >= stages;
}

/// The text of a layout with these numbers of layers.
std::string layoutText(const std::vector<int64_t> &layers);

} // namespace shardc::model
