#include "runtime/checkpoint/TensorRecord.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

template <typename... Args> Status recordError(fmt::format_string<Args...> text, Args &&...args) {
  return makeStatus(report::CheckpointDamaged,
                    "tensor record: " + fmt::format(text, std::forward<Args>(args)...));
}

/// Reads a tuple of extents. A `torch.Size` is pickled as a call with a tuple as its only argument.
Result<Shape> readExtents(const PyGraph &graph, PyId id, const char *what) {
  if (graph.isObjectOf(id, "torch", "Size")) {
    PyId args = graph.object(id).args;
    if (!graph.is(args, PyKind::Tuple) || graph.items(args).size() != 1)
      return recordError("its {} is not a tuple", what);
    id = graph.items(args)[0];
  }
  if (!graph.is(id, PyKind::Tuple) || graph.items(id).size() > kDimsMax)
    return recordError("its {} is not a tuple of up to {} numbers", what, kDimsMax);
  Shape extents;
  for (PyId item : graph.items(id)) {
    std::optional<int64_t> value = graph.asInteger(item);
    if (!value || *value < 0 || *value > kExtentMax)
      return recordError("its {} holds something other than a number from 0 to 2^48", what);
    extents.push_back(*value);
  }
  return extents;
}

struct Storage {
  std::optional<Element> type; ///< not set for UntypedStorage
  const ArchiveEntry *entry = nullptr;
  int64_t count = 0; ///< number of elements; of bytes if untyped
};

Result<Storage> readStorage(const ArchiveReader &archive, const PyGraph &graph, PyId id) {
  if (!graph.is(id, PyKind::Object) || graph.object(id).make != PyMake::Persistent)
    return recordError("its storage is not in the archive");
  std::span<const PyId> parts = graph.items(graph.object(id).args); // the reader checked the number
  const PyGlobal &storageClass = graph.global(parts[1]);
  Storage storage;
  storage.count = graph.integer(parts[4]);
  if (storageClass.module == "torch")
    storage.type = elementOfTorchStorage(storageClass.name);
  bool isUntyped = storageClass.module == "torch.storage" && storageClass.name == "UntypedStorage";
  if (!storage.type && !isUntyped)
    return recordError("storage class '{}.{}' is unknown", storageClass.module, storageClass.name);
  std::string name = fmt::format("data/{}", graph.text(parts[2]));
  storage.entry = archive.find(name);
  if (storage.entry == nullptr)
    return recordError("the archive has no '{}'", name);
  int64_t bits = storage.type ? elementBits(*storage.type) : 8, needed = 0;
  if (storage.count < 0 || __builtin_mul_overflow(storage.count, bits / 8, &needed) ||
      static_cast<uint64_t>(needed) != storage.entry->data.size())
    return recordError("'{}' has {} bytes where its pickle says {} elements of {} bits", name,
                       storage.entry->data.size(), storage.count, bits);
  return storage;
}

/// Checks that the last element is inside the storage.
Status checkExtent(const TensorView &view) {
  if (std::ranges::find(view.shape, 0) != view.shape.end())
    return Status::ok();
  int64_t last = view.storageOffset;
  for (size_t i = 0; i < view.shape.size(); ++i) {
    int64_t step = 0;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      return recordError("its strides {} overflow", shapeText(view.strides));
  }
  int64_t bytes = elementBits(view.type) / 8;
  if (last >= static_cast<int64_t>(view.storage.size()) / bytes)
    return recordError("shape {} with strides {} from {} reaches element {} of a storage of {}",
                       shapeText(view.shape), shapeText(view.strides), view.storageOffset, last,
                       static_cast<int64_t>(view.storage.size()) / bytes);
  return Status::ok();
}

