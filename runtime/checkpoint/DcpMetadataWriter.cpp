// Writes the pickle `.metadata` of torch's distributed checkpoints, as torch itself does.
#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/PickleWriter.h"

namespace shardc::checkpoint {
namespace {

/// Writes an object without state, `cls.__new__(cls)`. A BUILD after its state completes it.
PickleBytes &newObject(PickleBytes &out, std::string_view module, std::string_view name) {
  return out.global(module, name).op(')').op('\x81');
}

void writeSize(PickleBytes &out, ShapeView shape) {
  out.global("torch", "Size").integerTuple(shape).endTuple(1).op('R');
}

void writeProperties(PickleBytes &out, Element type) {
  newObject(out, kMetadataModule, "TensorProperties").op('(');
  out.global("torch", torchName(type));
  out.global("torch.serialization", "_get_layout").str("torch.strided").endTuple(1).op('R');
  out.boolean(false);
  out.global(kMetadataModule, "_MEM_FORMAT_ENCODING").integer(0).endTuple(1).op('R');
  out.boolean(false).endTuple(5).op('b');
}

/// Opcodes of pickle: `}` and `]` make an empty dictionary and list; `(` marks where items begin,
/// which `u` and `e` add to it; `b` gives the dictionary to the object as its state.
void writeTensor(PickleBytes &out, const TensorMeta &tensor) {
  newObject(out, kMetadataModule, "TensorStorageMetadata").op('}').op('(');
  out.str("properties");
  writeProperties(out, tensor.type);
  out.str("size");
  writeSize(out, tensor.shape);
  out.str("chunks").op(']');
  if (!tensor.chunks.empty())
    out.op('(');
  for (const Chunk &chunk : tensor.chunks) {
    newObject(out, kMetadataModule, "ChunkStorageMetadata").op('}').op('(');
    out.str("offsets");
    writeSize(out, chunk.box.offset);
    out.str("sizes");
    writeSize(out, chunk.box.shape);
    out.op('u').op('b');
  }
  if (!tensor.chunks.empty())
    out.op('e');
  out.op('u').op('b');
}

/// Writes a storage_data entry. The key must be complete before the value begins, since SETITEMS
/// hashes it.
void writeRecord(PickleBytes &out, const std::string &name, const Shape *offset, size_t index,
                 const RecordRef &record) {
  newObject(out, kMetadataModule, "MetadataIndex").op('}').op('(');
  out.str("fqn").str(name).str("index");
  if (offset != nullptr) {
    out.integer(static_cast<int64_t>(index)).str("offset");
    writeSize(out, *offset);
  } else {
    out.none();
  }
  out.op('u').op('b');
  newObject(out, kFileModule, "_StorageInfo").op('}').op('(');
  out.str("relative_path").str(record.file);
  out.str("offset").integer(static_cast<int64_t>(record.offset));
  out.str("length").integer(static_cast<int64_t>(record.length)).op('u').op('b');
}

void writePath(PickleBytes &out, const ItemPath &path) {
  if (path.size() > 3)
    out.op('(');
  for (const PathSegment &segment : path) {
    if (const auto *text = std::get_if<std::string>(&segment))
      out.str(*text);
    else
      out.integer(std::get<int64_t>(segment));
  }
  out.endTuple(path.size());
}

/// Writes the begin and end of a dictionary's items; nothing of both for an empty one.
class DictScope {
public:
  DictScope(PickleBytes &out, bool isEmpty) : out_(out), isEmpty_(isEmpty) {
    out_.op('}');
    if (!isEmpty_)
      out_.op('(');
  }
  ~DictScope() {
    if (!isEmpty_)
      out_.op('u');
  }

private:
  PickleBytes &out_;
  bool isEmpty_;
};

} // namespace

/// Writes the fields of torch's `Metadata` class in the order of its declaration.
std::string writeMetadata(const Metadata &metadata) {
  bool isEmpty = metadata.tensors.empty() && metadata.objects.empty();
  PickleBytes out;
  newObject(out, kMetadataModule, "Metadata").op('}').op('(');
  out.str("state_dict_metadata");
  {
    DictScope scope(out, isEmpty);
    for (const ObjectMeta &object : metadata.objects)
      newObject(out.str(object.name), kMetadataModule, "BytesStorageMetadata");
    for (const TensorMeta &tensor : metadata.tensors)
      writeTensor(out.str(tensor.name), tensor);
  }
  // The path of each item in the nested state dict.
  out.str("planner_data");
  {
    DictScope scope(out, isEmpty);
    auto write = [&](const std::string &name) {
      auto path = metadata.paths.find(name);
      writePath(out.str(name), path != metadata.paths.end() ? path->second : ItemPath{name});
    };
    for (const ObjectMeta &object : metadata.objects)
      write(object.name);
    for (const TensorMeta &tensor : metadata.tensors)
      write(tensor.name);
  }
  // Where the bytes are. A chunk is identified by its tensor's name, its offset and its number.
  out.str("storage_data");
  {
    DictScope scope(out, isEmpty);
    for (const ObjectMeta &object : metadata.objects)
      writeRecord(out, object.name, nullptr, 0, object.record);
    for (const TensorMeta &tensor : metadata.tensors)
      for (size_t i = 0; i < tensor.chunks.size(); ++i)
        writeRecord(out, tensor.name, &tensor.chunks[i].box.offset, i, tensor.chunks[i].record);
  }
  out.str("storage_meta");
  newObject(out, kMetadataModule, "StorageMeta").op('}').op('(');
  out.str("checkpoint_id").none().str("save_id");
  if (metadata.saveId.empty())
    out.none();
  else
    out.str(metadata.saveId);
  out.str("load_id").none().str("modules").op(']').op('u').op('b');
  out.str("version").str("1.0.0").op('u').op('b');
  return std::move(out).finish();
}

} // namespace shardc::checkpoint
