#include "runtime/checkpoint/CheckpointWriter.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {
namespace {

/// A data file that counts the bytes written to it and computes their block checksums.
class RecordFile : public ByteSink {
public:
  explicit RecordFile(OutputFile file) : file_(std::move(file)) {}

  Status write(const void *data, size_t size) override {
    sums_.add(data, size);
    return file_.write(data, size);
  }
  Status writeSummed(const void *data, size_t size, uint32_t &crc) override {
    crc = sums_.add(data, size);
    return file_.write(data, size);
  }
  Status close() { return file_.close(); }
  uint64_t size() const { return sums_.size(); }
  const BlockChecksums &sums() const { return sums_; }

private:
  OutputFile file_;
  BlockChecksums sums_;
};

std::string dataName(int rank) { return fmt::format("__{}_0.distcp", rank); }
std::string itemsName(int rank) { return fmt::format(".rank_{}.items", rank); }
std::string sumsName(int rank) { return fmt::format(".rank_{}.sums", rank); }

Status checkSlice(const TensorSlice &slice) {
  if (!tensorBytes(slice.dtype, slice.globalShape) || !slice.box.isInside(slice.globalShape))
    return makeStatus(StatusCode::InvalidInput,
                      "slice of '{}' at {} is not inside the tensor's shape {}", slice.name,
                      boxText(slice.box), shapeText(slice.globalShape));
  return Status::ok();
}

/// Merges the items of one rank into those of earlier ranks.
class Merger {
public:
  Status add(Metadata rank) {
    for (ObjectMeta &object : rank.objects)
      if (objects_.insert({object.name, 0}).second)
        merged.objects.push_back(std::move(object));
    for (TensorMeta &tensor : rank.tensors)
      RETURN_IF_ERROR(addTensor(std::move(tensor)));
    merged.paths.merge(rank.paths);
    for (const ObjectMeta &object : merged.objects)
      if (tensors_.contains(object.name))
        return makeStatus(StatusCode::InvalidInput,
                          "'{}' is saved both as an object and as a tensor", object.name);
    return Status::ok();
  }

  Metadata merged;

private:
  Status addTensor(TensorMeta tensor) {
    auto [found, isNew] = tensors_.insert({tensor.name, merged.tensors.size()});
    if (isNew)
      merged.tensors.push_back({tensor.name, tensor.type, tensor.shape, {}});
    TensorMeta &all = merged.tensors[found->second];
    if (all.type != tensor.type || all.shape != tensor.shape)
      return makeStatus(StatusCode::InvalidInput, "ranks disagree on '{}': {} {} and {} {}",
                        tensor.name, torchName(all.type), shapeText(all.shape),
                        torchName(tensor.type), shapeText(tensor.shape));
    for (Chunk &chunk : tensor.chunks) {
      std::string key = tensor.name + boxText(chunk.box);
      if (chunks_.insert({std::move(key), 0}).second)
        all.chunks.push_back(std::move(chunk));
    }
    return Status::ok();
  }

