#include "runtime/checkpoint/TorchDist.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kState = "optimizer.state.";
constexpr std::string_view kCommonKey = "common_state/shard_0_1";
constexpr size_t kLeavesMax = 1'000'000;
constexpr int kStateDepthMax = 100;
constexpr int64_t kStackMax = 1'000'000; ///< layers or experts in one tensor

/// Removes the prefix with the number of a chained optimizer, which older checkpoints have.
std::string_view withoutChain(std::string_view key) {
  constexpr std::string_view kChain = "chained_";
  size_t dot = key.find('.');
  bool isChained = key.starts_with(kChain) && dot != std::string_view::npos &&
                   isNumber(key.substr(kChain.size(), dot - kChain.size()));
  return isChained ? key.substr(dot + 1) : key;
}

std::optional<StoredPart> partOfState(std::string_view name) {
  if (name == "param" || name == "fp32_param")
    return StoredPart::Master;
  if (name == "exp_avg")
    return StoredPart::ExpAvg;
  if (name == "momentum_buffer")
    return StoredPart::Momentum;
  return name == "exp_avg_sq" ? std::optional(StoredPart::ExpAvgSq) : std::nullopt;
}

/// The text before and after a part of a name; nothing if the name lacks the part.
struct Cut {
  std::string_view before, after;
};
std::optional<Cut> cutAt(std::string_view name, std::string_view part) {
  size_t at = name.find(part);
  if (at == std::string_view::npos)
    return std::nullopt;
  return Cut{name.substr(0, at), name.substr(at + part.size())};
}

std::string_view firstSegment(std::string_view name) { return name.substr(0, name.find('.')); }

/// Adds the number of an expert to a name: `...linear_fc1.weight` and 7 give
/// `...linear_fc1.weight7`. The ending of gated halves stays last.
std::string withExpert(std::string_view name, std::string_view expert) {
  std::string_view ending;
  if (name.ends_with("_w") || name.ends_with("_v")) {
    ending = name.substr(name.size() - 2);
    name.remove_suffix(2);
  }
  return fmt::format("{}{}{}", name, expert, ending);
}

Status refuseOptimizer(std::string_view key) {
  if (key.find(".param_state") != std::string_view::npos)
    return notSupported(
        "'{}': optimizer state is dp_zero_gather_scatter, one object without names; resave with "
        "--dist-ckpt-optim-fully-reshardable or convert weights only",
        key);
  return notSupported("'{}': optimizer state is dp_reshardable; resave with "
                      "--dist-ckpt-optim-fully-reshardable or convert weights only",
                      key);
}

bool isSkipped(std::string_view key) {
  return key.find("._extra_state") != std::string_view::npos || key.starts_with("rng_state") ||
         key.starts_with("rerun_state_machine_state");
}

} // namespace

StoredPart storedPartOf(ParamPart part) {
  switch (part) {
  case ParamPart::Weight:
    return StoredPart::Weight;
  case ParamPart::ExpAvg:
    return StoredPart::ExpAvg;
  case ParamPart::ExpAvgSq:
    return StoredPart::ExpAvgSq;
  case ParamPart::Momentum:
    return StoredPart::Momentum;
  }
  return StoredPart::Weight;
}

struct TorchDistCheckpoint::State {
  explicit State(CheckpointReader opened) : reader(std::move(opened)) {}

  CheckpointReader reader;
  bool weightsOnly = false;
  std::map<std::pair<std::string, StoredPart>, StoredParam, std::less<>> params;
  std::vector<const ObjectMeta *> otherObjects;
  std::unique_ptr<CheckedFile> commonFile; ///< file of the common archive, if it is a separate file
  std::optional<ObjectValue> common;
  PyId commonRoot = kNoPy;
  std::vector<CommonLeaf> leaves;

  Status indexTensors();
  Status indexTensor(const TensorMeta &tensor);
  Status originalShape(const TensorMeta &tensor, std::string_view name, StoredParam &box) const;
  Status split(std::string name, StoredPart part, StoredParam box);
  Status splitLayers(std::string_view name, StoredPart part, const StoredParam &box);
  Status splitExperts(std::string_view name, StoredPart part, const StoredParam &box);
  Status indexObjects();
  Status loadCommon();
  std::string commonPlace() const;
  Status flatten(PyId value, ItemPath &path);
  void collectGroups(PyId optimizer, std::vector<std::map<std::string, PyId>> &groups) const;
};

