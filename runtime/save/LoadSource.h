// Reads parameters and moments from a checkpoint of any format, or weights from a Hugging Face
// model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/RunState.h"

namespace shardc::save {

/// How a run loads a checkpoint.
struct LoadChoice {
  std::string format;       ///< format of the run: `fsdp_dtensor`, `torch_dist` or `torch_dcp`
  bool weightsOnly = false; ///< omits the optimizer
  bool converts = false;    ///< accepts optimizer state of other formats, too
  bool isGated = false;     ///< whether the model has gated layers, which conversions split
};

class LoadSource {
public:
  virtual ~LoadSource() = default;

  /// Opens a checkpoint, or a Hugging Face model if isHfModel(). InvalidInput, with remedies, if
  /// optimizer state is needed and has another format than that of the run. For `emit`, see
  /// checkpoint::CheckpointReader.
  static Result<std::unique_ptr<LoadSource>> open(const std::string &folder,
                                                  const LoadChoice &choice, ReportSink emit);
  /// The name of the checkpoint's format.
  virtual std::string_view format() const = 0;

  /// The reader of a checkpoint; null for a Hugging Face model.
  virtual const checkpoint::CheckpointReader *reader() const { return nullptr; }
  /// The Hugging Face model; null for a checkpoint.
  virtual const checkpoint::HfWeights *model() const { return nullptr; }
  const std::string &folder() const { return folder_; }
  /// The files of the Hugging Face model that exist.
  Result<std::vector<checkpoint::HfModelFile>> modelFiles() const {
    return model() ? checkpoint::hfFilesIn(folder_) : checkpoint::hfFilesOf(*reader());
  }
  virtual std::optional<checkpoint::Shape> shapeOf(std::string_view name,
                                                   checkpoint::ParamPart part) const = 0;
  virtual checkpoint::LoadDifferences
  check(std::span<const checkpoint::ParamRequest> requests) const = 0;
  /// Reads rows of a parameter. Weights are read from masters if there are any. With `padsRows`,
  /// rows beyond the saved ones are zero.
  virtual Status read(std::string_view name, checkpoint::ParamPart part, const checkpoint::Box &box,
                      checkpoint::Element type, void *dst, bool padsRows) const = 0;
  virtual Result<checkpoint::RunState> runState() const = 0;
  /// The number of updates that a parameter's moments include; nothing if the checkpoint does not
  /// have it, InvalidInput if it is not a number.
  virtual Result<std::optional<int64_t>> updates(std::string_view) const {
    return std::optional<int64_t>();
  }
  /// A setting of the saved optimizer, `betas` or `eps`, for the parameter's group; nothing if the
  /// checkpoint does not have it.
  virtual Result<std::optional<checkpoint::PlainValue>> setting(std::string_view,
                                                                const std::string &) const {
    return std::optional<checkpoint::PlainValue>();
  }

private:
  std::string folder_;
};

/// Whether the folder has a Hugging Face model and is not a checkpoint.
bool isHfModel(const std::string &folder);

} // namespace shardc::save
