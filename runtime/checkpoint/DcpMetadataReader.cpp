// Reads the pickle `.metadata` of torch's distributed checkpoints: tensors, their chunks and
// records.
#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kOldModule = "torch.distributed._shard.sharded_tensor.metadata";
constexpr std::string_view kMegatronModule = "megatron.core.dist_checkpointing.strategies.torch";
constexpr size_t kWarningsMax = 100;

/// Key of a chunk's record: the name, followed by the offset.
std::string recordKey(std::string_view name, const Shape *offset) {
  std::string key(name);
  key.push_back('\0');
  if (offset == nullptr)
    return key + "object";
  for (int64_t value : *offset)
    key += fmt::format("{},", value);
  return key;
}

/// Converts the graph of `.metadata` to Metadata. Records that belong to no item only cause a
/// warning.
class MetadataReader {
public:
  explicit MetadataReader(const PyGraph &graph) : graph_(graph) {}

  Result<Metadata> run(PyId root) {
    RETURN_IF_ERROR(readHeader(root));
    RETURN_IF_ERROR(readStorage(graph_.lookup(root, "storage_data")));
    RETURN_IF_ERROR(readItems(graph_.lookup(root, "state_dict_metadata")));
    RETURN_IF_ERROR(readPaths(graph_.lookup(root, "planner_data")));
    RETURN_IF_ERROR(readOriginalShapes(graph_.lookup(root, "mcore_data")));
    if (!records_.empty())
      warn(fmt::format("{} records belong to no item", records_.size()));
    RETURN_IF_ERROR(checkMetadata(result_));
    return std::move(result_);
  }

private:
  /// Fills the map from a tensor's name and chunk offset to its record. Objects have no offset.
  Status readStorage(PyId storage) {
    if (!graph_.is(storage, PyKind::Dict))
      return damaged("storage_data is not a dictionary");
    std::span<const PyId> pairs = graph_.items(storage);
    records_.reserve(pairs.size() / 2);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      PyId index = pairs[i];
      if (!graph_.isObjectOf(index, kMetadataModule, "MetadataIndex"))
        return damaged("a key of storage_data is not a MetadataIndex");
      std::optional<std::string_view> name = graph_.asText(graph_.lookup(index, "fqn"));
      if (!name)
        return damaged("a MetadataIndex has no fqn");
      PyId offsetId = graph_.lookup(index, "offset");
      bool hasOffset = offsetId != kNoPy && !graph_.is(offsetId, PyKind::None);
      Shape offset;
      if (hasOffset) {
        ASSIGN_OR_RETURN(offset, readShape(offsetId, *name, "chunk offset"));
      }
      ASSIGN_OR_RETURN(RecordRef record, readRecordRef(pairs[i + 1], *name));
      if (!records_.emplace(recordKey(*name, hasOffset ? &offset : nullptr), std::move(record))
               .second)
        return damaged("'{}' has two records at offset {}", *name, shapeText(offset));
    }
    return Status::ok();
  }

  /// Reads `state_dict_metadata`, a dictionary that describes each name as a tensor or as an object
  /// of bytes.
  Status readItems(PyId items) {
    if (!graph_.is(items, PyKind::Dict))
      return damaged("state_dict_metadata is not a dictionary");
    std::unordered_set<std::string_view> names;
    std::span<const PyId> pairs = graph_.items(items);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      std::optional<std::string_view> name = graph_.asText(pairs[i]);
      if (!name || !names.insert(*name).second)
        return damaged("state_dict_metadata has a key that is not a string or comes twice: '{}'",
                       name.value_or(""));
      if (graph_.isObjectOf(pairs[i + 1], kMetadataModule, "TensorStorageMetadata")) {
        RETURN_IF_ERROR(readTensor(*name, pairs[i + 1]));
      } else if (graph_.isObjectOf(pairs[i + 1], kMetadataModule, "BytesStorageMetadata")) {
        ASSIGN_OR_RETURN(RecordRef record, takeRecord(*name, nullptr));
        result_.objects.push_back({std::string(*name), std::move(record)});
      } else {
        return damaged("'{}' is described as neither a tensor nor an object", *name);
      }
    }
    return Status::ok();
  }

  Status readTensor(std::string_view name, PyId id) {
    TensorMeta tensor;
    tensor.name = name;
    RETURN_IF_ERROR(readProperties(tensor, graph_.lookup(id, "properties")));
    ASSIGN_OR_RETURN(tensor.shape, readShape(graph_.lookup(id, "size"), name, "shape"));
    PyId chunks = graph_.lookup(id, "chunks");
    if (!graph_.is(chunks, PyKind::List) && !graph_.is(chunks, PyKind::Tuple))
      return damaged("'{}': its chunks are not a list", name);
    for (PyId chunk : graph_.items(chunks))
      RETURN_IF_ERROR(readChunk(tensor, chunk));
    result_.tensors.push_back(std::move(tensor));
    return Status::ok();
  }

  Status readChunk(TensorMeta &tensor, PyId id) {
    if (!graph_.isObjectOf(id, kMetadataModule, "ChunkStorageMetadata"))
      return damaged("'{}': a chunk is not a ChunkStorageMetadata", tensor.name);
    Chunk chunk;
    ASSIGN_OR_RETURN(chunk.box.offset,
                     readShape(graph_.lookup(id, "offsets"), tensor.name, "chunk offset"));
    ASSIGN_OR_RETURN(chunk.box.shape,
                     readShape(graph_.lookup(id, "sizes"), tensor.name, "chunk shape"));
    ASSIGN_OR_RETURN(chunk.record, takeRecord(tensor.name, &chunk.box.offset));
    tensor.chunks.push_back(std::move(chunk));
    return Status::ok();
  }

  /// Whether the value is a memory format. Which one does not matter, since records have their own
  /// strides.
  bool isMemoryFormat(PyId id) const {
    for (const auto &[module, name] : {std::pair(kMetadataModule, "_MEM_FORMAT_ENCODING"),
                                       std::pair(kMetadataModule, "MEM_FORMAT_ENCODING"),
                                       std::pair(kOldModule, "MEM_FORMAT_ENCODING")}) {
      if (std::optional<std::string_view> member = graph_.memberName(id, module, name))
        return member == "TORCH_CONTIGUOUS_FORMAT" || member == "TORCH_CHANNELS_LAST" ||
               member == "TORCH_PRESERVE_FORMAT";
      if (!graph_.isObjectOf(id, module, name))
        continue;
      std::span<const PyId> args = graph_.items(graph_.object(id).args);
      std::optional<int64_t> value = args.size() == 1 ? graph_.asInteger(args[0]) : std::nullopt;
      return value && *value >= 0 && *value <= 2;
    }
    return false;
  }

  /// Reads dtype, layout, requires_grad, memory format and pin_memory of a tensor. Only dense
  /// (strided) tensors are supported.
  Status readProperties(TensorMeta &tensor, PyId id) {
    bool isKnown = graph_.isObjectOf(id, kMetadataModule, "TensorProperties") ||
                   graph_.isObjectOf(id, kOldModule, "TensorProperties");
    PyId state = isKnown ? graph_.object(id).state : kNoPy;
    // torch up to 2.11 has five fields; later versions may append more.
    if (!graph_.is(state, PyKind::Tuple) || graph_.items(state).size() < 5)
      return damaged("'{}': its properties are not TensorProperties of 5 fields", tensor.name);
    std::span<const PyId> fields = graph_.items(state);
    std::optional<Element> type;
    if (graph_.is(fields[0], PyKind::Global) && graph_.global(fields[0]).module == "torch")
      type = elementOfTorchName(graph_.global(fields[0]).name);
    if (!type)
      return damaged("'{}': its element type is unknown", tensor.name);
    tensor.type = *type;
    std::optional<std::string_view> layout;
    if (graph_.isObjectOf(fields[1], "torch.serialization", "_get_layout")) {
      std::span<const PyId> args = graph_.items(graph_.object(fields[1]).args);
      layout = args.size() == 1 ? graph_.asText(args[0]) : std::nullopt;
    }
    if (layout != "torch.strided")
      return damaged("'{}': its layout is '{}'; only 'torch.strided' is supported", tensor.name,
                     layout.value_or("?"));
    if (!graph_.asBool(fields[2]) || !graph_.asBool(fields[4]) ||
        !graph_.is(fields[3], PyKind::Object))
      return damaged("'{}': its properties are of an unknown kind", tensor.name);
    if (!isMemoryFormat(fields[3]))
      return damaged("'{}': its memory format is unknown", tensor.name);
    return Status::ok();
  }

  /// Reads the path of each item in the nested state dict, which is stored beside its flat name.
  Status readPaths(PyId paths) {
    if (paths == kNoPy || graph_.is(paths, PyKind::None))
      return Status::ok();
    if (!graph_.is(paths, PyKind::Dict))
      return damaged("planner_data is not a dictionary");
    std::span<const PyId> pairs = graph_.items(paths);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      std::optional<std::string_view> name = graph_.asText(pairs[i]);
      if (!name || !graph_.is(pairs[i + 1], PyKind::Tuple))
        return damaged("planner_data maps something other than a name to a path");
      ItemPath path;
      for (PyId part : graph_.items(pairs[i + 1])) {
        if (std::optional<std::string_view> text = graph_.asText(part))
          path.emplace_back(std::string(*text));
        else if (std::optional<int64_t> index = graph_.asInteger(part))
          path.emplace_back(*index);
        else
          return damaged("'{}': its path holds something other than strings and numbers", *name);
      }
      if (nameOfPath(path) != *name) // a name consists of the parts of its path
        return damaged("'{}': planner_data has it under the path '{}'", *name, nameOfPath(path));
      result_.paths[std::string(*name)] = std::move(path);
    }
    return Status::ok();
  }

  /// Reads Megatron's additional attribute. Entries that are not shapes are ignored.
  Status readOriginalShapes(PyId data) {
    if (!graph_.is(data, PyKind::Dict))
      return Status::ok();
    std::span<const PyId> pairs = graph_.items(data);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      std::optional<std::string_view> name = graph_.asText(pairs[i]);
      PyId shape = graph_.lookup(pairs[i + 1], "nd_reformulated_orig_global_shape");
      if (!name || shape == kNoPy || graph_.is(shape, PyKind::None))
        continue;
      ASSIGN_OR_RETURN(result_.originalShapes[std::string(*name)],
                       readShape(shape, *name, "original shape"));
    }
    return Status::ok();
  }

  Status readHeader(PyId root) {
    bool isMetadata = graph_.isObjectOf(root, kMetadataModule, "Metadata") ||
                      graph_.isObjectOf(root, kMegatronModule, "MCoreMetadata");
    if (!isMetadata || !graph_.is(graph_.object(root).state, PyKind::Dict))
      return damaged("it contains no torch.distributed.checkpoint Metadata");
    PyId version = graph_.lookup(root, "version");
    if (version != kNoPy && !graph_.is(version, PyKind::None)) {
      std::optional<std::string_view> text = graph_.asText(version);
      if (text != "1.0.0")
        return damaged("metadata version '{}'; only '1.0.0' is supported", text.value_or("?"));
      result_.version = std::string(*text);
    }
    PyId meta = graph_.lookup(root, "storage_meta");
    result_.saveId = std::string(graph_.asText(graph_.lookup(meta, "save_id")).value_or(""));
    return Status::ok();
  }

  /// A shape is a tuple, a list, or a `torch.Size`, which is pickled as a call with a tuple as its
  /// only argument.
  Result<Shape> readShape(PyId id, std::string_view name, const char *what) const {
    if (graph_.isObjectOf(id, "torch", "Size")) {
      std::span<const PyId> args = graph_.items(graph_.object(id).args);
      id = args.size() == 1 ? args[0] : kNoPy;
    }
    bool isSequence = graph_.is(id, PyKind::Tuple) || graph_.is(id, PyKind::List);
    if (!isSequence || graph_.items(id).size() > kDimsMax)
      return damaged("'{}': its {} is not a tuple of up to {} numbers", name, what, kDimsMax);
    Shape shape;
    for (PyId item : graph_.items(id)) {
      std::optional<int64_t> value = graph_.asInteger(item);
      if (!value || *value < 0 || *value > kExtentMax)
        return damaged("'{}': its {} holds something other than a number from 0 to 2^48", name,
                       what);
      shape.push_back(*value);
    }
    return shape;
  }

  /// Reads the file, offset and length of a record. File names with folders are refused, since a
  /// checkpoint could otherwise make the reader open any file.
  Result<RecordRef> readRecordRef(PyId id, std::string_view name) const {
    if (!graph_.isObjectOf(id, kFileModule, "_StorageInfo"))
      return damaged("'{}': its storage is described by something other than _StorageInfo", name);
    std::optional<std::string_view> file = graph_.asText(graph_.lookup(id, "relative_path"));
    std::optional<int64_t> offset = graph_.asInteger(graph_.lookup(id, "offset"));
    std::optional<int64_t> length = graph_.asInteger(graph_.lookup(id, "length"));
    if (!file || !offset || !length || *offset < 0 || *length < 0 || *offset > kExtentMax ||
        *length > kExtentMax)
      return damaged("'{}': its storage has no file, offset and length", name);
    PyId transforms = graph_.lookup(id, "transform_descriptors");
    if (transforms != kNoPy && !graph_.is(transforms, PyKind::None)) {
      bool isSequence = graph_.is(transforms, PyKind::List) || graph_.is(transforms, PyKind::Tuple);
      std::span<const PyId> names = isSequence ? graph_.items(transforms) : std::span<const PyId>();
      if (!isSequence || !names.empty())
        return damaged(
            "record '{}' uses transform '{}', which is not supported; save it without stream "
            "transforms",
            name, names.empty() ? "?" : graph_.asText(names[0]).value_or("?"));
    }
    if (!isPlainFileName(*file))
      return damaged("'{}': its file '{}' is not a plain name in the checkpoint's folder", name,
                     *file);
    return RecordRef{std::string(*file), static_cast<uint64_t>(*offset),
                     static_cast<uint64_t>(*length)};
  }

  Result<RecordRef> takeRecord(std::string_view name, const Shape *offset) {
    auto found = records_.find(recordKey(name, offset));
    if (found == records_.end())
      return damaged("'{}' has no record{}", name,
                     offset != nullptr ? " for its chunk at " + shapeText(*offset) : "");
    RecordRef record = std::move(found->second);
    records_.erase(found);
    return record;
  }

  void warn(const std::string &text) {
    if (result_.warnings.size() < kWarningsMax)
      result_.warnings.push_back(makeReport(report::OddMetadata, text));
  }

  const PyGraph &graph_;
  Metadata result_;
  std::unordered_map<std::string, RecordRef> records_;
};

