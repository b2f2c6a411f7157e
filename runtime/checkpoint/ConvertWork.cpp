#include "runtime/checkpoint/ConvertWork.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RunOptions.h"

namespace shardc::checkpoint {
namespace {

constexpr const char *kTrainState = "train_state.pt";

int64_t bytesOfJob(const ConvertJob &job) { return tensorBytes(job.type, job.shape).value_or(0); }

/// Distributes jobs to ranks: the largest first, each to the rank with the least work so far. All
/// ranks compute the same distribution.
std::vector<size_t> shareOf(const std::vector<ConvertJob> &jobs, int rank, int worldSize) {
  std::vector<size_t> order(jobs.size()), mine;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return bytesOfJob(jobs[a]) > bytesOfJob(jobs[b]); });
  std::vector<int64_t> load(static_cast<size_t>(worldSize), 0);
  for (size_t index : order) {
    auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    load[least] += bytesOfJob(jobs[index]) + 1;
    if (least == static_cast<size_t>(rank))
      mine.push_back(index);
  }
  std::ranges::sort(mine);
  return mine;
}

/// Data that all threads of a process share.
struct Work {
  const SaveTarget &out;
  const std::vector<ConvertJob> &jobs;
  int64_t pieceBytes;
  ProgressSum &progress;
};

Status writeShare(const Work &work, int fileRank, const std::vector<size_t> &mine,
                  const std::function<Status(RankWriter &)> &objects,
                  const std::atomic<bool> &isFailed) {
  uint64_t bytes = 0;
  for (size_t index : mine)
    bytes += static_cast<uint64_t>(bytesOfJob(work.jobs[index]));
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(work.out, fileRank, bytes));
  if (objects)
    RETURN_IF_ERROR(objects(writer));
  std::vector<uint8_t> buffer;
  for (size_t index : mine) {
    const ConvertJob &job = work.jobs[index];
    auto move = [&](const Box &box) {
      if (isFailed)
        return Status(StatusCode::Aborted, "another thread failed");
      int64_t bytes = *tensorBytes(job.type, box.shape);
      buffer.resize(static_cast<size_t>(bytes));
      RETURN_IF_ERROR(job.read(box, buffer.data()));
      TensorSlice slice{job.name, job.type, job.shape, box, buffer.data()};
      RETURN_IF_ERROR(job.write ? job.write(writer, slice)
                                : addParam(writer, slice, ParamPart::Weight, job.isGated));
      work.progress.add(bytes);
      return Status::ok();
    };
    RETURN_IF_ERROR(forEachPiece(Box::whole(job.shape), job.type, work.pieceBytes, move));
  }
  return writer.finish();
}

/// Writes the shares of this rank's threads. Each share is the file of a rank of its own; the
/// numbers of a rank's shares are consecutive.
Status writeShares(const SaveTarget &out, const std::vector<ConvertJob> &jobs, int64_t pieceBytes,
                   const ConvertProgress &progress, const ConvertRank &rank,
                   const std::function<Status(RankWriter &)> &objects) {
  std::vector<std::vector<size_t>> shares;
  int64_t total = 0;
  for (int thread = 0; thread < rank.threads; ++thread) {
    shares.push_back(
        shareOf(jobs, rank.rank * rank.threads + thread, rank.worldSize * rank.threads));
    for (size_t index : shares.back())
      total += bytesOfJob(jobs[index]);
  }
  ProgressSum sum(progress, total);
  Work work{out, jobs, pieceBytes, sum};
  std::atomic<bool> isFailed{false};
  return runOnThreads(shares.size(), shares.size(), [&](size_t share, size_t) {
    bool hasObjects = rank.rank == 0 && share == 0;
    Status status =
        writeShare(work, rank.rank * rank.threads + static_cast<int>(share), shares[share],
                   hasObjects ? objects : std::function<Status(RankWriter &)>(), isFailed);
    bool follows = !status.isOk() && isFailed.exchange(true); // says less than the first failure
    return follows ? Status::ok() : status;
  });
}

constexpr int kFoldersMax = 16; ///< depth of nested folders

Status copyFolder(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                  const KeptNames &kept, int depth) {
  if (depth > kFoldersMax)
    return makeStatus(report::CannotConvert, "'{}/{}': folders are nested more than {} deep",
                      from.folder(), name, kFoldersMax);
  RETURN_IF_ERROR(makeFolder(out.observers, fmt::format("{}/{}", out.stagingPath(), name)));
  ASSIGN_OR_RETURN(std::vector<UntrustedFolder::Entry> entries, from.files().list(name));
  for (const UntrustedFolder::Entry &entry : entries) {
    std::string inner = fmt::format("{}/{}", name, entry.name);
    RETURN_IF_ERROR(entry.isFolder ? copyFolder(from, inner, out, kept, depth + 1)
                                   : copyFile(from, inner, out, kept));
  }
  return syncFolder(out.observers, fmt::format("{}/{}", out.stagingPath(), name));
}

} // namespace

