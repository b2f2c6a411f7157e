// Loads a run's state from a checkpoint that was saved with any strategy and any number of ranks:
// each rank reads the rows that it needs. Everything is compared with the plan before anything is
// changed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/exec/Executable.h"
#include "runtime/save/BaseWeights.h"
#include "runtime/save/RunProgress.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// State that comes from somewhere other than a checkpoint, in the layout of the run's own plan.
class StateSource {
public:
  virtual ~StateSource() = default;
  /// Reads all bytes of a piece of a rank's state, in the form of StateLayout::bytesOf.
  virtual Status read(const StatePiece &piece, uint8_t *to) const = 0;
  /// Called after everything was read: releases resources for reading.
  virtual void end() const {}
};

class Loader {
public:
  /// Finds the checkpoint that the plan's options name, and compares it with the plan. Returns null
  /// if the plan does not load. Each folder in the options is a checkpoint or contains several.
  /// NotFound if the options require a checkpoint and there is none. InvalidInput if it does not
  /// match, with lists of missing, surplus and mismatched tensors. `emit` receives the step at
  /// which the run begins, with the reason; then remarks on differences that do not prevent
  /// loading; and later, from any thread, warnings of silent damage that restore() finds. The plan
  /// must outlive the loader.
  static Result<std::unique_ptr<Loader>> open(const plan::Plan &plan, ReportSink emit) {
    return open(std::span(&plan, 1), std::move(emit));
  }
  /// Like open() above, for a job with several plans (runtime/plan/JobFacts.h). It loads for the
  /// plan with the next steps.
  static Result<std::unique_ptr<Loader>> open(std::span<const plan::Plan> plans, ReportSink emit);

  /// Creates a loader that loads everything from `source`, the state of a run of the plan with
  /// index `phase`.
  static Result<std::unique_ptr<Loader>> ofSource(std::span<const plan::Plan> plans, size_t phase,
                                                  Progress progress,
                                                  std::unique_ptr<StateSource> source);

  /// The plan that continues with the state.
  const plan::Plan &plan() const { return *plan_; }
  /// Whether there is state to load.
  bool hasCheckpoint() const { return checkpoint_ || source_ || base_; }
  /// The base weights of adapters; null without adapters or if the plan names no base.
  const BaseWeights *base() const { return base_.get(); }
  /// The folder of the checkpoint whose run this run continues; empty if it begins at step 0.
  std::string continuedFolder() const;
  /// A fingerprint of each tensor with which training begins, as checkpoint::WeightSources makes
  /// them. New adapters have none.
  Result<std::map<std::string, std::string>> fingerprints() const;
  /// The files of a Hugging Face model in the checkpoint; empty if there are none, or if the state
  /// comes from memory.
  Result<std::vector<checkpoint::HfModelFile>> modelFiles() const;
  /// False if some state keeps its initial values. The start of the run must then compute them
  /// first.
  bool isWhole() const { return isWhole_; }
  /// The progress of the job as of the loaded state.
  const Progress &progress() const { return progress_; }
  /// Global batches of the plan's size that were consumed since the first batch of the plan.
  int64_t batchesConsumed() const;

  /// Writes the state of all ranks of this process. Nothing may be queued.
  Status restore(exec::Executable &executable) const;
  /// Reads a piece of the plan's StateLayout from the checkpoint. False if the piece keeps its
  /// initial value, because its moments are missing or must not be loaded.
  Result<bool> read(const StatePiece &piece, std::vector<uint8_t> &bytes) const;

private:
  Status readFromBase(const StatePiece &piece, uint8_t *bytes) const;
  Status readNorms(const StatePiece &piece, const std::string &weight, uint8_t *bytes) const;
  /// The scales in 8 bits of a weight of the base.
  Result<const NestedScales *> nestedScales(const plan::Param &param) const;
  Loader(std::span<const plan::Plan> plans, StateLayout layout, ReportSink emit);
  /// The folder of a checkpoint, and the reason for choosing it.
  struct Choice {
    std::string folder, why;
  };
  Result<std::optional<Choice>> choose();
  Result<Choice> chooseStep(const std::string &root, int64_t step) const;
  Result<std::optional<Choice>> chooseIn(const std::string &root, std::string_view option) const;
  /// Opens the chosen folder and compares it with the plan.
  Status openChosen(const std::string &folder, const ReportSink &emit);
  /// Adds to an error about the checkpoint in `folder` (empty if none was found) the newest earlier
  /// checkpoint that can be opened: all of its files exist with the recorded sizes, and the parts
  /// that are read to open it have the right checksums.
  Status withOlder(Status status, const std::string &folder) const;
  Status compare();
  Status compareArguments(const checkpoint::RunState &state) const;
  Status compareModel(const checkpoint::RunState &state) const;
  void compareVocabulary(const checkpoint::RunState &state);
  void comparePadding(const checkpoint::RunState &state);
  void compareSchedule(const checkpoint::RunState &state);
  Status compareOptimizer();
  void findMissingMoments(const std::vector<checkpoint::ParamRequest> &requests);
  Status compareTensors();
  Status compareBase() const;
  Status openNamedBase(const checkpoint::CheckpointReader &adapters, const ReportSink &emit);
  Status beginWithBase();
  bool takesFromBase(const plan::Param &param) const;
  void allowPadding(std::vector<checkpoint::ParamRequest> &requests);
  int64_t consumedSamples(const checkpoint::RunState &state) const;
  Status choosePhase(const checkpoint::RunState &state);
  Status readProgress(const checkpoint::RunState &state);
  int64_t scheduledSamples(const checkpoint::RunState &state);
  std::optional<int64_t> scheduledUpdates(const checkpoint::RunState &state);
  Status readUpdates(const checkpoint::RunState &state);
  void readLossScale(const checkpoint::RunState &state);
  Status readAmaxHistory();
  Status readExpertBias();
  Status restoreAll(exec::Executable &executable) const;
  Status restoreScales(exec::Executable &executable, size_t rank) const;
  Status clearCells(exec::Executable &executable, size_t rank) const;
  Status restorePiece(exec::Executable &executable, size_t rank, const StatePiece &piece,
                      std::vector<uint8_t> &buffer) const;
  Status restoreCell(exec::Executable &executable, size_t rank, const plan::Cell *cell,
                     std::vector<float> content) const;

  std::span<const plan::Plan> plans_;
  const plan::Plan *plan_; ///< one of plans_
  StateLayout layout_;
  std::unique_ptr<checkpoint::ParamSource> checkpoint_;
  std::unique_ptr<StateSource> source_; ///< set instead of checkpoint_
  std::unique_ptr<BaseWeights> base_;   ///< in addition to either
  mutable std::pair<const plan::Param *, std::optional<NestedScales>> nested_; ///< the last ones
  ReportSink emit_;
  bool isFinetune_ = false, loadsOptimizer_ = true, isWhole_ = true;
  std::vector<bool> lacksMoments_; ///< by parameter: its moments were requested but are missing
  Progress progress_;
};

/// Writes the step state of all ranks of this process, as of this progress. Nothing may be queued.
Status restoreStep(exec::Executable &executable, const Progress &progress);

} // namespace shardc::save
