// Reads parameters and moments from a checkpoint of any format, or weights from a Hugging Face
// model, by plain names.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {

class HfWeights;

/// How a run loads a checkpoint.
struct LoadChoice {
  std::string format;       ///< format of the run: `fsdp_dtensor`, `torch_dist` or `torch_dcp`
  bool weightsOnly = false; ///< omits the optimizer
  bool converts = false;    ///< accepts optimizer state of other formats, too
  bool isGated = false;     ///< whether the model has gated layers, which conversions split
};

/// Whether the folder has a Hugging Face model and is not a checkpoint.
bool isHfModel(const std::string &folder);

constexpr const char *kEmbeddingTable = "embedding.word_embeddings.weight",
                     *kOutputLayer = "output_layer.weight";

/// One opened checkpoint or model. Names, shapes and boxes are those of unsharded parameters; gated
/// halves are joined. Weights are the fp32 masters if there are any.
class ParamSource {
public:
  virtual ~ParamSource() = default;

  /// Opens a checkpoint, or a Hugging Face model if isHfModel(), for a run. InvalidInput, with
  /// remedies, if optimizer state is needed and has another format than that of the run. For
  /// `emit`, see CheckpointReader.
  static Result<std::unique_ptr<ParamSource>> open(const std::string &folder,
                                                   const LoadChoice &choice, ReportSink emit);
  /// Opens a checkpoint of any format. Optimizer state that cannot be divided into parameters is
  /// left out, and `leftOut`, if set, receives the reason.
  static Result<std::unique_ptr<ParamSource>> openCheckpoint(const std::string &folder,
                                                             ReportSink emit = nullptr,
                                                             Verify verify = Verify::Touched,
                                                             const ReportSink &leftOut = nullptr);
  /// Opens a Hugging Face model if isHfModel(), otherwise the checkpoint in the folder, to read
  /// weights that are not trained.
  static Result<std::unique_ptr<ParamSource>> openModel(const std::string &folder,
                                                        const ReportSink &emit);

  const std::string &folder() const { return folder_; }
  /// The name of the format.
  virtual std::string_view format() const = 0;
  /// Null unless it is a checkpoint, a checkpoint of this format, or a Hugging Face model.
  virtual const CheckpointReader *checkpoint() const { return nullptr; }
  virtual const FsdpCheckpoint *fsdp() const { return nullptr; }
  virtual const TorchDistCheckpoint *torchDist() const { return nullptr; }
  virtual const HfWeights *model() const { return nullptr; }
  /// The reader of a checkpoint, which it must be.
  const CheckpointReader &reader() const { return *checkpoint(); }
  /// The files of the Hugging Face model that exist.
  Result<std::vector<HfModelFile>> modelFiles() const {
    return checkpoint() ? hfFilesOf(reader()) : hfFilesIn(folder_);
  }

  /// Names of all parameters.
  virtual std::vector<std::string> names() const = 0;
  /// The shape, and the type in which it is stored; nothing if the source lacks it.
  virtual std::optional<Shape> shapeOf(std::string_view name,
                                       ParamPart part = ParamPart::Weight) const = 0;
  /// The name of the tensor that a parameter begins as: the output layer of a model that has one
  /// table begins as its embedding.
  std::string_view tensorOf(std::string_view name) const {
    return name == kOutputLayer && !shapeOf(name) ? kEmbeddingTable : name;
  }
  virtual std::optional<Element> typeOf(std::string_view name,
                                        ParamPart part = ParamPart::Weight) const = 0;
  /// Reads a box into the dense array `dst`, with conversion to `type`. With `padsRows`, rows
  /// beyond the saved ones are zero.
  virtual Status read(std::string_view name, ParamPart part, const Box &box, Element type,
                      void *dst, bool padsRows) const = 0;
  Status read(std::string_view name, const Box &box, Element type, void *dst) const {
    return read(name, ParamPart::Weight, box, type, dst, false);
  }
  /// Compares what a run needs with what there is, by name and shape only.
  virtual LoadDifferences check(std::span<const ParamRequest> requests) const = 0;
  virtual Result<RunState> runState() const = 0;
  /// The number of updates that a parameter's moments include; nothing if the checkpoint does not
  /// have it, InvalidInput if it is not a number.
  virtual Result<std::optional<int64_t>> updates(std::string_view) const {
    return std::optional<int64_t>();
  }
  /// A setting of the saved optimizer, `betas` or `eps`, for the parameter's group; nothing if the
  /// checkpoint does not have it.
  virtual Result<std::optional<PlainValue>> setting(std::string_view, const std::string &) const {
    return std::optional<PlainValue>();
  }

protected:
  explicit ParamSource(std::string folder) : folder_(std::move(folder)) {}

private:
  std::string folder_;
};

/// Adds a requested part that is missing or has another shape to the report.
void compareShape(const ParamRequest &request, const std::optional<Shape> &saved,
                  LoadDifferences &report);

} // namespace shardc::checkpoint
