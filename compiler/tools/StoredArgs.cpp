#include "compiler/tools/StoredArgs.h"

#include <filesystem>
#include <map>

#include "compiler/basic/Format.h"

#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::tools {
namespace {

using checkpoint::kNoPy;
using checkpoint::PyGraph;
using checkpoint::PyId;
using checkpoint::PyKind;
using upstream::Tree;
using upstream::TreePtr;

constexpr unsigned kDepthMax = 40;
constexpr size_t kNodesMax = 200'000;
/// Maximum size of a file with common state, or with the weights of a small model.
constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

/// Converts the nodes of a pickle to trees. Objects of unknown classes keep their class name and
/// arguments.
class Converter {
public:
  explicit Converter(const PyGraph &graph) : graph_(graph) {}

  TreePtr convert(PyId id) {
    if (auto found = done_.find(id); found != done_.end())
      return found->second;
    auto tree = std::make_shared<Tree>();
    if (id == kNoPy || depth_ > kDepthMax || ++numNodes_ > kNodesMax)
      return tree;
    ++depth_;
    fill(id, *tree);
    --depth_;
    return done_[id] = tree;
  }

private:
  void fill(PyId id, Tree &tree) {
    switch (graph_.kind(id)) {
    case PyKind::Bool:
      tree.kind = Tree::Kind::Bool;
      tree.boolean = graph_.boolean(id);
      return;
    case PyKind::Int:
      tree.kind = Tree::Kind::Int;
      tree.integer = graph_.integer(id);
      return;
    case PyKind::Float:
      tree.kind = Tree::Kind::Float;
      tree.number = graph_.number(id);
      return;
    case PyKind::Str:
      tree.kind = Tree::Kind::Text;
      tree.text = graph_.text(id);
      return;
    case PyKind::Global:
      tree.kind = Tree::Kind::Name;
      tree.text = nameOf(id);
      return;
    case PyKind::Tuple:
    case PyKind::List:
    case PyKind::Set:
    case PyKind::FrozenSet:
      tree.kind = Tree::Kind::List;
      for (PyId item : graph_.items(id))
        tree.items.push_back(convert(item));
      return;
    case PyKind::Dict:
      tree.kind = Tree::Kind::Map;
      addEntries(graph_.items(id), tree);
      return;
    case PyKind::Object:
      fillObject(id, tree);
      return;
    default:
      return;
    }
  }

  std::string nameOf(PyId id) const {
    const checkpoint::PyGlobal &global = graph_.global(id);
    return std::string(global.module) + "." + std::string(global.name);
  }

  void addEntries(std::span<const PyId> items, Tree &tree) {
    for (size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph_.is(items[i], PyKind::Str))
        tree.entries.emplace_back(std::string(graph_.text(items[i])), convert(items[i + 1]));
  }

  void fillObject(PyId id, Tree &tree) {
    const checkpoint::PyObject &object = graph_.object(id);
    tree.kind = Tree::Kind::Map;
    if (PyId members = graph_.memberClass(id); members != kNoPy) { // by name instead of by value
      tree.call = nameOf(members);
      tree.items.push_back(convert(graph_.items(object.args)[1]));
      return;
    }
    if (graph_.is(object.callable, PyKind::Global))
      tree.call = nameOf(object.callable);
    if (graph_.is(object.args, PyKind::Tuple))
      for (PyId item : graph_.items(object.args))
        tree.items.push_back(convert(item));
    if (graph_.is(object.state, PyKind::Dict))
      addEntries(graph_.items(object.state), tree);
    addEntries(object.itemsSet, tree);
  }

  const PyGraph &graph_;
  std::map<PyId, TreePtr> done_;
  unsigned depth_ = 0;
  size_t numNodes_ = 0;
};

Result<TreePtr> treeOf(const PyGraph &graph, PyId args, const std::string &path) {
  TreePtr tree = args == kNoPy ? nullptr : Converter(graph).convert(args);
  if (tree == nullptr || tree->kind != Tree::Kind::Map || tree->entries.empty())
    return makeStatus(StatusCode::NotFound, "'{}' contains no arguments of Megatron-LM", path);
  return tree;
}

/// The `args` in the text of a file that torch.save wrote.
Result<TreePtr> argsInFile(const std::string &text, const std::string &path) {
  std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t *>(text.data()), text.size());
  auto placed = [&](const Status &status) {
    return Status(status).withContext(fmt::format("'{}'", path));
  };
  Result<checkpoint::ArchiveReader> archive = checkpoint::ArchiveReader::open(bytes);
  if (!archive.isOk())
    return placed(archive.status());
  if (Status status = archive->verifyAll(); !status.isOk())
    return placed(status);
  Result<checkpoint::Pickle> pickle =
      checkpoint::readPickle(archive->find("data.pkl")->data, checkpoint::PickleContext::BytesItem);
  if (!pickle.isOk())
    return placed(pickle.status());
  return treeOf(pickle->graph, pickle->graph.lookup(pickle->root, "args"), path);
}

/// The arguments are an object of their own, or an entry of the common state, which may be wrapped
/// in a list.
Result<TreePtr> readFolderArgs(const std::string &folder) {
  Result<checkpoint::CheckpointReader> reader = checkpoint::CheckpointReader::open(folder);
  if (!reader.isOk())
    return reader.status();
  if (reader->findObject("args") != nullptr) {
    ASSIGN_OR_RETURN(checkpoint::ObjectValue object, reader->readObject("args"));
    return treeOf(object.graph(), object.root(), folder);
  }
  constexpr std::string_view kCommon = "common_state/shard_0_1";
  if (reader->findObject(kCommon) == nullptr)
    return makeStatus(StatusCode::NotFound, "checkpoint '{}' stores no arguments", folder);
  ASSIGN_OR_RETURN(checkpoint::ObjectValue object, reader->readObject(kCommon));
  PyId root = object.root();
  bool isWrapped = object.graph().is(root, PyKind::List) && object.graph().items(root).size() == 1;
  if (isWrapped)
    root = object.graph().items(root)[0];
  return treeOf(object.graph(), object.graph().lookup(root, "args"), folder);
}

} // namespace

bool isCheckpoint(const std::string &path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) || path.ends_with(".pt");
}

Result<TreePtr> readStoredArgs(const std::string &path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(std::string text, readFile(path, kFileBytesMax));
    return argsInFile(text, path);
  }
  std::filesystem::path folder(path);
  ASSIGN_OR_RETURN(UntrustedFolder root, UntrustedFolder::open(path));
  if (root.has(checkpoint::kTrackerFile)) {
    ASSIGN_OR_RETURN(std::string latest, root.read(checkpoint::kTrackerFile, 64));
    int64_t iteration = 0;
    if (!llvm::StringRef(latest).trim().getAsInteger(10, iteration) && iteration >= 0) {
      folder /= fmt::format("iter_{:07}", iteration);
      ASSIGN_OR_RETURN(root, root.folder(folder.filename()));
    }
  }
  constexpr const char *kCommonFile = "common.pt";
  if (!root.has(kCommonFile))
    return readFolderArgs(folder.string());
  ASSIGN_OR_RETURN(std::string text, root.read(kCommonFile, kFileBytesMax));
  return argsInFile(text, (folder / kCommonFile).string());
}

} // namespace shardc::tools
