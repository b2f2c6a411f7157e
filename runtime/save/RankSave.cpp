#include "runtime/save/RankSave.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/save/RecipeFiles.h"
#include "runtime/save/TorchDcpWriter.h"
#include "runtime/save/TorchDistWriter.h"

namespace shardc::save {

using checkpoint::ParamPart;
using checkpoint::RankWriter;
using checkpoint::SaveTarget;

namespace {

// Roughly what a file has beside the state's own bytes.
constexpr uint64_t kRecordBytes = 4 << 10;  ///< of a piece, in two records at most
constexpr uint64_t kObjectBytes = 32 << 10; ///< of a parameter's settings, on the first rank

} // namespace

Result<SaveFormat> saveFormatOf(const plan::Plan &plan) {
  using enum plan::Job::CkptFormat;
  switch (plan.job.checkpoint.ckptFormat) {
  case FsdpDtensor:
    return SaveFormat::FsdpDtensor;
  case TorchDist:
    return SaveFormat::TorchDist;
  case TorchDcp:
    return SaveFormat::TorchDcp;
  case Torch:
  case Zarr:
    break;
  }
  return makeStatus(
      report::SaveFormatRefused,
      fmt::format("checkpoints of format '{}' cannot be written; the formats are '{}', '{}' and "
                  "'{}'",
                  plan.job.text(plan::JobField::checkpoint_ckptFormat), kFsdpDtensor, kTorchDist,
                  kTorchDcp));
}

Result<SaveJob> SaveJob::of(const plan::Plan &plan, const StateLayout &layout) {
  SaveJob job;
  job.plan = &plan;
  job.layout = &layout;
  ASSIGN_OR_RETURN(job.format, saveFormatOf(plan));
  if (job.format == SaveFormat::TorchDist)
    job.stacked = torchDistLayout(plan);
  job.savesOptimizer = plan.job.checkpoint.saveOptim;
  job.savesRng = plan.job.checkpoint.saveRng;
  return job;
}

Result<RankSave> RankSave::begin(const SaveJob &job, const SaveTarget &target, int worldRank,
                                 const Progress &progress) {
  ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, job.layout->piecesToSave(worldRank));
  if (!job.savesOptimizer)
    std::erase_if(pieces, [](const StatePiece &piece) { return piece.part != ParamPart::Weight; });
  uint64_t bytes = worldRank == 0 ? kObjectBytes * job.plan->params.size() : 0;
  for (const StatePiece &piece : pieces)
    bytes += static_cast<uint64_t>(piece.bytes) + kRecordBytes;
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(target, worldRank, bytes));
  RankSave save(job, std::move(writer));
  save.pieces_ = std::move(pieces);
  if (worldRank == 0)
    RETURN_IF_ERROR(save.addObjects(progress));
  return save;
}

Status RankSave::addObjects(const Progress &progress) {
  switch (job_->format) {
  case SaveFormat::TorchDist:
    if (job_->savesRng) {
      auto seed = static_cast<uint32_t>(job_->plan->job.rng.seed);
      ASSIGN_OR_RETURN(checkpoint::BytesItem rng, checkpoint::torchDistRngItem(seed));
      RETURN_IF_ERROR(writer_.add(rng));
    }
    return writeTorchDistObjects(*job_->plan, job_->stacked, progress, writer_);
  case SaveFormat::TorchDcp:
    return writeTorchDcpObjects(*job_->plan, progress, writer_);
  case SaveFormat::FsdpDtensor:
    return addFsdpObjects(progress);
  }
  return Status::ok();
}

Status RankSave::addFsdpObjects(const Progress &progress) {
  const plan::Plan &plan = *job_->plan;
  for (const checkpoint::BytesItem &item : checkpoint::runStateItems(runStateOf(plan, progress)))
    RETURN_IF_ERROR(writer_.add(item));
  if (job_->savesRng) {
    ASSIGN_OR_RETURN(checkpoint::RngItems rng,
                     checkpoint::rngItems(static_cast<uint32_t>(plan.job.rng.seed),
                                          /*pipelineRank=*/0, /*tensorRank=*/0));
    for (const checkpoint::BytesItem &item : rng.objects)
      RETURN_IF_ERROR(writer_.add(item));
    for (const checkpoint::TensorSlice &slice : rng.tensors)
      RETURN_IF_ERROR(writer_.add(slice));
  }
  return job_->savesOptimizer ? addFsdpSettings(progress) : Status::ok();
}

