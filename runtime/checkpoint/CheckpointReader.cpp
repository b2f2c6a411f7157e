#include "runtime/checkpoint/CheckpointReader.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <unordered_map>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/Integrity.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMetadataBytesMax = uint64_t{4} << 30;
constexpr uint64_t kTouchedMax = uint64_t{128} << 20; ///< bytes of mapped files to hold in memory

template <typename... Args> Status broken(fmt::format_string<Args...> text, Args &&...args) {
  return Status(StatusCode::InvalidInput, fmt::format(text, std::forward<Args>(args)...));
}

/// A file that the metadata names, mapped at its first use.
struct DataFile {
  std::string path;
  uint64_t bytesNeeded = 0;
  const BlockChecksums *checksums = nullptr;
  std::once_flag once;
  std::unique_ptr<CheckedFile> file;
  Status status;
};

/// Says why a folder without a readable `.metadata` is no checkpoint of ours.
Status explainMissing(const std::string &folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return makeStatus(StatusCode::NotFound, "'{}' is no folder", folder);
  if (fs::exists(folder + "/.metadata.tmp", error))
    return broken("'{}' is an interrupted save: it has '.metadata.tmp' but no '.metadata'", folder);
  if (fs::exists(folder + "/__0.metadata", error))
    return broken("'{}' was saved with one metadata file a rank ('__0.metadata'), which is not "
                  "read; save it with "
                  "torch's collective planner",
                  folder);
  return makeStatus(StatusCode::NotFound, "'{}' is no DCP checkpoint: it has no '.metadata'",
                    folder);
}

bool isInside(ShapeView shape, ShapeView offset, ShapeView extents) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (extents[i] < 0 || offset[i] < 0 || extents[i] > shape[i] ||
        offset[i] > shape[i] - extents[i])
      return false;
  return true;
}

/// The part of a chunk that a request wants.
struct Overlap {
  Shape inChunk, inRequest, extents;
};

std::optional<Overlap> overlapOf(const Chunk &chunk, ShapeView offset, ShapeView shape) {
  Overlap overlap;
  for (size_t i = 0; i < offset.size(); ++i) {
    int64_t low = std::max(chunk.offset[i], offset[i]);
    int64_t high = std::min(chunk.offset[i] + chunk.shape[i], offset[i] + shape[i]);
    if (low >= high)
      return std::nullopt;
    overlap.inChunk.push_back(low - chunk.offset[i]);
    overlap.inRequest.push_back(low - offset[i]);
    overlap.extents.push_back(high - low);
  }
  return overlap;
}

int64_t dot(ShapeView a, ShapeView b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

/// Bytes from a box's first element to the end of its last.
uint64_t spanBytes(const TensorView &view, ShapeView extents) {
  int64_t last = 0;
  for (size_t i = 0; i < extents.size(); ++i)
    last += (extents[i] - 1) * view.strides[i];
  return static_cast<uint64_t>((last + 1) * elementBits(view.type) / 8);
}

} // namespace

struct CheckpointReader::State {
  std::string folder;
  Verify verify = Verify::Touched;
  Metadata metadata;
  IntegrityTable integrity;
  bool hasIntegrity = false;
  std::unordered_map<std::string_view, const TensorMeta *> tensors;
  std::unordered_map<std::string_view, const ObjectMeta *> objects;
  std::unordered_map<std::string, DataFile> files;
  std::atomic<uint64_t> touched{0};
  std::mutex openMutex;
  std::vector<const CheckedFile *> openFiles;

  Status load();
  Status loadIntegrity();
  Status loadFiles();
  Status loadFile(const std::string &name, DataFile &file) const;
  Result<CheckedFile *> fileOf(const RecordRef &record);
  Result<ArchiveReader> openRecord(const RecordRef &record, CheckedFile *&file);
  Result<TensorView> openChunk(const TensorMeta &tensor, const Chunk &chunk, CheckedFile *&file,
                               ArchiveReader &archive);
  Status checkData(const ArchiveReader &archive, const TensorView &view, CheckedFile &file,
                   const uint8_t *first, uint64_t length) const;
  Status readOverlap(const TensorMeta &tensor, const Chunk &chunk, const Overlap &overlap,
                     const BoxSide &to, uint8_t *dst);
  Status withPlace(Status status, std::string_view name, const RecordRef &record) const;
  void touch(uint64_t bytes);
};