Result<TensorView> rebuild(const ArchiveReader &archive, const PyGraph &graph,
                           std::span<const PyId> args, bool isV3) {
  size_t least = isV3 ? 7 : 6;
  if (args.size() < least || args.size() > 8)
    return recordError("{} arguments describe it; {} are needed", args.size(), least);
  ASSIGN_OR_RETURN(Storage storage, readStorage(archive, graph, args[0]));
  std::optional<int64_t> offset = graph.asInteger(args[1]);
  if (!offset || *offset < 0 || *offset > kExtentMax)
    return recordError("its storage offset is not a number from 0 to 2^48");
  TensorView view;
  view.storageOffset = *offset;
  view.storage = storage.entry->data;
  view.entry = storage.entry;
  ASSIGN_OR_RETURN(view.shape, readExtents(graph, args[2], "shape"));
  ASSIGN_OR_RETURN(view.strides, readExtents(graph, args[3], "strides"));
  if (view.shape.size() != view.strides.size() || !elementCount(view.shape))
    return recordError("shape {} and strides {} do not belong together", shapeText(view.shape),
                       shapeText(view.strides));
  std::optional<Element> type = storage.type;
  if (isV3) {
    if (storage.type || !graph.is(args[6], PyKind::Global) ||
        graph.global(args[6]).module != "torch")
      return recordError("it names no element type for its untyped storage");
    type = elementOfTorchName(graph.global(args[6]).name);
  }
  if (!type)
    return recordError("its element type is unknown");
  view.type = *type;
  size_t metadataAt = least;
  if (args.size() > metadataAt && graph.is(args[metadataAt], PyKind::Dict))
    for (const char *flag : {"conj", "neg"})
      if (graph.asBool(graph.lookup(args[metadataAt], flag)) == true)
        return recordError("it is a lazily computed '{}' view, which is not supported", flag);
  RETURN_IF_ERROR(checkExtent(view));
  return view;
}

} // namespace

bool isDense(ShapeView extents, ShapeView strides) {
  int64_t expected = 1;
  for (size_t i = extents.size(); i-- > 0;) {
    if (extents[i] == 0)
      return true;
    if (extents[i] != 1 && strides[i] != expected)
      return false;
    expected *= extents[i];
  }
  return true;
}

Result<TensorView> tensorOf(const ArchiveReader &archive, const PyGraph &graph, PyId id) {
  if (graph.isObjectOf(id, "torch._utils", "_rebuild_parameter")) {
    PyId args = graph.object(id).args;
    if (graph.items(args).empty())
      return recordError("a parameter without a tensor");
    id = graph.items(args)[0];
  }
  bool isV2 = graph.isObjectOf(id, "torch._utils", "_rebuild_tensor_v2");
  bool isV3 = graph.isObjectOf(id, "torch._utils", "_rebuild_tensor_v3");
  if (!isV2 && !isV3)
    return recordError("the item is not a tensor");
  return rebuild(archive, graph, graph.items(graph.object(id).args), isV3);
}

bool isTensor(const PyGraph &graph, PyId id) {
  return graph.isObjectOf(id, "torch._utils", "_rebuild_tensor_v2") ||
         graph.isObjectOf(id, "torch._utils", "_rebuild_tensor_v3") ||
         graph.isObjectOf(id, "torch._utils", "_rebuild_parameter");
}

Result<TensorView> readTensorRecord(const ArchiveReader &archive) {
  const ArchiveEntry *pickle = archive.find("data.pkl");
  ASSIGN_OR_RETURN(Pickle read, readPickle(pickle->data, PickleContext::TensorRecord));
  return tensorOf(archive, read.graph, read.root);
}

Shape denseStrides(ShapeView shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1); // torch counts 0 as 1
  return strides;
}

PyId addTensorToGraph(PyGraph &graph, Element type, ShapeView shape, std::string_view key) {
  auto extents = [&](ShapeView numbers) {
    std::vector<PyId> items;
    for (int64_t number : numbers)
      items.push_back(graph.makeInteger(number));
    return graph.tuple(items);
  };
  PyId storage = graph.tuple({graph.str("storage"), graph.global("torch", torchStorageClass(type)),
                              graph.str(key), graph.str("cpu"),
                              graph.makeInteger(elementCount(shape).value_or(0))});
  PyId bytes = graph.object(PyMake::Persistent, kNoPy, storage);
  PyId size = extents(shape), strides = extents(denseStrides(shape));
  return graph.call("torch._utils", "_rebuild_tensor_v2",
                    {bytes, graph.makeInteger(0), size, strides, graph.makeBool(false),
                     graph.call("collections", "OrderedDict", {})});
}

