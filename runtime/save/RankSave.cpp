// A rank writes its own file. Rows arrive in parts of any size and are joined to whole rows, since
// boxes in checkpoints consist of whole rows.
#include "runtime/save/RankSave.h"

#include <algorithm>

#include "runtime/checkpoint/HfConvert.h"
#include "runtime/save/BaseWeights.h"
#include "runtime/save/PieceIo.h"
#include "runtime/save/RecipeFiles.h"

namespace shardc::save {

using checkpoint::ParamPart;
using checkpoint::RankWriter;
using checkpoint::SaveTarget;

namespace {

// Estimated bytes of a file in addition to the state:
constexpr uint64_t kRecordBytes = 4 << 10;  ///< headers per piece, which has at most two records
constexpr uint64_t kObjectBytes = 32 << 10; ///< settings of a tensor; rank 0 writes them

constexpr int64_t kHalvesAtOnce = 8 << 20; ///< bytes of remainders that are joined at a time

} // namespace

Result<SaveJob> SaveJob::of(const plan::Plan &plan, const StateLayout &layout) {
  SaveJob job;
  job.plan = &plan;
  job.layout = &layout;
  ASSIGN_OR_RETURN(job.format, FormatWriter::create(plan, layout));
  job.savesOptimizer = plan.job.checkpoint.saveOptim;
  return job;
}

Result<RankSave> RankSave::begin(const SaveJob &job, const SaveTarget &target, int worldRank,
                                 const Progress &progress) {
  ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, job.layout->piecesToSave(worldRank));
  if (!job.savesOptimizer)
    std::erase_if(pieces, [](const StatePiece &piece) { return piece.part != ParamPart::Weight; });
  uint64_t bytes = 0;
  for (const plan::Param &param : job.plan->params)
    bytes += worldRank == 0 ? kObjectBytes * static_cast<uint64_t>(param.tensorCount()) : 0;
  for (const StatePiece &piece : pieces)
    bytes += static_cast<uint64_t>(StateLayout::bytesOf(piece)) + kRecordBytes;
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(target, worldRank, bytes));
  RankSave save(job, std::move(writer));
  save.pieces_ = std::move(pieces);
  if (worldRank == 0)
    RETURN_IF_ERROR(job.format->addObjects(progress, save.writer_));
  if (worldRank == rankWithExpertBias(*job.plan))
    RETURN_IF_ERROR(addExpertBias(*job.plan, progress, *job.format, save.writer_));
  return save;
}

Status RankSave::addCell(uint32_t cell, int64_t byteBegin, const uint8_t *data, int64_t bytes) {
  bool isUpper = false;
  for (const StatePiece &piece : pieces_) {
    if (piece.upper == cell)
      isUpper = true;
    if (piece.cell != cell)
      continue;
    int64_t begin = std::max(piece.byteBegin, byteBegin);
    int64_t end = std::min(piece.byteBegin + piece.bytes, byteBegin + bytes);
    if (begin >= end)
      continue;
    const uint8_t *from = data + (begin - byteBegin);
    RETURN_IF_ERROR(piece.upper == plan::kNone
                        ? add(piece, begin - piece.byteBegin, from, end - begin)
                        : addHalves(piece, begin, from, end - begin));
  }
  if (isUpper)
    upperHalves_[cell].push_back({byteBegin, bytes, data});
  return Status::ok();
}

Status RankSave::addHalves(const StatePiece &piece, int64_t begin, const uint8_t *lower,
                           int64_t bytes) {
  std::vector<uint8_t> masters;
  for (int64_t at = begin, end = begin + bytes; at < end;) {
    const std::vector<Stretch> &uppers = upperHalves_[piece.upper];
    auto upper = std::ranges::find_if(uppers, [&](const Stretch &each) {
      return at >= each.begin && at < each.begin + each.bytes;
    });
    if (upper == uppers.end())
      return makeStatus(StatusCode::Internal, "remainders of '{}' arrive without their weights",
                        job_->layout->nameOf(piece));
    int64_t some = std::min({kHalvesAtOnce, end - at, upper->begin + upper->bytes - at});
    masters.resize(static_cast<size_t>(2 * some));
    joinHalves(upper->data + (at - upper->begin), lower + (at - begin), some / 2, masters.data());
    RETURN_IF_ERROR(add(piece, 2 * (at - piece.byteBegin), masters.data(), 2 * some));
    at += some;
  }
  return Status::ok();
}

Status RankSave::add(const StatePiece &piece, int64_t from, const uint8_t *data, int64_t bytes) {
  int64_t rowBytes = StateLayout::bytesOf(piece) / piece.box.shape[0];
  auto begun = begunRows_.find(piece.cell);
  int64_t there = begun == begunRows_.end() ? 0 : static_cast<int64_t>(begun->second.size());
  if (from % rowBytes != there)
    return makeStatus(StatusCode::Internal, "rows of '{}' arrive out of order",
                      job_->layout->nameOf(piece));
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
  const StateLayout &layout = *job_->layout;
  checkpoint::Box box = piece.box;
  box.offset[0] += row;
  box.shape[0] = rows;
  checkpoint::Element type = checkpoint::elementOf(layout.typeOf(piece));
  bytesWritten_ += rows * (StateLayout::bytesOf(piece) / piece.box.shape[0]);
  return job_->format->addRows(
      {layout.nameOf(piece), type, layout.shapeOf(piece.param), std::move(box), data}, piece,
      writer_);
}

Status commitRun(const SaveJob &job, const SaveTarget &target, const Progress &progress,
                 Status &copied) {
  ASSIGN_OR_RETURN(std::string trainState,
                   checkpoint::trainStateFile(runStateOf(*job.plan, progress)));
  RETURN_IF_ERROR(checkpoint::addFile(target, "train_state.pt", trainState));
  RETURN_IF_ERROR(job.format->addFiles(progress, target));
  RETURN_IF_ERROR(checkpoint::addFile(target, "run_config.yaml", runConfigText(*job.plan)));
  for (const RecipeFile &file : recipeFiles(*job.plan))
    RETURN_IF_ERROR(checkpoint::addFile(target, file.name, file.text));
  RETURN_IF_ERROR(checkpoint::addHfFiles(job.modelFiles, target));
  if (!job.baseRecord.empty())
    RETURN_IF_ERROR(checkpoint::addFile(target, checkpoint::kBaseFile, job.baseRecord));
  RETURN_IF_ERROR(checkpoint::commitSave(target, static_cast<int>(job.plan->worldSize())));
  const plan::Job::Checkpoint &options = job.plan->job.checkpoint;
  if (options.alsoSaveHfCheckpoint)
    copied = checkpoint::exportHf(target.path(), options.hfSourcePath, target.path() + "/hf",
                                  {.observers = job.observers});
  return Status::ok();
}

} // namespace shardc::save