/// Sweeps over the chunks along the dimension with the most distinct offsets, so that few pairs
/// must be compared.
Status checkOverlap(const TensorMeta &tensor) {
  size_t sweep = 0, most = 0;
  for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    std::unordered_set<int64_t> starts;
    for (const Chunk &chunk : tensor.chunks)
      starts.insert(chunk.box.offset[dim]);
    if (starts.size() > most)
      most = starts.size(), sweep = dim;
  }
  std::vector<const Box *> sorted;
  for (const Chunk &chunk : tensor.chunks)
    if (!chunk.box.isEmpty())
      sorted.push_back(&chunk.box);
  if (tensor.shape.empty())
    return sorted.size() <= 1
               ? Status::ok()
               : damaged("'{}': a scalar with {} chunks", tensor.name, sorted.size());
  std::ranges::sort(sorted, {}, [&](const Box *box) { return box->offset[sweep]; });
  // Two boxes can only overlap if their ranges along this dimension do.
  uint64_t pairs = 0;
  for (size_t i = 0; i < sorted.size(); ++i)
    for (size_t j = i + 1;
         j < sorted.size() &&
         sorted[j]->offset[sweep] < sorted[i]->offset[sweep] + sorted[i]->shape[sweep];
         ++j) {
      if (overlap(*sorted[i], *sorted[j]))
        return damaged("'{}': its chunks at {} and {} overlap", tensor.name,
                       shapeText(sorted[i]->offset), shapeText(sorted[j]->offset));
      if (++pairs > 100'000'000)
        return damaged("'{}': checking its {} chunks for overlap needs more than 100,000,000 "
                       "comparisons",
                       tensor.name, sorted.size());
    }
  return Status::ok();
}