/// Counts bytes that were read; drops all once there are many.
void CheckpointReader::State::touch(uint64_t bytes) {
  if (touched.fetch_add(bytes, std::memory_order_relaxed) + bytes < kTouchedMax)
    return;
  std::lock_guard lock(openMutex);
  if (touched.exchange(0, std::memory_order_relaxed) < kTouchedMax)
    return; // another thread was here
  for (const CheckedFile *file : openFiles)
    file->drop();
}

Status CheckpointReader::State::loadIntegrity() {
  if (verify == Verify::None)
    return Status::ok();
  Result<std::string> text = readFile(fmt::format("{}/{}", folder, kIntegrityFile));
  if (!text.isOk()) // a checkpoint of another program
    return text.status().code() == StatusCode::NotFound ? Status::ok() : text.status();
  ASSIGN_OR_RETURN(integrity, IntegrityTable::parse(*text));
  hasIntegrity = true;
  return Status::ok();
}

Status CheckpointReader::State::loadFile(const std::string &name, DataFile &file) const {
  std::error_code error;
  fs::path canonical = fs::canonical(file.path, error);
  if (error)
    return makeStatus(StatusCode::NotFound, "checkpoint '{}' lacks '{}', which '.metadata' names",
                      folder, name);
  if (canonical.parent_path() != fs::canonical(folder, error))
    return broken("'{}' leads out of the checkpoint's folder", file.path);
  uint64_t size = fs::file_size(canonical, error);
  if (error)
    return broken("'{}' is no regular file", file.path);
  if (size < file.bytesNeeded)
    return broken("'{}' is cut short: {} bytes are needed{}, {} are there", file.path,
                  file.bytesNeeded, hasIntegrity ? "" : " by '.metadata'", size);
  return Status::ok();
}

Status CheckpointReader::State::loadFiles() {
  auto need = [&](const RecordRef &record) {
    DataFile &file = files[record.file];
    file.bytesNeeded = std::max(file.bytesNeeded, record.offset + record.length);
  };
  for (const TensorMeta &tensor : metadata.tensors)
    for (const Chunk &chunk : tensor.chunks)
      need(chunk.record);
  for (const ObjectMeta &object : metadata.objects)
    need(object.record);
  for (auto &[name, file] : files) {
    file.path = fmt::format("{}/{}", folder, name);
    auto sums = integrity.files.find(name);
    if (sums != integrity.files.end())
      file.checksums = &sums->second;
    else if (hasIntegrity)
      return broken("'{}/{}' has no checksums for '{}'", folder, kIntegrityFile, name);
    RETURN_IF_ERROR(loadFile(name, file));
  }
  return Status::ok();
}

Status CheckpointReader::State::load() {
  RETURN_IF_ERROR(loadIntegrity());
  std::string path = folder + "/.metadata";
  std::error_code error;
  if (!fs::exists(path, error))
    return explainMissing(folder);
  const BlockChecksums *sums = nullptr;
  if (auto found = integrity.files.find(".metadata"); found != integrity.files.end())
    sums = &found->second;
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, CheckedFile::open(path, sums));
  if (file->bytes().size() > kMetadataBytesMax)
    return broken("'{}' has {} bytes; at most {} are taken", path, file->bytes().size(),
                  kMetadataBytesMax);
  RETURN_IF_ERROR(file->ensure(0, file->bytes().size()));
  Result<Metadata> read = readMetadata(file->bytes());
  if (!read.isOk())
    return Status(read.status()).withContext(fmt::format("'{}'", path));
  metadata = std::move(*read);
  for (const TensorMeta &tensor : metadata.tensors)
    tensors.emplace(tensor.name, &tensor);
  for (const ObjectMeta &object : metadata.objects)
    objects.emplace(object.name, &object);
  return loadFiles();
}

Status CheckpointReader::State::withPlace(Status status, std::string_view name,
                                          const RecordRef &record) const {
  std::string place =
      fmt::format("'{}' in '{}/{}' at byte {}", name, folder, record.file, record.offset);
  if (!hasIntegrity) // then that file may be whole, and the place wrong
    place += " (by '.metadata')";
  return std::move(status).withContext(place);
}

Result<CheckedFile *> CheckpointReader::State::fileOf(const RecordRef &record) {
  DataFile &file = files.at(record.file);
  std::call_once(file.once, [&] {
    Result<std::unique_ptr<CheckedFile>> opened = CheckedFile::open(file.path, file.checksums);
    if (!opened.isOk()) {
      file.status = opened.status();
      return;
    }
    file.file = std::move(*opened);
    std::lock_guard lock(openMutex);
    openFiles.push_back(file.file.get());
  });
  RETURN_IF_ERROR(file.status);
  if (record.offset + record.length > file.file->bytes().size()) // it shrank since it was looked at
    return broken("'{}' is cut short: {} bytes are needed, {} are there", file.path,
                  file.bytesNeeded, file.file->bytes().size());
  return file.file.get();
}