/// Determines whether the tensor is stored flattened, and its original shape.
Status TorchDistCheckpoint::State::originalShape(const TensorMeta &tensor, std::string_view name,
                                                 StoredParam &box) const {
  auto listed = reader.metadata().originalShapes.find(tensor.name);
  const TensorMeta *weight = reader.findTensor(name);
  if (listed != reader.metadata().originalShapes.end())
    box.original = listed->second;
  else if (weight != nullptr && tensor.shape.size() == weight->shape.size() + 1)
    box.original = weight->shape; // the optimizer's tensor has fragments of its model tensor
  if (box.original.empty() || box.original == tensor.shape) {
    box.original.clear();
    return Status::ok();
  }
  return checkFragments(tensor, box.original);
}

Status TorchDistCheckpoint::State::split(std::string name, StoredPart part, StoredParam box) {
  std::optional<Cut> layers = cutAt(name, ".layers.");
  if (layers && !isNumber(firstSegment(layers->after)))
    return splitLayers(name, part, box);
  if (name.find(".experts.experts.") != std::string::npos)
    return splitExperts(name, part, box);
  auto [found, isNew] = params.emplace(std::pair(plainName(name), part), std::move(box));
  if (!isNew)
    return notSupported("'{}' and '{}' are the same parameter", found->second.tensor->name, name);
  return Status::ok();
}

Status TorchDistCheckpoint::State::splitLayers(std::string_view name, StoredPart part,
                                               const StoredParam &box) {
  Cut cut = *cutAt(name, ".layers.");
  Shape shape = box.shape();
  if (shape.empty() || shape[0] > kStackMax)
    return notSupported("'{}' has no dimension of layers to split: its shape is {}",
                        box.tensor->name, shapeText(shape));
  for (int64_t layer = 0; layer < shape[0]; ++layer) {
    StoredParam one = box;
    one.fixed.push_back(layer);
    RETURN_IF_ERROR(
        split(fmt::format("{}.layers.{}.{}", cut.before, layer, cut.after), part, std::move(one)));
  }
  return Status::ok();
}

Status TorchDistCheckpoint::State::splitExperts(std::string_view name, StoredPart part,
                                                const StoredParam &box) {
  Cut cut = *cutAt(name, ".experts.experts.");
  std::string_view first = firstSegment(cut.after);
  if (isNumber(first)) { // one tensor per expert, with its number in the name
    std::string plain = fmt::format(
        "{}.experts.{}", cut.before,
        withExpert(cut.after.substr(std::min(first.size() + 1, cut.after.size())), first));
    return split(std::move(plain), part, box);
  }
  Shape shape = box.shape();
  if (shape.empty() || shape[0] > kStackMax)
    return notSupported("'{}' has no dimension of experts to split: its shape is {}",
                        box.tensor->name, shapeText(shape));
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    StoredParam one = box;
    one.fixed.push_back(expert);
    RETURN_IF_ERROR(split(
        fmt::format("{}.experts.{}", cut.before, withExpert(cut.after, std::to_string(expert))),
        part, std::move(one)));
  }
  return Status::ok();
}

/// Weights have the name of their parameter, and optimizer state has `optimizer.state.STATE.NAME`.
Status TorchDistCheckpoint::State::indexTensor(const TensorMeta &tensor) {
  std::string_view key = withoutChain(tensor.name);
  if (isSkipped(key))
    return Status::ok();
  if (!key.starts_with("optimizer."))
    return split(std::string(key), StoredPart::Weight, {&tensor});
  if (weightsOnly)
    return Status::ok();
  if (!key.starts_with(kState))
    return refuseOptimizer(tensor.name);
  std::string_view rest = key.substr(kState.size()), state = firstSegment(rest);
  std::optional<StoredPart> part = partOfState(state);
  if (!part || rest.size() <= state.size() + 1)
    return notSupported("'{}' is optimizer state '{}', which is unknown", tensor.name, state);
  rest.remove_prefix(state.size() + 1);
  StoredParam box{&tensor};
  RETURN_IF_ERROR(originalShape(tensor, rest, box));
  return split(std::string(rest), *part, std::move(box));
}

Status TorchDistCheckpoint::State::indexTensors() {
  for (const TensorMeta &tensor : reader.metadata().tensors)
    RETURN_IF_ERROR(indexTensor(tensor));
  return Status::ok();
}

