#include "runtime/checkpoint/RunState.h"

#include <cmath>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/GroupSettings.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {
namespace {

constexpr const char *kFlops = "num_floating_point_operations_so_far";
constexpr const char *kScheduler = "opt_param_scheduler";
constexpr std::string_view kScaleField = "scale"; ///< a tensor; other fields are numbers

void setEntry(PlainEntries &entries, std::string_view key, PlainValue value) {
  for (auto &[name, old] : entries)
    if (name == key) {
      old = std::move(value);
      return;
    }
  entries.emplace_back(key, std::move(value));
}

/// A counter; 0 if it is missing or None.
Result<int64_t> counterIn(const PlainEntries &entries, std::string_view key,
                          std::string_view folder) {
  const PlainValue *entry = findEntry(entries, key);
  if (entry == nullptr || entry->as<std::monostate>() != nullptr)
    return int64_t{0};
  std::optional<int64_t> count = entry->wholeNumber();
  if (!count || *count < 0)
    return makeStatus(report::CheckpointDamaged,
                      "{} in checkpoint '{}' is {}, not a number of samples", key, folder,
                      textOf(*entry));
  return *count;
}

template <typename T> std::string rawBytes(T value) {
  return std::string(reinterpret_cast<const char *>(&value), sizeof(T));
}

/// A number without a fraction, as a Python integer of any size.
PlainValue wholeNumber(double value) {
  return PlainBigInt{fmt::format("{:.0f}", std::floor(value))};
}

/// The parts of torch's tensor pickles that are single objects in Python, so that the memo shares
/// them.
struct TensorWords {
  PyId rebuild = kNoPy, rebuildTyped = kNoPy, storage = kNoPy, untyped = kNoPy, cpu = kNoPy,
       orderedDict = kNoPy;
  std::vector<std::pair<std::string_view, PyId>> classes;

  PyId classOf(PyGraph &graph, std::string_view module, std::string_view name) {
    for (const auto &[known, id] : classes)
      if (known == name)
        return id;
    classes.emplace_back(name, graph.global(module, name));
    return classes.back().second;
  }
};

PyId once(PyGraph &graph, PyId &id, std::string_view module, std::string_view name) {
  if (id == kNoPy)
    id = module.empty() ? graph.str(name) : graph.global(module, name);
  return id;
}

PyId extentsNode(PyGraph &graph, ShapeView extents) {
  std::vector<PyId> items;
  for (int64_t extent : extents)
    items.push_back(graph.makeInteger(extent));
  return graph.tuple(items);
}

/// A tensor as torch pickles it: a call of a function with storage, offset, shape, strides,
/// requires_grad and hooks. Types without a storage class in torch have an untyped storage, and the
/// type as a last argument.
PyId tensorNode(PyGraph &graph, TensorWords &words, const NamedTensor &tensor, size_t key) {
  bool isTyped = !torchStorageClass(tensor.type).empty();
  int64_t count =
      static_cast<int64_t>(tensor.bytes.size()) / (isTyped ? elementBits(tensor.type) / 8 : 1);
  PyId storageClass = isTyped ? words.classOf(graph, "torch", torchStorageClass(tensor.type))
                              : once(graph, words.untyped, "torch.storage", "UntypedStorage");
  PyId id = graph.tuple({once(graph, words.storage, "", "storage"), storageClass,
                         graph.str(std::to_string(key)), once(graph, words.cpu, "", "cpu"),
                         graph.makeInteger(count)});
  PyId hooks = graph.object(
      PyMake::Call, once(graph, words.orderedDict, "collections", "OrderedDict"), graph.tuple({}));
  std::vector<PyId> args = {graph.object(PyMake::Persistent, kNoPy, id),
                            graph.makeInteger(0),
                            extentsNode(graph, tensor.shape),
                            extentsNode(graph, denseStrides(tensor.shape)),
                            graph.makeBool(false),
                            hooks};
  if (!isTyped)
    args.push_back(words.classOf(graph, "torch", torchName(tensor.type)));
  PyId rebuild = isTyped ? once(graph, words.rebuild, "torch._utils", "_rebuild_tensor_v2")
                         : once(graph, words.rebuildTyped, "torch._utils", "_rebuild_tensor_v3");
  return graph.object(PyMake::Call, rebuild, graph.tuple(args));
}

} // namespace

