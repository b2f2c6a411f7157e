#include "compiler/tools/StoredArgs.h"

#include <algorithm>
#include <filesystem>

#include "compiler/basic/Format.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::tools {
namespace {

using checkpoint::kNoPy;
using checkpoint::PlainValue;
using checkpoint::PyGraph;
using checkpoint::PyId;
using checkpoint::PyKind;
using upstream::Tree;
using upstream::TreePtr;

constexpr size_t kPairsMax = 20'000;
/// Maximum size of a file with common state, or with the weights of a small model.
constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

/// The tree of an argument. An object, such as a member of an enumeration, is a call of its class.
TreePtr argumentOf(const PyGraph &graph, PyId id) {
  Result<PlainValue> plain = checkpoint::plainValueOf(graph, id);
  if (plain.isOk() || !graph.is(id, PyKind::Object))
    return plain.isOk() ? treeOf(*plain)
                        : upstream::makeText(plain.status().message(), {}, Tree::Kind::Name);
  const checkpoint::PyObject &object = graph.object(id);
  const PyId members = graph.memberClass(id); // by name instead of by value
  auto tree = std::make_shared<Tree>();
  tree->kind = Tree::Kind::Map;
  if (PyId type = members == kNoPy ? object.callable : members; graph.is(type, PyKind::Global))
    tree->call = fmt::format("{}.{}", graph.global(type).module, graph.global(type).name);
  if (graph.is(object.args, PyKind::Tuple))
    for (PyId item : graph.items(object.args).subspan(members == kNoPy ? 0 : 1))
      if (plain = checkpoint::plainValueOf(graph, item); plain.isOk())
        tree->items.push_back(treeOf(*plain));
  return tree;
}

Result<TreePtr> argumentsOf(const PyGraph &graph, PyId args, const std::string &path) {
  auto tree = std::make_shared<Tree>();
  tree->kind = Tree::Kind::Map;
  PyId state = graph.is(args, PyKind::Object) ? graph.object(args).state : args;
  std::span<const PyId> pairs;
  if (graph.is(state, PyKind::Dict))
    pairs = graph.items(state);
  for (size_t i = 0; i + 1 < std::min(pairs.size(), kPairsMax); i += 2)
    if (std::optional<std::string_view> name = graph.asText(pairs[i]))
      tree->entries.emplace_back(*name, argumentOf(graph, pairs[i + 1]));
  if (tree->entries.empty())
    return makeStatus(StatusCode::NotFound, "'{}' contains no arguments of Megatron-LM", path);
  return TreePtr(tree);
}

/// The `args` in the text of a file that torch.save wrote.
Result<TreePtr> argsInFile(const std::string &text, const std::string &path) {
  std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t *>(text.data()), text.size());
  auto read = [&]() -> Result<checkpoint::Pickle> {
    ASSIGN_OR_RETURN(checkpoint::ArchiveReader archive, checkpoint::ArchiveReader::open(bytes));
    RETURN_IF_ERROR(archive.verifyAll());
    return checkpoint::readPickle(archive.find("data.pkl")->data,
                                  checkpoint::PickleContext::BytesItem);
  };
  Result<checkpoint::Pickle> pickle = read();
  if (!pickle.isOk())
    return Status(pickle.status()).withContext(fmt::format("'{}'", path));
  return argumentsOf(pickle->graph, pickle->graph.lookup(pickle->root, "args"), path);
}

/// The arguments are an object of their own, or an entry of the common state, which may be wrapped
/// in a list.
Result<TreePtr> readFolderArgs(const std::string &folder) {
  Result<checkpoint::CheckpointReader> reader = checkpoint::CheckpointReader::open(folder);
  if (!reader.isOk())
    return reader.status();
  if (reader->findObject("args") != nullptr) {
    ASSIGN_OR_RETURN(checkpoint::ObjectValue object, reader->readObject("args"));
    return argumentsOf(object.graph(), object.root(), folder);
  }
  constexpr std::string_view kCommon = "common_state/shard_0_1";
  if (reader->findObject(kCommon) == nullptr)
    return makeStatus(StatusCode::NotFound, "checkpoint '{}' stores no arguments", folder);
  ASSIGN_OR_RETURN(checkpoint::ObjectValue object, reader->readObject(kCommon));
  PyId root = object.root();
  bool isWrapped = object.graph().is(root, PyKind::List) && object.graph().items(root).size() == 1;
  if (isWrapped)
    root = object.graph().items(root)[0];
  return argumentsOf(object.graph(), object.graph().lookup(root, "args"), folder);
}

} // namespace

TreePtr treeOf(const PlainValue &value) {
  using Kind = Tree::Kind;
  auto tree = std::make_shared<Tree>();
  auto hold = [&](Kind kind, auto &field, const auto &held) {
    tree->kind = kind;
    field = held;
  };
  if (const bool *flag = value.as<bool>())
    hold(Kind::Bool, tree->boolean, *flag);
  if (const auto *whole = value.as<int64_t>())
    hold(Kind::Int, tree->integer, *whole);
  if (const auto *number = value.as<double>())
    hold(Kind::Float, tree->number, *number);
  if (const auto *text = value.as<std::string>())
    hold(Kind::Text, tree->text, *text);
  if (const auto *big = value.as<checkpoint::PlainBigInt>())
    hold(Kind::Text, tree->text, big->decimal);
  if (const auto *type = value.as<checkpoint::Element>())
    hold(Kind::Name, tree->text, fmt::format("torch.{}", torchName(*type)));
  const auto *space = value.as<checkpoint::PlainNamespace>();
  const auto *tuple = value.as<checkpoint::PlainTuple>();
  if (const auto *entries = space ? &space->entries : value.as<checkpoint::PlainEntries>()) {
    tree->kind = Kind::Map;
    for (const auto &[name, item] : *entries)
      tree->entries.emplace_back(name, treeOf(item));
  }
  if (const auto *items = tuple ? &tuple->items : value.as<checkpoint::PlainItems>()) {
    tree->kind = Kind::List;
    for (const PlainValue &item : *items)
      tree->items.push_back(treeOf(item));
  }
  return tree;
}

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