  std::unordered_map<std::string, size_t> objects_, tensors_, chunks_;
};

/// Chunks do not overlap, which checkMetadata() verifies, so counting elements suffices.
Status checkCoverage(const Metadata &metadata) {
  RETURN_IF_ERROR(checkMetadata(metadata));
  for (const TensorMeta &tensor : metadata.tensors) {
    int64_t covered = 0, wanted = *elementCount(tensor.shape);
    for (const Chunk &chunk : tensor.chunks)
      covered += *elementCount(chunk.box.shape);
    if (covered != wanted)
      return makeStatus(StatusCode::InvalidInput, "the ranks saved {} of the {} elements of '{}'",
                        covered, wanted, tensor.name);
  }
  return Status::ok();
}

/// Adds a record without bytes for each tensor without elements, since readers only see tensors
/// that have a chunk.
Status addEmptyTensors(const SaveTarget &target, Metadata &metadata, IntegrityTable &integrity) {
  std::optional<RecordFile> file;
  constexpr const char *kName = "__0_1.distcp";
  for (TensorMeta &tensor : metadata.tensors) {
    if (!tensor.chunks.empty() || *elementCount(tensor.shape) != 0)
      continue;
    if (!file) {
      ASSIGN_OR_RETURN(
          OutputFile output,
          OutputFile::create(fmt::format("{}/{}", target.stagingPath(), kName), target.observers));
      file.emplace(std::move(output));
    }
    uint64_t begin = file->size();
    RETURN_IF_ERROR(writeTensorRecord(*file, tensor.type, tensor.shape, {}));
    tensor.chunks.push_back({Box::whole(tensor.shape), {kName, begin, file->size() - begin}});
  }
  if (!file)
    return Status::ok();
  RETURN_IF_ERROR(file->close());
  integrity.files[kName] = file->sums();
  return Status::ok();
}

Status mergeRanks(const SaveTarget &target, int worldSize, Metadata &metadata,
                  IntegrityTable &integrity) {
  Merger merger;
  for (int rank = 0; rank < worldSize; ++rank) {
    Result<std::string> sums = readFile(fmt::format("{}/{}", target.stagingPath(), sumsName(rank)));
    if (!sums.isOk()) // this save has failed; the next save does not need the file
      return makeStatus(StatusCode::Io, "rank {} did not finish writing '{}': {}", rank,
                        target.path(), sums.status().message());
    ASSIGN_OR_RETURN(IntegrityTable table, IntegrityTable::parse(*sums));
    integrity.files.merge(table.files);
    ASSIGN_OR_RETURN(std::string items,
                     readFile(fmt::format("{}/{}", target.stagingPath(), itemsName(rank))));
    ASSIGN_OR_RETURN(Metadata read,
                     readMetadata({reinterpret_cast<const uint8_t *>(items.data()), items.size()}));
    RETURN_IF_ERROR(merger.add(std::move(read)));
  }
  metadata = std::move(merger.merged);
  return Status::ok();
}

/// Adds the checksums of the files that addFile wrote.
Status addOtherFiles(const std::string &staging, int worldSize, IntegrityTable &integrity) {
  std::set<std::string> ranks;
  for (int rank = 0; rank < worldSize; ++rank)
    ranks.insert({itemsName(rank), sumsName(rank)});
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(staging, error), end; !error && at != end;
       at.increment(error)) {
    std::string name = at->path().lexically_relative(staging).generic_string();
    if (ranks.contains(name) || integrity.files.contains(name) || name == kIntegrityFile ||
        name == ".metadata" || at->is_directory(error))
      continue; // the integrity file and the metadata exist if a commit is repeated
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(at->path().string()));
    integrity.files[name].add(file.bytes().data(), file.bytes().size());
  }
  return error ? makeStatus(StatusCode::Io, "cannot list '{}': {}", staging, error.message())
               : Status::ok();
}

/// Renames the staging folder to the checkpoint's name, and replaces an existing checkpoint.
Status putInPlace(const SaveTarget &target) {
  std::string path = target.path(), staging = target.stagingPath(),
              old = target.root + "/." + target.folder + ".old";
  Status status = renamePath(target.observers, staging, path);
  if (!status.isOk()) { // most likely the folder exists already
    status = exchangePaths(target.observers, staging, path);
    if (status.isOk()) {
      RETURN_IF_ERROR(syncFolder(target.observers, target.root));
      return removeTree(target.observers, target.stagingRoot());
    }
    if (status.code() != StatusCode::Unavailable)
      return status;
    RETURN_IF_ERROR(renamePath(target.observers, path, old));
    RETURN_IF_ERROR(renamePath(target.observers, staging, path));
  }
  RETURN_IF_ERROR(syncFolder(target.observers, target.root));
  if (target.attempt > 0)
    RETURN_IF_ERROR(removeTree(target.observers, target.stagingRoot()));
  return removeTree(target.observers, old);
}

} // namespace

SaveTarget SaveTarget::iteration(const std::string &root, int64_t iteration,
                                 const Observers &observers) {
  return {root, fmt::format("iter_{:07}", iteration), std::to_string(iteration), observers};
}

Status beginSave(const SaveTarget &target) {
  RETURN_IF_ERROR(removeTree(target.observers, target.stagingRoot()));
  RETURN_IF_ERROR(makeFolder(target.observers, target.stagingRoot()));
  return target.attempt == 0 ? Status::ok() : makeFolder(target.observers, target.stagingPath());
}