Status checkNames(const Pickle &pickle, const std::string &what, const KeptNames &kept) {
  for (const std::string &name : pickle.unknownNames)
    if (std::ranges::find(kept, name) == kept.end())
      return makeStatus(report::CannotConvert,
                        "{} uses '{}', which is unknown and could run any code when a copy is "
                        "loaded; '--keep-name {}' copies it anyway",
                        what, name, name);
  return Status::ok();
}

Result<std::string> copyOfObject(const ArchiveReader &archive, const Pickle &pickle,
                                 const std::string &what, const KeptNames &kept) {
  RETURN_IF_ERROR(checkNames(pickle, what, kept));
  ASSIGN_OR_RETURN(BytesItem item, objectItem({what}, pickle.graph, pickle.root, &archive));
  return std::move(item.record);
}

Status copyFile(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                const KeptNames &kept) {
  RETURN_IF_ERROR(out.observers.checkInterrupted());
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, from.openFile(name));
  std::string copy = fmt::format("{}/{}", out.stagingPath(), name);
  std::span<const uint8_t> bytes = file->bytes();
  if (!name.ends_with(".pt"))
    return replaceFile(out.observers, copy,
                       {reinterpret_cast<const char *>(bytes.data()), bytes.size()});
  std::string what = fmt::format("'{}'", file->path());
  Result<ArchiveReader> archive = ArchiveReader::open(bytes);
  if (!archive.isOk())
    return Status(archive.status()).withContext(what);
  Result<Pickle> pickle = readPickle(archive->find("data.pkl")->data, PickleContext::BytesItem);
  if (!pickle.isOk())
    return Status(pickle.status()).withContext(what);
  ASSIGN_OR_RETURN(std::string record, copyOfObject(*archive, *pickle, what, kept));
  return replaceFile(out.observers, copy, record);
}

Status copyFolder(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                  const KeptNames &kept) {
  return copyFolder(from, name, out, kept, /*depth=*/1);
}

void ProgressSum::add(int64_t bytes) {
  std::lock_guard lock(mutex_);
  done_ += bytes;
  if (emit_)
    emit_(done_, total_);
}

Status addModel(RankWriter &writer, const SaveTarget &out, PlainEntries args,
                std::span<const HfModelFile> files) {
  RunState state;
  state.args = std::move(args);
  for (const BytesItem &item : runStateItems(state))
    RETURN_IF_ERROR(writer.add(item));
  RETURN_IF_ERROR(addHfFiles(files, out));
  ASSIGN_OR_RETURN(std::string trainState, trainStateFile(state));
  return addFile(out, kTrainState, trainState);
}

Status addBridgeFiles(const CheckpointReader &from, const SaveTarget &out, const RunState &state,
                      const KeptNames &kept) {
  if (from.files().has(kTrainState)) {
    RETURN_IF_ERROR(copyFile(from, kTrainState, out, kept));
  } else {
    ASSIGN_OR_RETURN(std::string made, trainStateFile(state));
    RETURN_IF_ERROR(addFile(out, kTrainState, made));
  }
  if (from.files().has(kRunConfigFile))
    RETURN_IF_ERROR(copyFile(from, kRunConfigFile, out, kept));
  for (const char *folder : {kRecipeFolder, kHfFolder})
    if (from.files().has(folder))
      RETURN_IF_ERROR(copyFolder(from, folder, out, kept));
  return Status::ok();
}

Status runJobs(const SaveTarget &out, std::vector<ConvertJob> jobs, int64_t pieceBytes,
               const ConvertProgress &progress, const ConvertRank &rank,
               const std::function<Status(RankWriter &)> &objects) {
  auto meet = [&](Status status) {
    return rank.worldSize == 1 ? std::move(status) : rank.barrier(std::move(status));
  };
  auto begin = [&] {
    Status status = makeFolders(out.root);
    return status.isOk() ? beginSave(out) : status;
  };
  Status status = meet(rank.rank == 0 ? begin() : Status::ok());
  if (status.isOk())
    status = meet(writeShares(out, jobs, pieceBytes, progress, rank, objects));
  if (status.isOk())
    status = meet(rank.rank == 0 ? commitSave(out, rank.worldSize * rank.threads) : Status::ok());
  if (!status.isOk() && rank.rank == 0)
    static_cast<void>(abandonSave(out)); // report the first failure instead
  return status;
}

} // namespace shardc::checkpoint
