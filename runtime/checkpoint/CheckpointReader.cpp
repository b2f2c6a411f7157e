#include "runtime/checkpoint/CheckpointReader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A record in its mapped file.
struct OpenRecord {
  CheckedFile *file = nullptr;
  ArchiveReader archive;
  bool isInMemory = false; ///< it was just read completely, to be verified
};

constexpr uint64_t kMappedTouchedMax = uint64_t{128}
                                       << 20; ///< bytes of mapped files to keep in memory
constexpr uint64_t kIntegrityBytesMax = uint64_t{256} << 20;

/// The data files of one checkpoint: opened without following links, mapped on first use, and
/// verified with the checksums that exist before any part is used. Our own files have a checksum
/// per block. In files of other programs, each record has the checksums of its archive, and the
/// first access verifies the complete record.
class RecordFiles {
public:
  /// `emit`, if set, receives one warning if records have no checksums at all (PyTorch has an
  /// option to write none). Any thread that reads may call it.
  RecordFiles(UntrustedFolder folder, bool comparesBoth, ReportSink emit)
      : folder_(std::move(folder)), comparesBoth_(comparesBoth), emit_(std::move(emit)) {}

  /// Reads `.shardc_integrity`, which checkpoints of other programs lack.
  Status loadIntegrity() {
    Result<std::string> text = folder_.read(kIntegrityFile, kIntegrityBytesMax);
    if (!text.isOk()) // a checkpoint of another program
      return text.status().code() == StatusCode::NotFound ? Status::ok() : text.status();
    ASSIGN_OR_RETURN(integrity_, IntegrityTable::parse(*text));
    hasIntegrity_ = true;
    return Status::ok();
  }

  bool hasIntegrity() const { return hasIntegrity_; }
  const IntegrityTable &integrity() const { return integrity_; }
  const UntrustedFolder &folder() const { return folder_; }

  /// Registers the metadata's records. NotFound or InvalidInput for a file that is missing, too
  /// short, not a regular file, or without checksums in our table.
  Status addRecords(const Metadata &metadata) {
    auto need = [&](const RecordRef &record) {
      DataFile &file = files_[record.file];
      file.bytesNeeded = std::max(file.bytesNeeded, record.offset + record.length);
      file.records.push_back(record.offset);
    };
    for (const TensorMeta &tensor : metadata.tensors)
      for (const Chunk &chunk : tensor.chunks)
        need(chunk.record);
    for (const ObjectMeta &object : metadata.objects)
      need(object.record);
    for (auto &[name, file] : files_) {
      file.name = name;
      std::ranges::sort(file.records);
      file.isRight = std::make_unique<std::atomic<bool>[]>(file.records.size());
      auto sums = integrity_.files.find(name);
      if (sums != integrity_.files.end())
        file.checksums = &sums->second;
      else if (hasIntegrity_)
        return damaged("'{}/{}' has no checksums for '{}'", folder_.path(), kIntegrityFile, name);
      RETURN_IF_ERROR(checkFile(file));
    }
    return Status::ok();
  }