Status abandonSave(const SaveTarget &target) {
  return removeTree(target.observers, target.stagingRoot());
}

struct RankWriter::State {
  std::string staging;
  Observers observers;
  int rank = 0;
  uint64_t bytesExpected = 0;
  Metadata written;
  std::unordered_map<std::string, size_t> tensors; ///< indices in `written`, by name
  std::optional<RecordFile> file;                  ///< created when the first bytes arrive

  Status openFile() {
    if (file)
      return Status::ok();
    ASSIGN_OR_RETURN(OutputFile output,
                     OutputFile::create(fmt::format("{}/{}", staging, dataName(rank)), observers,
                                        bytesExpected));
    file.emplace(std::move(output));
    return Status::ok();
  }
};

RankWriter::RankWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
RankWriter::RankWriter(RankWriter &&) noexcept = default;
RankWriter &RankWriter::operator=(RankWriter &&) noexcept = default;
RankWriter::~RankWriter() = default;

Result<RankWriter> RankWriter::begin(const SaveTarget &target, int rank, uint64_t bytesExpected) {
  auto state = std::make_unique<State>();
  state->staging = target.stagingPath();
  state->observers = target.observers;
  state->rank = rank;
  state->bytesExpected = bytesExpected;
  return RankWriter(std::move(state));
}

Status RankWriter::add(const BytesItem &item) {
  RETURN_IF_ERROR(state_->observers.checkInterrupted());
  RETURN_IF_ERROR(state_->openFile());
  RecordRef record{dataName(state_->rank), state_->file->size(), item.record.size()};
  RETURN_IF_ERROR(state_->file->write(item.record.data(), item.record.size()));
  state_->written.objects.push_back({item.name, record});
  if (!item.path.empty())
    state_->written.paths[item.name] = item.path;
  return Status::ok();
}

/// Appends the slice as one record to the rank's file and notes its place for the metadata. All
/// slices of a tensor must agree on its type and shape. An empty slice declares the tensor only.
Status RankWriter::add(const TensorSlice &slice) {
  RETURN_IF_ERROR(state_->observers.checkInterrupted());
  RETURN_IF_ERROR(checkSlice(slice));
  std::vector<TensorMeta> &tensors = state_->written.tensors;
  auto [found, isNew] = state_->tensors.emplace(slice.name, tensors.size());
  if (isNew)
    tensors.push_back({slice.name, slice.dtype, slice.globalShape, {}});
  TensorMeta &tensor = tensors[found->second];
  if (tensor.type != slice.dtype || tensor.shape != slice.globalShape)
    return makeStatus(StatusCode::InvalidInput,
                      "two slices of '{}' differ in the tensor's type or shape", slice.name);
  if (!slice.path.empty())
    state_->written.paths[slice.name] = slice.path;
  if (slice.box.isEmpty())
    return Status::ok();
  RETURN_IF_ERROR(state_->openFile());
  uint64_t begin = state_->file->size();
  auto giveData = [&](const TakeBytes &take) {
    return take({static_cast<const char *>(slice.data),
                 static_cast<size_t>(*tensorBytes(slice.dtype, slice.box.shape))});
  };
  RETURN_IF_ERROR(writeGivenRecord(*state_->file, slice.dtype, slice.box.shape,
                                   slice.give ? slice.give : giveData));
  RecordRef record{dataName(state_->rank), begin, state_->file->size() - begin};
  tensor.chunks.push_back({slice.box, std::move(record)});
  return Status::ok();
}

Status RankWriter::finish() {
  IntegrityTable integrity;
  if (state_->file) {
    RETURN_IF_ERROR(state_->file->close());
    integrity.files[dataName(state_->rank)] = state_->file->sums();
  }
  RETURN_IF_ERROR(writeScratch(state_->observers,
                               fmt::format("{}/{}", state_->staging, itemsName(state_->rank)),
                               writeMetadata(state_->written)));
  // The checksums are written last: their file shows that the rank has finished.
  return writeScratch(state_->observers,
                      fmt::format("{}/{}", state_->staging, sumsName(state_->rank)),
                      integrity.text());
}

Status writeRank(const SaveTarget &target, int rank, std::span<const TensorSlice> slices,
                 std::span<const BytesItem> items) {
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(target, rank));
  for (const BytesItem &item : items)
    RETURN_IF_ERROR(writer.add(item));
  for (const TensorSlice &slice : slices)
    RETURN_IF_ERROR(writer.add(slice));
  return writer.finish();
}