/// Lists the objects other than the common state and those that are skipped. An object
/// `optimizer.distributed.*` is optimizer state in a form that cannot be read.
Status TorchDistCheckpoint::State::indexObjects() {
  for (const ObjectMeta &object : reader.metadata().objects) {
    std::string_view key = withoutChain(object.name);
    bool isOptimizer = key.starts_with("optimizer.");
    if (isOptimizer && !weightsOnly && key.starts_with("optimizer.distributed."))
      return refuseOptimizer(object.name);
    if (!isSkipped(key) && key != kCommonKey && !(isOptimizer && weightsOnly))
      otherObjects.push_back(&object);
  }
  return Status::ok();
}

std::string TorchDistCheckpoint::State::commonPlace() const {
  return commonFile ? fmt::format("'{}'", commonFile->path())
                    : fmt::format("'{}' in '{}'", kCommonKey, reader.folder());
}

/// Collects the leaves of the common state. The path of a leaf has dictionary keys and list
/// indices.
Status TorchDistCheckpoint::State::flatten(PyId value, ItemPath &path) {
  const PyGraph &graph = common->graph();
  bool isDict = graph.is(value, PyKind::Dict), isList = graph.is(value, PyKind::List);
  bool isParams = !path.empty() && path.back() == PathSegment("params"); // parameters' numbers
  bool isLeaf = (!isDict && !isList) || isParams || graph.items(value).empty();
  if (isLeaf && path.empty()) // the common state is empty: values must be inside a container
    return Status::ok();
  if (isLeaf) {
    leaves.push_back({path, value});
    return leaves.size() <= kLeavesMax
               ? Status::ok()
               : notSupported("{} has more than {} values", commonPlace(), kLeavesMax);
  }
  if (path.size() > kStateDepthMax)
    return notSupported("{} is nested more than {} deep", commonPlace(), kStateDepthMax);
  std::span<const PyId> items = graph.items(value);
  for (size_t i = 0; i < items.size(); i += isDict ? 2 : 1) {
    if (isList) {
      path.emplace_back(static_cast<int64_t>(i));
    } else {
      std::optional<std::string_view> text = graph.asText(items[i]);
      Result<PlainValue> key = plainValueOf(graph, items[i]);
      if (!text && !key.isOk())
        return Status(key.status()).withContext(fmt::format("a key in {}", commonPlace()));
      path.emplace_back(text ? std::string(*text) : textOf(*key));
    }
    RETURN_IF_ERROR(flatten(items[isDict ? i + 1 : i], path));
    path.pop_back();
  }
  return Status::ok();
}

/// The common state is a pickled dictionary in a file of its own, or an object of the checkpoint,
/// which is a list with this dictionary. A checkpoint may have neither.
Status TorchDistCheckpoint::State::loadCommon() {
  bool isFile = reader.files().has(kCommonFile);
  if (isFile) {
    ASSIGN_OR_RETURN(commonFile, reader.openFile(kCommonFile));
    Result<ArchiveReader> archive = ArchiveReader::open(commonFile->bytes());
    if (!archive.isOk())
      return Status(archive.status()).withContext(fmt::format("'{}'", commonFile->path()));
    Result<Pickle> pickle = readPickle(archive->find("data.pkl")->data, PickleContext::BytesItem);
    if (!pickle.isOk())
      return Status(pickle.status()).withContext(fmt::format("'{}'", commonFile->path()));
    common.emplace(ObjectValue{std::move(*archive), std::move(*pickle)});
  } else if (reader.findObject(kCommonKey) != nullptr) {
    ASSIGN_OR_RETURN(ObjectValue object, reader.readObject(kCommonKey));
    common.emplace(std::move(object));
  } else {
    common.emplace();
    return Status::ok();
  }
  commonRoot = common->root();
  const PyGraph &graph = common->graph();
  if (!isFile && graph.is(commonRoot, PyKind::List) && graph.items(commonRoot).size() == 1)
    commonRoot = graph.items(commonRoot)[0];
  if (!graph.is(commonRoot, PyKind::Dict))
    return notSupported("{} is not a dictionary", commonPlace());
  ItemPath at;
  return flatten(commonRoot, at);
}