Status checkTensor(const TensorMeta &tensor) {
  if (!tensorBytes(tensor.type, tensor.shape))
    return damaged("'{}': shape {} is too large", tensor.name, shapeText(tensor.shape));
  for (const Chunk &chunk : tensor.chunks) {
    const auto &[offset, shape] = chunk.box;
    if (offset.size() != tensor.shape.size() || shape.size() != tensor.shape.size())
      return damaged("'{}': a chunk at {} in a tensor of shape {}", tensor.name, boxText(chunk.box),
                     shapeText(tensor.shape));
    if (!chunk.box.isInside(tensor.shape))
      return damaged("'{}': its chunk at {} reaches out of the shape {}", tensor.name,
                     boxText(chunk.box), shapeText(tensor.shape));
  }
  return checkOverlap(tensor);
}

/// A record and the name of its item.
struct OwnedRecord {
  const RecordRef *record;
  const std::string *name;
};

std::vector<OwnedRecord> recordsOf(const Metadata &metadata) {
  std::vector<OwnedRecord> records;
  for (const TensorMeta &tensor : metadata.tensors)
    for (const Chunk &chunk : tensor.chunks)
      records.push_back({&chunk.record, &tensor.name});
  for (const ObjectMeta &object : metadata.objects)
    records.push_back({&object.record, &object.name});
  return records;
}