  /// Opens a file other than those of records. The whole file is verified with our checksums. An
  /// archive (`.pt`) without such checksums is verified with those of its entries.
  Result<std::unique_ptr<CheckedFile>> openOther(const std::string &name) const {
    ASSIGN_OR_RETURN(MappedFile map, folder_.map(name));
    auto sums = integrity_.files.find(name);
    bool isListed = sums != integrity_.files.end();
    ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file,
                     CheckedFile::open(std::move(map), isListed ? &sums->second : nullptr));
    RETURN_IF_ERROR(file->ensure(0, file->bytes().size()));
    if (isListed || !name.ends_with(".pt"))
      return file;
    Result<ArchiveReader> archive = ArchiveReader::open(file->bytes());
    Status status = archive.isOk() ? archive->verifyAll() : archive.status();
    if (!status.isOk())
      return std::move(status).withContext(fmt::format("'{}'", file->path()));
    return file;
  }

  /// Opens a record that addRecords has registered. A record in another program's file is returned
  /// only after it was verified completely. In our own files, the caller verifies what it uses
  /// (CheckedFile::ensure).
  Result<OpenRecord> open(const RecordRef &record) {
    DataFile &data = files_.at(record.file);
    OpenRecord open;
    ASSIGN_OR_RETURN(open.file, map(data));
    ASSIGN_OR_RETURN(open.archive,
                     ArchiveReader::open(open.file->bytes().subspan(record.offset, record.length)));
    RETURN_IF_ERROR(compare(open, record, data));
    return open;
  }

  /// Verifies the record with all existing checksums.
  Status verify(const RecordRef &record) {
    ASSIGN_OR_RETURN(OpenRecord opened, open(record));
    if (opened.file->isChecked() && !comparesBoth_)
      RETURN_IF_ERROR(compareEntries(*opened.file, opened.archive));
    return opened.file->ensure(record.offset, record.length);
  }

  /// Verifies all files that our table names.
  Status verifyFiles() const {
    for (const auto &[name, sums] : integrity_.files) {
      ASSIGN_OR_RETURN(MappedFile map, folder_.map(name));
      ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, CheckedFile::open(std::move(map), &sums));
      for (uint64_t at = 0; at < file->bytes().size(); at += kMappedTouchedMax) {
        RETURN_IF_ERROR(file->ensure(at, std::min(kMappedTouchedMax, file->bytes().size() - at)));
        file->drop();
      }
    }
    return Status::ok();
  }

  /// Counts bytes that were read, and releases the memory of all files if there are many.
  void touch(uint64_t bytes) {
    if (touched_.fetch_add(bytes, std::memory_order_relaxed) + bytes < kMappedTouchedMax)
      return;
    std::lock_guard lock(openMutex_);
    if (touched_.exchange(0, std::memory_order_relaxed) < kMappedTouchedMax)
      return; // another thread has released the memory
    for (const CheckedFile *file : openFiles_)
      file->drop();
  }

private:
  /// A file that the metadata names; it is mapped on first use.
  struct DataFile {
    std::string name;
    uint64_t bytesNeeded = 0;
    const BlockChecksums *checksums = nullptr;
    std::once_flag once;
    std::unique_ptr<CheckedFile> file;
    Status status;
    std::vector<uint64_t> records;                ///< offsets of its records, ascending
    std::unique_ptr<std::atomic<bool>[]> isRight; ///< by record: whether it was verified
  };

  Status checkFile(const DataFile &file) const {
    Result<uint64_t> size = folder_.sizeOf(file.name);
    if (!size.isOk() && size.status().code() == StatusCode::NotFound)
      return makeStatus(StatusCode::NotFound,
                        "checkpoint '{}' has no file '{}', which '.metadata' names", folder_.path(),
                        file.name)
          .as(report::CheckpointDamaged.info());
    RETURN_IF_ERROR(size.status());
    if (*size < file.bytesNeeded)
      return damaged("'{}/{}' is truncated: {} bytes are needed{}, but it has {}", folder_.path(),
                     file.name, file.bytesNeeded, hasIntegrity_ ? "" : " by '.metadata'", *size);
    return Status::ok();
  }

  Result<CheckedFile *> map(DataFile &file) {
    std::call_once(file.once, [&] {
      Result<MappedFile> map = folder_.map(file.name);
      Result<std::unique_ptr<CheckedFile>> opened =
          map.isOk() ? CheckedFile::open(std::move(*map), file.checksums) : map.status();
      if (!opened.isOk()) {
        file.status = opened.status();
        return;
      }
      if ((*opened)->bytes().size() < file.bytesNeeded) { // it shrank after the check of its size
        file.status = damaged("'{}' is truncated: {} bytes are needed, but it has {}",
                              (*opened)->path(), file.bytesNeeded, (*opened)->bytes().size());
        return;
      }
      file.file = std::move(*opened);
      std::lock_guard lock(openMutex_);
      openFiles_.push_back(file.file.get());
    });
    RETURN_IF_ERROR(file.status);
    return file.file.get();
  }

  Status compare(OpenRecord &open, const RecordRef &record, DataFile &file) {
    bool comparesEntries = !open.file->isChecked() || comparesBoth_;
    auto index = static_cast<size_t>(std::ranges::lower_bound(file.records, record.offset) -
                                     file.records.begin());
    std::atomic<bool> &isRight = file.isRight[index];
    if (!comparesEntries || isRight.load(std::memory_order_acquire))
      return Status::ok();
    std::lock_guard lock(compareMutexes_[index % compareMutexes_.size()]);
    if (isRight.load(std::memory_order_relaxed)) // another thread has verified it meanwhile
      return Status::ok();
    if (!open.file->isChecked() && !open.archive.hasChecksums())
      warnOfUnchecked(record);
    RETURN_IF_ERROR(compareEntries(*open.file, open.archive));
    RETURN_IF_ERROR(open.file->ensure(record.offset, record.length));
    isRight.store(true, std::memory_order_release);
    open.isInMemory = true;
    return Status::ok();
  }

  /// Verifies all entries of an archive as a stream: the disk starts to read each piece before it
  /// is verified, and the memory of verified pieces is released.
  Status compareEntries(CheckedFile &file, const ArchiveReader &archive) {
    return archive.verifyAll([&](std::span<const uint8_t> piece) {
      file.prefetch(static_cast<uint64_t>(piece.data() - file.bytes().data()), piece.size());
      touch(piece.size());
    });
  }

  void warnOfUnchecked(const RecordRef &record) {
    if (emit_ && !hasWarned_.exchange(true))
      emit_(makeReport(report::UncheckedRecords, folder_.path(), record.offset, record.file));
  }

  UntrustedFolder folder_;
  bool comparesBoth_ = false; ///< also verifies the archives' checksums in our own files
  ReportSink emit_;
  std::atomic<bool> hasWarned_{false};
  IntegrityTable integrity_;
  bool hasIntegrity_ = false;
  std::unordered_map<std::string, DataFile> files_;
  /// One thread verifies a record while others that need it wait. Indexed by the record's number,
  /// modulo.
  std::array<std::mutex, 64> compareMutexes_;
  std::atomic<uint64_t> touched_{0};
  std::mutex openMutex_; ///< guards the next member
  std::vector<const CheckedFile *> openFiles_;
};
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMetadataBytesMax = uint64_t{4} << 30;