void TorchDistCheckpoint::State::collectGroups(
    PyId optimizer, std::vector<std::map<std::string, PyId>> &groups) const {
  const PyGraph &graph = common->graph();
  PyId inner = graph.lookup(optimizer, "optimizer");
  PyId list = graph.lookup(inner != kNoPy ? inner : optimizer, "param_groups");
  if (!graph.is(list, PyKind::List))
    return;
  for (PyId group : graph.items(list)) {
    std::map<std::string, PyId> &fields = groups.emplace_back();
    if (!graph.is(group, PyKind::Dict))
      continue;
    std::span<const PyId> pairs = graph.items(group);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2)
      if (std::optional<std::string_view> name = graph.asText(pairs[i]); name && *name != "params")
        fields[std::string(*name)] = pairs[i + 1];
  }
}

TorchDistCheckpoint::TorchDistCheckpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
TorchDistCheckpoint::TorchDistCheckpoint(TorchDistCheckpoint &&) noexcept = default;
TorchDistCheckpoint::~TorchDistCheckpoint() = default;

Result<TorchDistCheckpoint> TorchDistCheckpoint::open(const std::string &folder, bool weightsOnly,
                                                      Verify verify, ReportSink emit) {
  RETURN_IF_ERROR(checkFormat(folder, CheckpointFormat::TorchDist));
  ASSIGN_OR_RETURN(CheckpointReader reader,
                   CheckpointReader::open(folder, verify, std::move(emit)));
  auto state = std::make_unique<State>(std::move(reader));
  state->weightsOnly = weightsOnly;
  RETURN_IF_ERROR(state->indexTensors());
  RETURN_IF_ERROR(state->indexObjects());
  RETURN_IF_ERROR(state->loadCommon());
  return TorchDistCheckpoint(std::move(state));
}

const CheckpointReader &TorchDistCheckpoint::reader() const { return state_->reader; }

const std::map<std::pair<std::string, StoredPart>, StoredParam, std::less<>> &
TorchDistCheckpoint::params() const {
  return state_->params;
}

const StoredParam *TorchDistCheckpoint::find(std::string_view name, StoredPart part) const {
  std::string plain = plainName(name);
  auto found = state_->params.find(std::pair(plain, part));
  if (found == state_->params.end())
    found = state_->params.find(std::pair(localName(plain), part));
  return found != state_->params.end() ? &found->second : nullptr;
}

Status TorchDistCheckpoint::read(std::string_view name, StoredPart part, const Box &box,
                                 Element type, void *dst) const {
  const StoredParam *param = find(name, part);
  if (param == nullptr)
    return makeStatus(report::TensorsMissing, "Missing key in checkpoint state_dict: {}.", name);
  return readStoredParam(state_->reader, *param, box, type, dst);
}

const std::vector<const ObjectMeta *> &TorchDistCheckpoint::otherObjects() const {
  return state_->otherObjects;
}
const std::vector<CommonLeaf> &TorchDistCheckpoint::common() const { return state_->leaves; }
const ObjectValue &TorchDistCheckpoint::commonObject() const { return *state_->common; }
std::string TorchDistCheckpoint::commonPlace() const { return state_->commonPlace(); }

std::vector<std::map<std::string, PyId>> TorchDistCheckpoint::paramGroups() const {
  std::vector<std::map<std::string, PyId>> groups;
  const PyGraph &graph = commonGraph();
  PyId optimizer =
      state_->commonRoot != kNoPy ? graph.lookup(state_->commonRoot, "optimizer") : kNoPy;
  if (optimizer == kNoPy)
    return groups;
  state_->collectGroups(optimizer, groups);
  for (int64_t i = 0; groups.empty() || i > 0; ++i) { // chained optimizers are numbered
    PyId one = graph.lookup(optimizer, std::to_string(i));
    if (one == kNoPy && graph.is(optimizer, PyKind::Dict)) {
      std::span<const PyId> pairs = graph.items(optimizer);
      for (size_t at = 0; at + 1 < pairs.size(); at += 2)
        if (graph.asInteger(pairs[at]) == i)
          one = pairs[at + 1];
    } else if (graph.is(optimizer, PyKind::List) &&
               static_cast<size_t>(i) < graph.items(optimizer).size()) {
      one = graph.items(optimizer)[static_cast<size_t>(i)];
    }
    if (one == kNoPy)
      break;
    state_->collectGroups(one, groups);
  }
  return groups;
}

} // namespace shardc::checkpoint