Status RankSave::addFsdpSettings(const Progress &progress) {
  const plan::Plan &plan = *job_->plan;
  checkpoint::FsdpPrecision precision = fsdpPrecisionOf(plan);
  bool isAdam = std::ranges::any_of(job_->layout->requests(), [](const auto &request) {
    return request.part == checkpoint::ParamPart::ExpAvg;
  });
  for (size_t p = 0; p < plan.params.size(); ++p) {
    const std::string &name = plan.params[p].name;
    checkpoint::GroupMeta meta = groupMetaOf(plan, p, progress);
    for (const checkpoint::BytesItem &item : checkpoint::groupMetaItems(name, meta, precision))
      RETURN_IF_ERROR(writer_.add(item));
    if (!isAdam)
      continue;
    auto step = static_cast<float>(meta.step);
    for (const checkpoint::TensorSlice &slice : checkpoint::adamStepSlices(
             name, job_->layout->isGated(static_cast<uint32_t>(p)), step, precision))
      RETURN_IF_ERROR(writer_.add(slice));
  }
  return Status::ok();
}

Status RankSave::addCell(uint32_t cell, int64_t byteBegin, const uint8_t *data, int64_t bytes) {
  for (const StatePiece &piece : pieces_) {
    if (piece.cell != cell)
      continue;
    int64_t begin = std::max(piece.byteBegin, byteBegin);
    int64_t end = std::min(piece.byteBegin + piece.bytes, byteBegin + bytes);
    if (begin < end)
      RETURN_IF_ERROR(add(piece, begin - piece.byteBegin, data + (begin - byteBegin), end - begin));
  }
  return Status::ok();
}

Status RankSave::add(const StatePiece &piece, int64_t from, const uint8_t *data, int64_t bytes) {
  int64_t rowBytes = piece.bytes / piece.rowCount;
  auto begun = begunRows_.find(piece.cell);
  int64_t there = begun == begunRows_.end() ? 0 : static_cast<int64_t>(begun->second.size());
  if (from % rowBytes != there)
    return makeStatus(StatusCode::Internal, "rows of '{}' arrive out of order",
                      job_->plan->params[piece.param].name);
  if (there > 0) {
    std::vector<uint8_t> &row = begun->second;
    int64_t rest = std::min(rowBytes - there, bytes);
    row.insert(row.end(), data, data + rest);
    if (there + rest < rowBytes)
      return Status::ok();
    std::vector<uint8_t> whole = std::move(row);
    begunRows_.erase(begun);
    RETURN_IF_ERROR(addRows(piece, from / rowBytes, 1, whole.data()));
    from += rest;
    data += rest;
    bytes -= rest;
  }
  int64_t rows = bytes / rowBytes;
  if (rows * rowBytes < bytes)
    begunRows_.emplace(piece.cell, std::vector<uint8_t>(data + rows * rowBytes, data + bytes));
  return rows > 0 ? addRows(piece, from / rowBytes, rows, data) : Status::ok();
}

Status RankSave::addRows(const StatePiece &piece, int64_t row, int64_t rows, const uint8_t *data) {
  const plan::Plan &plan = *job_->plan;
  checkpoint::ParamSlice slice;
  slice.name = plan.params[piece.param].name;
  slice.part = piece.part;
  slice.dtype = checkpoint::elementOf(plan.roles[0].cells[piece.cell].type.dtype);
  slice.globalShape = slice.shape = job_->layout->shapeOf(piece.param);
  slice.offset.assign(slice.shape.size(), 0);
  slice.offset[0] = piece.rowBegin + row;
  slice.shape[0] = rows;
  slice.data = data;
  slice.isGated = job_->layout->isGated(piece.param);
  bytesWritten_ += rows * (piece.bytes / piece.rowCount);
  switch (job_->format) {
  case SaveFormat::TorchDist:
    return writeTorchDistSlice(plan, job_->stacked, slice, piece, writer_);
  case SaveFormat::TorchDcp:
    return writeTorchDcpSlice(slice, writer_);
  case SaveFormat::FsdpDtensor:
    break;
  }
  std::vector<checkpoint::TensorSlice> slices;
  RETURN_IF_ERROR(checkpoint::addParamSlices(slice, slices, fsdpPrecisionOf(plan)));
  for (const checkpoint::TensorSlice &part : slices)
    RETURN_IF_ERROR(writer_.add(part));
  return Status::ok();
}

Status commitRun(const SaveJob &job, const SaveTarget &target, const Progress &progress) {
  ASSIGN_OR_RETURN(std::string trainState,
                   checkpoint::trainStateFile(runStateOf(*job.plan, progress)));
  RETURN_IF_ERROR(checkpoint::addFile(target, "train_state.pt", trainState));
  if (job.format == SaveFormat::TorchDist)
    RETURN_IF_ERROR(addTorchDistFiles(*job.plan, progress, target));
  RETURN_IF_ERROR(checkpoint::addFile(target, "run_config.yaml", runConfigText(*job.plan)));
  for (const RecipeFile &file : recipeFiles(*job.plan))
    RETURN_IF_ERROR(checkpoint::addFile(target, file.name, file.text));
  return checkpoint::commitSave(target, static_cast<int>(job.plan->worldSize()));
}

} // namespace shardc::save