/// Explains why a folder without a readable `.metadata` is not a checkpoint that can be read.
Status explainMissing(const std::string &folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return makeStatus(report::CheckpointNotFound, "'{}' is not a folder", folder);
  if (fs::exists(folder + "/.metadata.tmp", error))
    return damaged("'{}' is an interrupted save: it has '.metadata.tmp' but no '.metadata'",
                   folder);
  if (fs::exists(folder + "/__0.metadata", error))
    return damaged("'{}' was saved with one metadata file per rank ('__0.metadata'), which is not "
                   "supported; save it with torch's collective planner",
                   folder);
  return makeStatus(report::CheckpointNotFound,
                    "'{}' is not a DCP checkpoint: it has no '.metadata'", folder);
}

/// A read of one box into a strided array.
struct Request {
  Box box;
  Element type;
  Shape strides;
  uint8_t *dst;
};

/// Bytes from the first element of a box to the end of its last one.
uint64_t spanBytes(const TensorView &view, ShapeView extents) {
  int64_t last = 0;
  for (size_t i = 0; i < extents.size(); ++i)
    last += (extents[i] - 1) * view.strides[i];
  return static_cast<uint64_t>((last + 1) * elementBits(view.type) / 8);
}

/// The chunks that contain elements of a box.
std::vector<const Chunk *> chunksOf(const TensorMeta &tensor, const Box &box) {
  std::vector<const Chunk *> chunks;
  if (!box.isEmpty())
    for (const Chunk &chunk : tensor.chunks)
      if (overlap(chunk.box, box))
        chunks.push_back(&chunk);
  return chunks;
}

} // namespace

struct CheckpointReader::State {
  State(UntrustedFolder folder, Verify verify, ReportSink emit)
      : files(std::move(folder), /*comparesBoth=*/verify == Verify::Whole, std::move(emit)) {}

  RecordFiles files;
  Metadata metadata;
  std::unordered_map<std::string_view, const TensorMeta *> tensors;
  std::unordered_map<std::string_view, const ObjectMeta *> objects;

  const std::string &folder() const { return files.folder().path(); }
  Status load();
  Result<TensorView> openChunk(const TensorMeta &tensor, const Chunk &chunk, OpenRecord &record);
  Result<const TensorMeta *> findBox(std::string_view name, const Box &box) const;
  Status readPart(const TensorMeta &tensor, const Chunk &chunk, const Box &part,
                  const Request &request);
  Status gather(const TensorMeta &tensor, std::span<const Chunk *const> chunks,
                const Request &request);
  Result<bool> giveChunk(const TensorMeta &tensor, const Chunk &chunk, const Box &box,
                         const TakeBytes &take);
  Status withPlace(Status status, std::string_view name, const RecordRef &record) const;
};