std::string tensorPickle(Element type, ShapeView shape) {
  bool isTyped = !torchStorageClass(type).empty();
  int64_t count = elementCount(shape).value_or(0);
  PickleBytes out;
  out.global("torch._utils", isTyped ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3").memoize();
  out.op('(').op('(').str("storage").memoize();
  if (isTyped)
    out.global("torch", torchStorageClass(type)).memoize();
  else
    out.global("torch.storage", "UntypedStorage").memoize();
  out.str("0").memoize().str("cpu").memoize();
  out.integer(isTyped ? count : count * elementBits(type) / 8).op('t').memoize().op('Q');
  out.integer(0);
  Shape strides = denseStrides(shape);
  for (ShapeView extents : {shape, ShapeView(strides)}) {
    out.integerTuple(extents);
    if (!extents.empty())
      out.memoize();
  }
  out.boolean(false).global("collections", "OrderedDict").memoize().op(')').op('R').memoize();
  if (!isTyped)
    out.global("torch", torchName(type)).memoize();
  return std::move(out.op('t').memoize().op('R').memoize()).finish();
}

Status writeTensorRecord(ByteSink &sink, Element type, ShapeView shape,
                         std::span<const std::string_view> parts) {
  return writeGivenRecord(sink, type, shape, [&](const TakeBytes &take) {
    for (std::string_view part : parts)
      RETURN_IF_ERROR(take(part));
    return Status::ok();
  });
}

/// Writes a tensor as `torch.save` does: an archive with the same entries in the same order. `give`
/// provides the data in parts, so that a tensor need not be in memory as a whole.
Status writeGivenRecord(ByteSink &sink, Element type, ShapeView shape, const GiveBytes &give) {
  std::optional<int64_t> bytes = tensorBytes(type, shape);
  if (!bytes || torchName(type).empty())
    return makeStatus(StatusCode::InvalidInput, "torch has no tensor of shape {} and type '{}'",
                      shapeText(shape), torchName(type));
  ArchiveWriter archive(sink);
  RETURN_IF_ERROR(archive.add("data.pkl", tensorPickle(type, shape)));
  RETURN_IF_ERROR(archive.add(".format_version", "1"));
  RETURN_IF_ERROR(archive.add(".storage_alignment", "64"));
  RETURN_IF_ERROR(archive.add("byteorder", "little"));
  RETURN_IF_ERROR(archive.addGiven("data/0", static_cast<uint64_t>(*bytes), give));
  RETURN_IF_ERROR(archive.add("version", "3\n"));
  return archive.finish();
}

void copyBox(ShapeView extents, const BoxSide &from, const uint8_t *src, const BoxSide &to,
             uint8_t *dst) {
  if (std::ranges::find(extents, 0) != extents.end())
    return;
  // Trailing dimensions that are dense on both sides are copied as one run of elements.
  size_t outer = extents.size();
  int64_t run = 1;
  while (outer > 0 && (extents[outer - 1] == 1 ||
                       (from.strides[outer - 1] == run && to.strides[outer - 1] == run)))
    run *= extents[--outer];
  int64_t srcBytes = elementBits(from.type) / 8, dstBytes = elementBits(to.type) / 8;
  Shape at(outer, 0);
  while (true) {
    int64_t srcAt = 0, dstAt = 0;
    for (size_t i = 0; i < outer; ++i) {
      srcAt += at[i] * from.strides[i];
      dstAt += at[i] * to.strides[i];
    }
    convertElements(from.type, src + srcAt * srcBytes, to.type, dst + dstAt * dstBytes, run);
    size_t dim = outer;
    while (dim > 0 && ++at[dim - 1] == extents[dim - 1])
      at[--dim] = 0;
    if (dim == 0)
      return;
  }
}

} // namespace shardc::checkpoint