std::vector<BytesItem> runStateItems(const RunState &state) {
  PlainEntries args = state.args;
  setEntry(args, "iteration", state.iteration);
  setEntry(args, "consumed_train_samples", state.consumedTrainSamples);
  setEntry(args, "skipped_train_samples", state.skippedTrainSamples);
  setEntry(args, "consumed_valid_samples", state.consumedValidSamples);
  std::vector<BytesItem> items;
  items.push_back(objectItem({"args"}, PlainNamespace{std::move(args)}));
  items.push_back(objectItem({"checkpoint_version"}, state.checkpointVersion));
  items.push_back(objectItem({"iteration"}, state.iteration));
  for (const auto &[field, value] : state.scheduler)
    items.push_back(objectItem({kScheduler, field}, value));
  for (const auto &[field, value] : state.gradScaler) {
    ItemPath path = {"optimizer", "grad_scaler", field};
    bool isTensor = field == kScaleField && value.number();
    items.push_back(isTensor ? tensorItem(path, static_cast<float>(*value.number()))
                             : objectItem(path, value));
  }
  items.push_back(objectItem({kFlops}, wholeNumber(state.floatingPointOperations)));
  return items;
}

Status takeCounters(RunState &state, std::string_view folder) {
  for (auto [key, counter] : {std::pair("consumed_train_samples", &state.consumedTrainSamples),
                              std::pair("skipped_train_samples", &state.skippedTrainSamples),
                              std::pair("consumed_valid_samples", &state.consumedValidSamples)}) {
    ASSIGN_OR_RETURN(*counter, counterIn(state.args, key, folder));
  }
  return Status::ok();
}

namespace {

constexpr std::string_view kScaler = "optimizer.grad_scaler.";

/// Reads the loss scaler's state. Megatron stores it in tensors and numbers; torch saves a tensor
/// as a tensor item or inside an object.
Status takeScaler(const CheckpointReader &reader, RunState &state) {
  for (const ObjectMeta &object : reader.metadata().objects)
    if (object.name.starts_with(kScaler)) {
      ASSIGN_OR_RETURN(PlainValue value, readPlainObject(reader, object.name));
      state.gradScaler.emplace_back(object.name.substr(kScaler.size()), std::move(value));
    }
  for (const TensorMeta &tensor : reader.metadata().tensors) {
    if (!tensor.name.starts_with(kScaler))
      continue;
    if (elementCount(tensor.shape) != 1)
      return makeStatus(report::CheckpointDamaged,
                        "'{}' in checkpoint '{}' has the shape {}; one number is needed",
                        tensor.name, reader.folder(), shapeText(tensor.shape));
    double number = 0;
    RETURN_IF_ERROR(reader.read(tensor.name, Box::whole(tensor.shape), Element::F64, &number));
    state.gradScaler.emplace_back(tensor.name.substr(kScaler.size()), number);
  }
  return Status::ok();
}

} // namespace