/// torch writes a separate record for each item, even for tied or equal weights. Overlapping
/// records therefore mean damage. This is the only sign of it, since a record does not name its
/// item.
Status checkChunksApart(const Metadata &metadata) {
  std::vector<OwnedRecord> records = recordsOf(metadata);
  std::ranges::sort(records, {}, [](const OwnedRecord &owned) {
    return std::tie(owned.record->file, owned.record->offset, owned.record->length);
  });
  for (size_t i = 1; i < records.size(); ++i) {
    const RecordRef &before = *records[i - 1].record, &record = *records[i].record;
    if (before.file == record.file && before.offset + before.length > record.offset)
      return damaged("the records of '{}' at byte {} of '{}', {} bytes, and of '{}' at byte {} "
                     "overlap",
                     *records[i - 1].name, before.offset, record.file, before.length,
                     *records[i].name, record.offset);
  }
  return Status::ok();
}

} // namespace

bool isPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

bool isPlainPath(std::string_view path) {
  while (true) {
    size_t end = path.find('/');
    if (!isPlainFileName(path.substr(0, end)))
      return false;
    if (end == std::string_view::npos)
      return true;
    path.remove_prefix(end + 1);
  }
}

std::string nameOfPath(const ItemPath &path) {
  std::string name;
  for (const PathSegment &segment : path) {
    if (!name.empty() || &segment != &path.front())
      name.push_back('.');
    if (const auto *text = std::get_if<std::string>(&segment))
      name += *text;
    else
      name += std::to_string(std::get<int64_t>(segment));
  }
  return name;
}

Status checkMetadata(const Metadata &metadata) {
  for (const TensorMeta &tensor : metadata.tensors)
    RETURN_IF_ERROR(checkTensor(tensor));
  return checkChunksApart(metadata);
}

Result<Metadata> readMetadata(std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(Pickle pickle, readPickle(bytes, PickleContext::Metadata));
  ASSIGN_OR_RETURN(Metadata metadata, MetadataReader(pickle.graph).run(pickle.root));
  metadata.warnings.insert(metadata.warnings.end(), pickle.warnings.begin(), pickle.warnings.end());
  return metadata;
}

} // namespace shardc::checkpoint