Status CheckpointReader::State::load() {
  RETURN_IF_ERROR(files.loadIntegrity());
  if (!files.folder().has(".metadata"))
    return explainMissing(folder());
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, files.openOther(".metadata"));
  if (file->bytes().size() > kMetadataBytesMax)
    return damaged("'{}' has {} bytes; the limit is {}", file->path(), file->bytes().size(),
                   kMetadataBytesMax);
  Result<Metadata> read = readMetadata(file->bytes());
  if (!read.isOk())
    return Status(read.status()).withContext(fmt::format("'{}'", file->path()));
  metadata = std::move(*read);
  for (const TensorMeta &tensor : metadata.tensors)
    tensors.emplace(tensor.name, &tensor);
  for (const ObjectMeta &object : metadata.objects)
    objects.emplace(object.name, &object);
  return files.addRecords(metadata);
}

Status CheckpointReader::State::withPlace(Status status, std::string_view name,
                                          const RecordRef &record) const {
  std::string place =
      fmt::format("'{}' in '{}/{}' at byte {}", name, folder(), record.file, record.offset);
  if (!files.hasIntegrity()) // if so, that file may be undamaged, and the position wrong
    place += " (by '.metadata')";
  return std::move(status).withContext(place);
}

Result<TensorView> CheckpointReader::State::openChunk(const TensorMeta &tensor, const Chunk &chunk,
                                                      OpenRecord &record) {
  ASSIGN_OR_RETURN(record, files.open(chunk.record));
  ASSIGN_OR_RETURN(TensorView view, readTensorRecord(record.archive));
  // The headers that were parsed surround the data. They are verified, so that a damaged header is
  // not mistaken for a valid description.
  CheckedFile &file = *record.file;
  uint64_t end = chunk.record.offset + chunk.record.length;
  auto dataBegin = static_cast<uint64_t>(view.storage.data() - file.bytes().data());
  RETURN_IF_ERROR(file.ensure(chunk.record.offset, dataBegin - chunk.record.offset));
  RETURN_IF_ERROR(
      file.ensure(dataBegin + view.storage.size(), end - dataBegin - view.storage.size()));
  if (view.shape != chunk.box.shape)
    return damaged("the record has shape {} but the metadata says {}", shapeText(view.shape),
                   shapeText(chunk.box.shape));
  if (view.type != tensor.type)
    return damaged("the record has type {} but the metadata says {}", torchName(view.type),
                   torchName(tensor.type));
  return view;
}

Result<const TensorMeta *> CheckpointReader::State::findBox(std::string_view name,
                                                            const Box &box) const {
  auto found = tensors.find(name);
  if (found == tensors.end() && objects.contains(name))
    return damaged("'{}' is an object in checkpoint '{}', not a tensor", name, folder());
  if (found == tensors.end())
    return makeStatus(report::TensorsMissing, "Missing key in checkpoint state_dict: {}.", name);
  if (!box.isInside(found->second->shape))
    return damaged("the box at {} is not inside '{}' of shape {}", boxText(box), name,
                   shapeText(found->second->shape));
  return found->second;
}

/// Reads the part of the request that a chunk contains.
Status CheckpointReader::State::readPart(const TensorMeta &tensor, const Chunk &chunk,
                                         const Box &part, const Request &request) {
  OpenRecord record;
  ASSIGN_OR_RETURN(TensorView view, openChunk(tensor, chunk, record));
  const uint8_t *src = view.origin() + distance(chunk.box.offset, part.offset, view.strides) *
                                           elementBits(view.type) / 8;
  uint64_t length = spanBytes(view, part.shape);
  auto begin = static_cast<uint64_t>(src - record.file->bytes().data());
  if (!record.isInMemory)
    record.file->prefetch(begin, length);
  RETURN_IF_ERROR(record.file->ensure(begin, length));
  int64_t behind = distance(request.box.offset, part.offset, request.strides);
  copyBox(part.shape, {view.type, view.strides}, src, {request.type, request.strides},
          request.dst + behind * elementBits(request.type) / 8);
  files.touch(length);
  return Status::ok();
}