/// Reads what is there; only `iteration` is required, since older versions and other programs leave
/// out the rest.
Result<RunState> readRunState(const CheckpointReader &reader) {
  RunState state;
  ASSIGN_OR_RETURN(PlainValue iteration, readPlainObject(reader, "iteration"));
  if (iteration.as<int64_t>() == nullptr)
    return makeStatus(report::CheckpointDamaged,
                      "'iteration' in checkpoint '{}' is {}, not a number", reader.folder(),
                      textOf(iteration));
  state.iteration = *iteration.as<int64_t>();
  if (reader.findObject("checkpoint_version") != nullptr) {
    ASSIGN_OR_RETURN(PlainValue version, readPlainObject(reader, "checkpoint_version"));
    state.checkpointVersion = version.number().value_or(0);
  }
  if (reader.findObject("args") != nullptr) {
    ASSIGN_OR_RETURN(ObjectValue object, reader.readObject("args"));
    state.args = plainArguments(object.graph(), object.root());
  }
  RETURN_IF_ERROR(takeCounters(state, reader.folder()));
  std::string prefix = std::string(kScheduler) + ".";
  RETURN_IF_ERROR(takeScaler(reader, state));
  for (const ObjectMeta &object : reader.metadata().objects) {
    if (object.name == kScheduler) { // torch up to 2.3 writes one object
      ASSIGN_OR_RETURN(state.scheduler, readDictionary(reader, object.name));
    }
    if (!object.name.starts_with(prefix))
      continue;
    ASSIGN_OR_RETURN(PlainValue value, readPlainObject(reader, object.name));
    state.scheduler.emplace_back(object.name.substr(prefix.size()), std::move(value));
  }
  if (reader.findObject(kFlops) != nullptr) {
    ASSIGN_OR_RETURN(PlainValue flops, readPlainObject(reader, kFlops));
    const auto *big = flops.as<PlainBigInt>();
    state.floatingPointOperations =
        big != nullptr ? std::strtod(big->decimal.c_str(), nullptr) : flops.number().value_or(0);
  }
  return state;
}

/// Writes the tensors as a `.pt` file: a zip archive with the pickle of a dictionary and one entry
/// of data per tensor.
Result<std::string> tensorDictFile(std::string_view stem, std::span<const NamedTensor> tensors) {
  PyGraph graph;
  TensorWords words;
  std::vector<PyId> entries;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensorBytes(tensors[i].type, tensors[i].shape) !=
        static_cast<int64_t>(tensors[i].bytes.size()))
      return makeStatus(report::CheckpointDamaged, "tensor '{}' of shape {} has {} bytes",
                        tensors[i].name, shapeText(tensors[i].shape), tensors[i].bytes.size());
    entries.push_back(graph.str(tensors[i].name));
    entries.push_back(tensorNode(graph, words, tensors[i], i));
  }
  ASSIGN_OR_RETURN(std::string pickle, writePickle(graph, graph.dict(entries)));
  StringSink sink;
  ArchiveWriter archive(sink, stem);
  RETURN_IF_ERROR(archive.add("data.pkl", pickle));
  RETURN_IF_ERROR(archive.add(".format_version", "1"));
  RETURN_IF_ERROR(archive.add(".storage_alignment", "64"));
  RETURN_IF_ERROR(archive.add("byteorder", "little"));
  for (size_t i = 0; i < tensors.size(); ++i)
    RETURN_IF_ERROR(archive.add(fmt::format("data/{}", i), tensors[i].bytes));
  RETURN_IF_ERROR(archive.add("version", "3\n"));
  RETURN_IF_ERROR(archive.finish());
  return std::move(sink.bytes);
}

Result<std::string> trainStateFile(const RunState &state) {
  const NamedTensor tensors[] = {
      {"step", Element::I64, {}, rawBytes(state.iteration)},
      {"consumed_train_samples", Element::I64, {}, rawBytes(state.consumedTrainSamples)},
      {"skipped_train_samples", Element::I64, {}, rawBytes(state.skippedTrainSamples)},
      {"consumed_valid_samples", Element::I64, {}, rawBytes(state.consumedValidSamples)},
      {"floating_point_operations_so_far",
       Element::F32,
       {},
       rawBytes(static_cast<float>(state.floatingPointOperations))},
      {"do_train", Element::Bool, {}, rawBytes(state.doTrain)},
      {"do_valid", Element::Bool, {}, rawBytes(state.doValid)},
      {"do_test", Element::Bool, {}, rawBytes(state.doTest)},
  };
  return tensorDictFile("train_state", tensors);
}

} // namespace shardc::checkpoint
