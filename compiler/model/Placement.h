// Which stage of a pipeline has each chunk of layers. Chunks are numbered in model order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::model {

class Placement {
public:
  Placement() : Placement(std::vector<int32_t>{0}) {}
  /// `stageOf`: the stage of each chunk. Each stage from 0 to the highest one has a chunk.
  explicit Placement(std::vector<int32_t> stageOf);

  /// Chunk c is on stage c modulo the number of stages.
  static Placement looped(int64_t stages, int64_t chunksPerStage);
  /// The placement if it is known, or else looped().
  static Placement orLooped(const std::optional<Placement> &known, int64_t stages,
                            int64_t chunksPerStage) {
    return known ? *known : looped(stages, chunksPerStage);
  }
  /// Like looped(), but every second round of chunks goes from the last stage to the first one.
  static Placement v(int64_t stages, int64_t chunksPerStage);
  /// Reads `looped`, `v`, or a list of the stage of each chunk as in "0,1,1,0". Empty if the text
  /// is something else, or does not give each stage a chunk.
  static std::optional<Placement> read(std::string_view text, int64_t stages,
                                       int64_t chunksPerStage);
  /// The shortest text that read() turns into this placement.
  std::string text() const;

  int32_t stages() const { return static_cast<int32_t>(chunksOf_.size()); }
  int32_t chunks() const { return static_cast<int32_t>(stageOf_.size()); } ///< of all stages
  bool isLast(int32_t chunk) const { return chunk + 1 == chunks(); }
  int32_t stageOf(int32_t chunk) const { return stageOf_[static_cast<size_t>(chunk)]; }
  /// The chunks of the stage, in ascending order.
  const std::vector<int32_t> &chunksOf(int32_t stage) const {
    return chunksOf_[static_cast<size_t>(stage)];
  }
  /// The number of the chunk among those of its stage.
  int32_t indexOn(int32_t chunk) const;
  /// Whether both chunks exist and are on different stages, so that values between them are sent.
  bool areApart(int32_t a, int32_t b) const {
    return a >= 0 && b >= 0 && a < chunks() && b < chunks() && stageOf(a) != stageOf(b);
  }
  /// Whether both chunks exist and are on one stage, which hands values over without a transfer.
  bool areTogether(int32_t a, int32_t b) const {
    return a >= 0 && b >= 0 && a < chunks() && b < chunks() && stageOf(a) == stageOf(b);
  }
  bool isLooped() const { return *this == looped(stages(), chunks() / stages()); }
  auto operator<=>(const Placement &) const = default;

private:
  std::vector<int32_t> stageOf_;
  std::vector<std::vector<int32_t>> chunksOf_;
};

} // namespace shardc::model