Status addFile(const SaveTarget &target, const std::string &name, std::string_view contents) {
  if (!isPlainPath(name))
    return makeStatus(StatusCode::InvalidInput, "'{}' is not a plain file name", name);
  std::string path = fmt::format("{}/{}", target.stagingPath(), name);
  std::string folder = path.substr(0, path.rfind('/'));
  if (folder != target.stagingPath())
    RETURN_IF_ERROR(makeFolder(target.observers, folder));
  RETURN_IF_ERROR(replaceFile(target.observers, path, contents));
  for (; folder != target.stagingPath(); folder.resize(folder.rfind('/')))
    RETURN_IF_ERROR(syncFolder(target.observers, folder)); // the commit syncs the outermost folder
  return Status::ok();
}

/// Merges the lists of all ranks, checks that the slices cover each tensor exactly, and writes the
/// metadata. The rename that makes the checkpoint visible comes after all files are durable; the
/// tracker file, which names the newest checkpoint, comes after the rename.
Status commitSave(const SaveTarget &target, int worldSize) {
  std::string staging = target.stagingPath();
  Metadata metadata;
  IntegrityTable integrity;
  RETURN_IF_ERROR(mergeRanks(target, worldSize, metadata, integrity));
  RETURN_IF_ERROR(checkCoverage(metadata));
  RETURN_IF_ERROR(addEmptyTensors(target, metadata, integrity));
  RETURN_IF_ERROR(addOtherFiles(staging, worldSize, integrity));
  metadata.saveId = saveIdOf(integrity.text());
  std::string text = writeMetadata(metadata);
  integrity.files[".metadata"].add(text.data(), text.size());
  RETURN_IF_ERROR(replaceFile(target.observers, fmt::format("{}/{}", staging, kIntegrityFile),
                              integrity.text()));
  for (int rank = 0; rank < worldSize; ++rank)
    for (const std::string &name : {itemsName(rank), sumsName(rank)})
      RETURN_IF_ERROR(removeTree(target.observers, fmt::format("{}/{}", staging, name)));
  RETURN_IF_ERROR(replaceFile(target.observers, staging + "/.metadata", text));
  RETURN_IF_ERROR(syncFolder(target.observers, staging));
  RETURN_IF_ERROR(putInPlace(target));
  if (target.trackerText.empty())
    return Status::ok();
  Result<std::string> trainState = readFile(target.path() + "/train_state.pt");
  if (trainState.isOk()) // Megatron-Bridge finds the newest one here
    RETURN_IF_ERROR(
        replaceFile(target.observers, target.root + "/latest_train_state.pt", *trainState));
  RETURN_IF_ERROR(replaceFile(target.observers, fmt::format("{}/{}", target.root, kTrackerFile),
                              target.trackerText));
  return syncFolder(target.observers, target.root);
}

Status save(const SaveTarget &target, int rank, int worldSize, std::span<const TensorSlice> slices,
            std::span<const BytesItem> items, const std::function<Status(Status)> &barrier) {
  SHARDC_CHECK(worldSize == 1 || barrier, "a save of {} ranks needs a barrier", worldSize);
  auto meet = [&](Status status) {
    return worldSize == 1 ? std::move(status) : barrier(std::move(status));
  };
  RETURN_IF_ERROR(meet(rank == 0 ? beginSave(target) : Status::ok()));
  Status status = meet(writeRank(target, rank, slices, items));
  if (!status.isOk()) {
    if (rank == 0)
      static_cast<void>(abandonSave(target)); // report the first failure instead
    return status;
  }
  status = meet(rank == 0 ? commitSave(target, worldSize) : Status::ok());
  if (!status.isOk() && rank == 0)
    static_cast<void>(abandonSave(target));
  return status;
}

RowRange shareOfRows(int64_t rows, int rank, int worldSize) {
  int64_t each = rows / worldSize, rest = rows % worldSize;
  int64_t begin = rank * each + std::min<int64_t>(rank, rest);
  return {begin, begin + each + (rank < rest ? 1 : 0)};
}

} // namespace shardc::checkpoint