Result<ArchiveReader> CheckpointReader::State::openRecord(const RecordRef &record,
                                                          CheckedFile *&file) {
  ASSIGN_OR_RETURN(file, fileOf(record));
  return ArchiveReader::open(file->bytes().subspan(record.offset, record.length));
}

Result<TensorView> CheckpointReader::State::openChunk(const TensorMeta &tensor, const Chunk &chunk,
                                                      CheckedFile *&file, ArchiveReader &archive) {
  ASSIGN_OR_RETURN(archive, openRecord(chunk.record, file));
  ASSIGN_OR_RETURN(TensorView view, readTensorRecord(archive));
  // What was parsed so far lies around the data; damage there must not pass for a valid
  // description.
  uint64_t end = chunk.record.offset + chunk.record.length;
  auto dataBegin = static_cast<uint64_t>(view.storage.data() - file->bytes().data());
  RETURN_IF_ERROR(file->ensure(chunk.record.offset, dataBegin - chunk.record.offset));
  RETURN_IF_ERROR(
      file->ensure(dataBegin + view.storage.size(), end - dataBegin - view.storage.size()));
  if (view.shape != chunk.shape)
    return broken("the record has shape {} but the metadata says {}", shapeText(view.shape),
                  shapeText(chunk.shape));
  if (view.type != tensor.type)
    return broken("the record has type {} but the metadata says {}", torchName(view.type),
                  torchName(tensor.type));
  return view;
}

Status CheckpointReader::State::checkData(const ArchiveReader &archive, const TensorView &view,
                                          CheckedFile &file, const uint8_t *first,
                                          uint64_t length) const {
  if (verify == Verify::None)
    return Status::ok();
  bool isWhole = length == view.storage.size() || verify == Verify::Whole;
  if (!file.isChecked() || verify == Verify::Whole)
    RETURN_IF_ERROR(isWhole ? archive.verify(*view.entry) : Status::ok());
  if (verify == Verify::Whole)
    return file.ensure(static_cast<uint64_t>(view.storage.data() - file.bytes().data()),
                       view.storage.size());
  return file.ensure(static_cast<uint64_t>(first - file.bytes().data()), length);
}

Status CheckpointReader::State::readOverlap(const TensorMeta &tensor, const Chunk &chunk,
                                            const Overlap &overlap, const BoxSide &to,
                                            uint8_t *dst) {
  CheckedFile *file = nullptr;
  ArchiveReader archive;
  ASSIGN_OR_RETURN(TensorView view, openChunk(tensor, chunk, file, archive));
  const uint8_t *src =
      view.origin() + dot(overlap.inChunk, view.strides) * elementBits(view.type) / 8;
  uint64_t length = spanBytes(view, overlap.extents);
  file->prefetch(static_cast<uint64_t>(src - file->bytes().data()), length);
  RETURN_IF_ERROR(checkData(archive, view, *file, src, length));
  uint8_t *target = dst + dot(overlap.inRequest, to.strides) * elementBits(to.type) / 8;
  copyBox(overlap.extents, {view.type, view.strides}, src, to, target);
  touch(length);
  return Status::ok();
}

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader &&) noexcept = default;
CheckpointReader &CheckpointReader::operator=(CheckpointReader &&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

Result<CheckpointReader> CheckpointReader::open(const std::string &folder, Verify verify) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  state->verify = verify;
  RETURN_IF_ERROR(state->load());
  return CheckpointReader(std::move(state));
}

const std::string &CheckpointReader::folder() const { return state_->folder; }
const Metadata &CheckpointReader::metadata() const { return state_->metadata; }
bool CheckpointReader::hasIntegrity() const { return state_->hasIntegrity; }

const TensorMeta *CheckpointReader::findTensor(std::string_view name) const {
  auto found = state_->tensors.find(name);
  return found != state_->tensors.end() ? found->second : nullptr;
}

const ObjectMeta *CheckpointReader::findObject(std::string_view name) const {
  auto found = state_->objects.find(name);
  return found != state_->objects.end() ? found->second : nullptr;
}

Status CheckpointReader::read(std::string_view name, ShapeView offset, ShapeView shape,
                              Element type, void *dst) const {
  return readStrided(name, offset, shape, type, denseStrides(shape), dst);
}

