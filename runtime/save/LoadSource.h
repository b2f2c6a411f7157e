// Reads a checkpoint by parameter and moment, independently of its format.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/RunState.h"

namespace shardc::save {

/// How a run takes a checkpoint.
struct LoadChoice {
  std::string format;       ///< the run's own: `fsdp_dtensor`, `torch_dist` or `torch_dcp`
  bool weightsOnly = false; ///< leaves the optimizer out
  bool converts = false;    ///< takes the other formats too
  bool isGated = false;     ///< the run's model has gated layers, which conversions cut in halves
};

class LoadSource {
public:
  virtual ~LoadSource() = default;

  /// Opens a checkpoint. InvalidInput, with possible solutions, if its format is not the run's.
  /// `emit` as in checkpoint::CheckpointReader.
  static Result<std::unique_ptr<LoadSource>> open(const std::string &folder,
                                                  const LoadChoice &choice, ReportSink emit);
  /// The format that was found, by its name.
  virtual std::string_view format() const = 0;

  virtual const checkpoint::CheckpointReader &reader() const = 0;
  const std::string &folder() const { return reader().folder(); }
  virtual std::optional<checkpoint::Shape> shapeOf(std::string_view name,
                                                   checkpoint::ParamPart part) const = 0;
  virtual checkpoint::LoadDifferences
  check(std::span<const checkpoint::ParamRequest> requests) const = 0;
  /// Reads rows of a parameter; for weights, those of the masters if there are any. Rows beyond the
  /// saved ones are zeros if `padsRows`.
  virtual Status read(std::string_view name, checkpoint::ParamPart part, const checkpoint::Box &box,
                      checkpoint::Element type, void *dst, bool padsRows) const = 0;
  virtual Result<checkpoint::RunState> runState() const = 0;
  /// The number of updates in the moments of a parameter; nothing if the checkpoint lacks it,
  /// InvalidInput if it is not a number.
  virtual Result<std::optional<int64_t>> updates(std::string_view name) const = 0;
  /// A setting that the optimizer was saved with, `betas` or `eps`, of one parameter's group; none
  /// if the checkpoint does not say.
  virtual Result<std::optional<checkpoint::PlainValue>> setting(std::string_view name,
                                                                const std::string &field) const = 0;
};

} // namespace shardc::save
