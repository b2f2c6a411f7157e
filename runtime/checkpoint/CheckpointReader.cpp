#include "runtime/checkpoint/CheckpointReader.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RecordFiles.h"

namespace shardc::checkpoint {
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
