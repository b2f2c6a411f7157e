// The weights of a checkpoint of any format by plain names: the fp32 masters if there are any. For
// code that only reads weights, such as an export.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {

/// One opened checkpoint. Shapes and boxes are those of unsharded parameters.
class SavedParams {
public:
  /// Opens a folder of any format. Optimizer state other than masters is ignored. For `emit`, see
  /// CheckpointReader::open.
  static Result<SavedParams> open(const std::string &folder, ReportSink emit = nullptr);

  const CheckpointReader &reader() const;
  /// Names of all parameters; gated halves are joined.
  std::vector<std::string> names() const;
  /// The shape, and the element type in which it is saved; nothing if the checkpoint lacks the
  /// parameter.
  std::optional<Shape> shapeOf(std::string_view name) const;
  std::optional<Element> typeOf(std::string_view name) const;
  /// Reads a box into the dense array `dst` of `type`. Fails like CheckpointReader::read.
  Status read(std::string_view name, const Box &box, Element type, void *dst) const;

private:
  using Source = std::variant<FsdpCheckpoint, TorchDistCheckpoint>;
  explicit SavedParams(Source source) : source_(std::move(source)) {}
  const FsdpCheckpoint *fsdp() const { return std::get_if<FsdpCheckpoint>(&source_); }
  const TorchDistCheckpoint &dist() const { return std::get<TorchDistCheckpoint>(source_); }
  StoredPart partOf(std::string_view name) const;

  Source source_;
};

} // namespace shardc::checkpoint
