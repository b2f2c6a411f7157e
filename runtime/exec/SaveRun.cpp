#include "runtime/exec/SaveRun.h"

#include <filesystem>
#include <set>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/exec/Mesh.h"
#include "runtime/exec/SaveTorchDist.h"
#include "runtime/plan/Summary.h"

namespace shardc::exec {
namespace {

using checkpoint::ParamPart;
using checkpoint::RankWriter;
using checkpoint::SaveTarget;

constexpr const char *kFormat = "fsdp_dtensor";
constexpr const char *kTorchDist = "torch_dist";

/// Makes the folder that checkpoints go into, and sees that files can be made in it.
Status makeRoot(const std::string &root) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  if (error)
    return makeStatus(StatusCode::Io, "checkpoint.save: cannot make the folder '{}': {}", root,
                      error.message());
  if (::access(root.c_str(), W_OK | X_OK) != 0)
    return makeStatus(StatusCode::Io, "checkpoint.save: '{}' cannot be written into", root);
  return Status::ok();
}

} // namespace

std::vector<std::string> checkCheckpointOptions(const plan::Plan &plan) {
  std::vector<std::string> findings;
  std::string format = plan.jobString("checkpoint.ckpt_format", kFormat);
  bool isFsdp = plan.jobBool("ddp.use_megatron_fsdp", false), isUsed = false;
  for (const char *path :
       {"checkpoint.save", "checkpoint.load", "checkpoint.pretrained_checkpoint"}) {
    if (plan.jobString(path, "").empty())
      continue;
    isUsed = true;
    if (format != kFormat && format != kTorchDist)
      findings.push_back(fmt::format("'{}' is set, and this run's checkpoints are '{}'; this "
                                     "runtime saves and loads '{}' and '{}'",
                                     path, format, kFormat, kTorchDist));
  }
  if (isUsed && format == kFormat && !isFsdp)
    findings.push_back("fsdp_dtensor checkpoint format only supports Megatron FSDP");
  if (isUsed && format == kTorchDist && isFsdp)
    findings.push_back("Megatron FSDP only supports fsdp_dtensor checkpoint format");
  if (isUsed && findings.empty())
    if (auto layout = StateLayout::create(plan); !layout.isOk())
      findings.push_back("checkpoint: " + layout.status().message());
  return findings;
}

Saver::Saver(const plan::Plan &plan, StateLayout layout, Say say)
    : plan_(&plan), layout_(std::move(layout)), say_(std::move(say)),
      root_(plan.jobString("checkpoint.save", "")),
      interval_(plan.jobInt("checkpoint.save_interval", 0)),
      mostRecent_(plan.jobInt("checkpoint.most_recent_k", -1)),
      savesOptimizer_(plan.jobBool("checkpoint.save_optim", true)),
      savesRng_(plan.jobBool("checkpoint.save_rng", true)),
      isTorchDist_(plan.jobString("checkpoint.ckpt_format", kFormat) == kTorchDist) {}

Result<std::unique_ptr<Saver>> Saver::create(const plan::Plan &plan, Say say) {
  std::string root = plan.jobString("checkpoint.save", "");
  if (root.empty())
    return std::unique_ptr<Saver>();
  ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
  RETURN_IF_ERROR(makeRoot(root));
  ASSIGN_OR_RETURN(std::vector<std::string> done, checkpoint::recoverInterrupted(root));
  for (const std::string &sentence : done)
    say(sentence);
  if (plan.jobBool("checkpoint.async_save", false))
    say("checkpoint.async_save: training waits for each save; what is saved is the same");
  return std::unique_ptr<Saver>(new Saver(plan, std::move(layout), std::move(say)));
}

Status Saver::save(Executable &executable, const StepState &state) {
  if (executable.rankCount() != static_cast<size_t>(plan_->worldSize()))
    return makeStatus(StatusCode::Unavailable,
                      "this process has {} of {} ranks; a save needs all of them in one",
                      executable.rankCount(), plan_->worldSize());
  Progress progress = progressAfter(*plan_, begin_, state);
  SaveTarget target = SaveTarget::iteration(root_, progress.step);
  bytesWritten_ = 0;
  if (Status status = write(executable, target, progress); !status.isOk()) {
    static_cast<void>(checkpoint::abandonSave(target)); // the first failure is the one to tell
    return std::move(status).withContext(fmt::format("step {} is not saved", progress.step));
  }
  say_(fmt::format("saved step {} to '{}', {}", progress.step, target.path(),
                   plan::formatBytes(bytesWritten_)));
  if (mostRecent_ < 0)
    return Status::ok();
  return checkpoint::removeOldIterations(root_,
                                         static_cast<int>(std::min<int64_t>(mostRecent_, 1 << 30)))
      .withContext("old checkpoints stay");
}