Status CheckpointReader::State::gather(const TensorMeta &tensor,
                                       std::span<const Chunk *const> chunks,
                                       const Request &request) {
  int64_t wanted = elementCount(request.box.shape).value_or(0), got = 0;
  for (const Chunk *chunk : chunks) {
    std::optional<Box> part = intersect(chunk->box, request.box);
    if (!part || wanted == 0)
      continue;
    Status status = readPart(tensor, *chunk, *part, request);
    if (!status.isOk())
      return withPlace(std::move(status), tensor.name, chunk->record);
    got += *elementCount(part->shape);
  }
  if (got != wanted) // chunks do not overlap, so comparing counts suffices
    return damaged("'{}' in '{}/.metadata': the saved chunks contain {} of the {} elements at {}",
                   tensor.name, folder(), got, wanted, boxText(request.box));
  return Status::ok();
}

/// Passes a box of a chunk to `take`, as it is stored in the mapped file. Returns false and passes
/// nothing if the box is not stored as a dense array. Each part is verified right before it is
/// passed, which also loads it into the core's cache.
Result<bool> CheckpointReader::State::giveChunk(const TensorMeta &tensor, const Chunk &chunk,
                                                const Box &box, const TakeBytes &take) {
  OpenRecord record;
  Result<TensorView> view = openChunk(tensor, chunk, record);
  if (!view.isOk())
    return withPlace(view.status(), tensor.name, chunk.record);
  if (!isDense(box.shape, view->strides))
    return false;
  const uint8_t *src = view->origin() + distance(chunk.box.offset, box.offset, view->strides) *
                                            elementBits(view->type) / 8;
  auto begin = static_cast<uint64_t>(src - record.file->bytes().data());
  auto length = static_cast<uint64_t>(*tensorBytes(view->type, box.shape));
  if (!record.isInMemory)
    record.file->prefetch(begin, length);
  for (uint64_t at = 0, size = 0; at < length; at += size) {
    size = std::min<uint64_t>(kGivenPart, length - at);
    Status status = record.file->ensure(begin + at, size);
    if (!status.isOk())
      return withPlace(std::move(status), tensor.name, chunk.record);
    RETURN_IF_ERROR(take({reinterpret_cast<const char *>(src + at), size}));
    files.touch(size);
  }
  return true;
}

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader &&) noexcept = default;
CheckpointReader &CheckpointReader::operator=(CheckpointReader &&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

Result<CheckpointReader> CheckpointReader::open(const std::string &folder, Verify verify,
                                                ReportSink emit) {
  Result<UntrustedFolder> opened = UntrustedFolder::open(folder);
  if (!opened.isOk())
    return opened.status().code() == StatusCode::Io ? opened.status() : explainMissing(folder);
  auto state = std::make_unique<State>(std::move(*opened), verify, emit);
  RETURN_IF_ERROR(state->load());
  CheckpointReader reader(std::move(state));
  bool verifies = verify == Verify::Whole; // with Whole, the caller verifies by itself
  if (emit && !verifies && !reader.checkIntegrity().isOk())
    emit(makeReport(report::ChecksumsLost, folder, kIntegrityFile));
  return reader;
}

const std::string &CheckpointReader::folder() const { return state_->folder(); }
const UntrustedFolder &CheckpointReader::files() const { return state_->files.folder(); }
const Metadata &CheckpointReader::metadata() const { return state_->metadata; }
bool CheckpointReader::hasIntegrity() const { return state_->files.hasIntegrity(); }

Status CheckpointReader::checkIntegrity() const {
  if (hasIntegrity() || !isOwnSaveId(metadata().saveId))
    return Status::ok();
  return damaged("'{}' has no '{}', although shardc wrote it: the checksums of its files are lost",
                 folder(), kIntegrityFile);
}

const TensorMeta *CheckpointReader::findTensor(std::string_view name) const {
  auto found = state_->tensors.find(name);
  return found != state_->tensors.end() ? found->second : nullptr;
}

const ObjectMeta *CheckpointReader::findObject(std::string_view name) const {
  auto found = state_->objects.find(name);
  return found != state_->objects.end() ? found->second : nullptr;
}

Status CheckpointReader::read(std::string_view name, const Box &box, Element type,
                              void *dst) const {
  ASSIGN_OR_RETURN(const TensorMeta *tensor, state_->findBox(name, box));
  if (!isConvertible(tensor->type, type))
    return damaged("'{}' has type {}, which cannot be converted to {}", name,
                   torchName(tensor->type), torchName(type));
  return state_->gather(*tensor, chunksOf(*tensor, box),
                        {box, type, denseStrides(box.shape), static_cast<uint8_t *>(dst)});
}

Status CheckpointReader::give(std::string_view name, const Box &box, const TakeBytes &take) const {
  ASSIGN_OR_RETURN(const TensorMeta *tensor, state_->findBox(name, box));
  std::vector<const Chunk *> chunks = chunksOf(*tensor, box);
  if (chunks.size() == 1 && intersect(chunks[0]->box, box) == box) {
    ASSIGN_OR_RETURN(bool isGiven, state_->giveChunk(*tensor, *chunks[0], box, take));
    if (isGiven)
      return Status::ok();
  }
  std::vector<uint8_t> buffer;
  return forEachPiece(box, tensor->type, kGivenPart, [&](const Box &piece) {
    buffer.resize(static_cast<size_t>(*tensorBytes(tensor->type, piece.shape)));
    RETURN_IF_ERROR(state_->gather(
        *tensor, chunks, {piece, tensor->type, denseStrides(piece.shape), buffer.data()}));
    return take({reinterpret_cast<const char *>(buffer.data()), buffer.size()});
  });
}

Result<std::span<const uint8_t>> CheckpointReader::readObjectRecord(std::string_view name) const {
  const ObjectMeta *object = findObject(name);
  if (object == nullptr && findTensor(name) != nullptr)
    return damaged("'{}' is a tensor in checkpoint '{}', not an object", name, folder());
  if (object == nullptr)
    return makeStatus(report::TensorsMissing, "Missing key in checkpoint state_dict: {}.", name);
  const RecordRef &place = object->record;
  Result<OpenRecord> record = state_->files.open(place);
  Status status =
      record.isOk() ? record->file->ensure(place.offset, place.length) : record.status();
  if (!status.isOk())
    return state_->withPlace(std::move(status), name, place);
  return record->file->bytes().subspan(place.offset, place.length);
}

Result<std::unique_ptr<CheckedFile>> CheckpointReader::openFile(const std::string &name) const {
  return state_->files.openOther(name);
}

Result<ObjectValue> CheckpointReader::readObject(std::string_view name) const {
  ASSIGN_OR_RETURN(std::span<const uint8_t> record, readObjectRecord(name));
  const RecordRef &place = findObject(name)->record;
  Result<ArchiveReader> archive = ArchiveReader::open(record);
  if (!archive.isOk())
    return state_->withPlace(archive.status(), name, place);
  Result<Pickle> pickle = readPickle(archive->find("data.pkl")->data, PickleContext::BytesItem);
  if (!pickle.isOk())
    return state_->withPlace(pickle.status(), name, place);
  return ObjectValue{std::move(*archive), std::move(*pickle)};
}

Status CheckpointReader::withPlace(Status status, const ObjectMeta &object) const {
  return state_->withPlace(std::move(status), object.name, object.record);
}

Status CheckpointReader::verifyTensor(const TensorMeta &tensor) const {
  int64_t covered = 0;
  for (const Chunk &chunk : tensor.chunks) {
    OpenRecord record;
    Status status = state_->openChunk(tensor, chunk, record).status();
    if (status.isOk())
      status = state_->files.verify(chunk.record);
    if (!status.isOk())
      return state_->withPlace(std::move(status), tensor.name, chunk.record);
    covered += elementCount(chunk.box.shape).value_or(0);
  }
  int64_t wanted = elementCount(tensor.shape).value_or(0);
  if (covered != wanted)
    return damaged("'{}' in '{}/.metadata': the saved chunks contain {} of its {} elements",
                   tensor.name, folder(), covered, wanted);
  return Status::ok();
}

Status CheckpointReader::verifyObject(const ObjectMeta &object) const {
  RETURN_IF_ERROR(readObject(object.name).status());
  Status status = state_->files.verify(object.record);
  return status.isOk() ? status : state_->withPlace(std::move(status), object.name, object.record);
}

Status CheckpointReader::verifyFiles() const { return state_->files.verifyFiles(); }

} // namespace shardc::checkpoint