Status CheckpointReader::readStrided(std::string_view name, ShapeView offset, ShapeView shape,
                                     Element type, ShapeView strides, void *dst) const {
  const TensorMeta *tensor = findTensor(name);
  if (tensor == nullptr && findObject(name) != nullptr)
    return broken("'{}' is an object in checkpoint '{}', not a tensor", name, folder());
  if (tensor == nullptr)
    return makeStatus(StatusCode::NotFound, "Missing key in checkpoint state_dict: {}.", name);
  if (offset.size() != tensor->shape.size() || shape.size() != offset.size() ||
      strides.size() != offset.size() || !isInside(tensor->shape, offset, shape))
    return broken("the box at {} of shape {} is not inside '{}' of shape {}", shapeText(offset),
                  shapeText(shape), name, shapeText(tensor->shape));
  if (!isConvertible(tensor->type, type))
    return broken("'{}' has type {}, which is not converted to {}", name, torchName(tensor->type),
                  torchName(type));
  int64_t wanted = elementCount(shape).value_or(0), got = 0;
  for (const Chunk &chunk : tensor->chunks) {
    std::optional<Overlap> overlap = overlapOf(chunk, offset, shape);
    if (!overlap || wanted == 0)
      continue;
    Status status =
        state_->readOverlap(*tensor, chunk, *overlap, {type, strides}, static_cast<uint8_t *>(dst));
    if (!status.isOk())
      return state_->withPlace(std::move(status), name, chunk.record);
    got += *elementCount(overlap->extents);
  }
  if (got != wanted) // chunks do not overlap, so counting is enough
    return broken("'{}' in '{}/.metadata': the saved chunks hold {} of the {} elements at {} of "
                  "shape {}",
                  name, folder(), got, wanted, shapeText(offset), shapeText(shape));
  return Status::ok();
}

Result<std::span<const uint8_t>> CheckpointReader::readObjectRecord(std::string_view name) const {
  const ObjectMeta *object = findObject(name);
  if (object == nullptr && findTensor(name) != nullptr)
    return broken("'{}' is a tensor in checkpoint '{}', not an object", name, folder());
  if (object == nullptr)
    return makeStatus(StatusCode::NotFound, "Missing key in checkpoint state_dict: {}.", name);
  const RecordRef &record = object->record;
  ASSIGN_OR_RETURN(CheckedFile * file, state_->fileOf(record));
  Status status = file->ensure(record.offset, record.length);
  if (!status.isOk())
    return state_->withPlace(std::move(status), name, record);
  return file->bytes().subspan(record.offset, record.length);
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

Status CheckpointReader::verifyTensor(const TensorMeta &tensor) const {
  int64_t covered = 0;
  for (const Chunk &chunk : tensor.chunks) {
    CheckedFile *file = nullptr;
    ArchiveReader archive;
    Result<TensorView> view = state_->openChunk(tensor, chunk, file, archive);
    Status status = view.isOk() ? archive.verify(*view->entry) : view.status();
    if (status.isOk())
      status = file->ensure(chunk.record.offset, chunk.record.length);
    if (!status.isOk())
      return state_->withPlace(std::move(status), tensor.name, chunk.record);
    state_->touch(chunk.record.length);
    covered += elementCount(chunk.shape).value_or(0);
  }
  int64_t wanted = elementCount(tensor.shape).value_or(0);
  if (covered != wanted)
    return broken("'{}' in '{}/.metadata': the saved chunks hold {} of its {} elements",
                  tensor.name, folder(), covered, wanted);
  return Status::ok();
}

Status CheckpointReader::verifyObject(const ObjectMeta &object) const {
  ASSIGN_OR_RETURN(ObjectValue value, readObject(object.name));
  for (const ArchiveEntry &entry : value.archive.entries()) {
    Status status = value.archive.verify(entry);
    if (!status.isOk())
      return state_->withPlace(std::move(status), object.name, object.record);
  }
  return Status::ok();
}

Status CheckpointReader::verifyFiles() const {
  for (const auto &[name, sums] : state_->integrity.files) {
    ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file,
                     CheckedFile::open(fmt::format("{}/{}", folder(), name), &sums));
    for (uint64_t at = 0; at < file->bytes().size(); at += kTouchedMax) {
      RETURN_IF_ERROR(file->ensure(at, std::min(kTouchedMax, file->bytes().size() - at)));
      file->drop();
    }
  }
  return Status::ok();
}

} // namespace shardc::checkpoint