Status Saver::write(Executable &executable, const SaveTarget &target, const Progress &progress) {
  RETURN_IF_ERROR(executable.backend().synchronize());
  RETURN_IF_ERROR(checkpoint::beginSave(target));
  for (size_t rank = 0; rank < executable.rankCount(); ++rank)
    RETURN_IF_ERROR(writeRank(executable, rank, target, progress));
  ASSIGN_OR_RETURN(std::string trainState,
                   checkpoint::trainStateFile(runStateOf(*plan_, progress)));
  RETURN_IF_ERROR(checkpoint::addFile(target, "train_state.pt", trainState));
  if (isTorchDist_)
    RETURN_IF_ERROR(
        checkpoint::addFile(target, "metadata.json", checkpoint::torchDistMetadataFile()));
  RETURN_IF_ERROR(checkpoint::addFile(target, "run_config.yaml", runConfigText(*plan_)));
  return checkpoint::commitSave(target, static_cast<int>(executable.rankCount()));
}

Status Saver::writeRank(Executable &executable, size_t rank, const SaveTarget &target,
                        const Progress &progress) {
  int worldRank = executable.worldRank(rank);
  ASSIGN_OR_RETURN(std::vector<StatePiece> pieces,
                   layout_.piecesToSave(dpCoord(*plan_, worldRank)));
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(target, worldRank));
  if (worldRank == 0)
    RETURN_IF_ERROR(writeObjects(writer, progress));
  for (const StatePiece &piece : pieces)
    if (savesOptimizer_ || piece.part == ParamPart::Weight)
      RETURN_IF_ERROR(writePiece(executable, rank, piece, writer));
  return writer.finish();
}

Status Saver::writeObjects(RankWriter &writer, const Progress &progress) const {
  if (isTorchDist_)
    return writer.add(torchDistCommon(*plan_, progress));
  for (const checkpoint::BytesItem &item : checkpoint::runStateItems(runStateOf(*plan_, progress)))
    RETURN_IF_ERROR(writer.add(item));
  if (savesRng_) {
    ASSIGN_OR_RETURN(checkpoint::RngItems rng,
                     checkpoint::rngItems(static_cast<uint32_t>(plan_->jobInt("rng.seed", 0)),
                                          /*pipelineRank=*/0, /*tensorRank=*/0));
    for (const checkpoint::BytesItem &item : rng.objects)
      RETURN_IF_ERROR(writer.add(item));
    for (const checkpoint::TensorSlice &slice : rng.tensors)
      RETURN_IF_ERROR(writer.add(slice));
  }
  if (savesOptimizer_)
    for (const plan::Param &param : plan_->params)
      for (const checkpoint::BytesItem &item :
           checkpoint::groupMetaItems(param.name, groupMetaOf(*plan_, param, progress)))
        RETURN_IF_ERROR(writer.add(item));
  return Status::ok();
}

Status Saver::writePiece(Executable &executable, size_t rank, const StatePiece &piece,
                         RankWriter &writer) {
  const plan::Cell &cell = plan_->roles[0].cells[piece.cell];
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name));
  buffer_.resize(static_cast<size_t>(piece.bytes));
  RETURN_IF_ERROR(executable.read(rank, address + piece.byteBegin, piece.bytes, buffer_.data()));
  checkpoint::ParamSlice slice;
  slice.name = plan_->params[piece.param].name;
  slice.part = piece.part;
  slice.dtype = checkpoint::elementOf(cell.type.dtype);
  slice.globalShape = slice.shape = layout_.shapeOf(piece.param);
  slice.offset.assign(slice.shape.size(), 0);
  slice.offset[0] = piece.rowBegin;
  slice.shape[0] = piece.rowCount;
  slice.data = buffer_.data();
  slice.isGated = layout_.isGated(piece.param);
  bytesWritten_ += piece.bytes;
  return writeSlice(slice, piece, writer);
}

Status Saver::writeSlice(const checkpoint::ParamSlice &slice, const StatePiece &piece,
                         RankWriter &writer) const {
  if (isTorchDist_)
    return writeTorchDistSlice(*plan_, slice, piece, writer);
  std::vector<checkpoint::TensorSlice> slices;
  RETURN_IF_ERROR(checkpoint::addParamSlices(slice, slices));
  for (const checkpoint::TensorSlice &part : slices)
    RETURN_IF_ERROR(writer.add(part));
  return Status::ok();
}

} // namespace shardc::exec
