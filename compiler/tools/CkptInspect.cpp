// shardc ckpt inspect: the contents of a checkpoint, as a tree for people or as JSON.
// shardc ckpt list: the checkpoints of a folder.
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <sys/stat.h>

#include "compiler/tools/CkptJson.h"
#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

using checkpoint::CheckpointView;
using checkpoint::TensorMeta;

struct InspectOptions {
  std::string path;
  bool isJson = false;
  int depth = 0; ///< levels of the tree; 0: all
};

/// A part of a dotted name, with the names below it.
struct NameNode {
  std::map<std::string, NameNode> children;
  const TensorMeta *tensor = nullptr;
  std::string value; ///< if it is an object
  bool isObject = false;
  int64_t tensors = 0, objects = 0, bytes = 0;
};

/// Sorts numbers by value, since layers are numbered, and before all other names.
bool isBefore(const std::string &a, const std::string &b) {
  auto isNumber = [](const std::string &text) {
    return text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (isNumber(a) != isNumber(b))
    return isNumber(a);
  if (isNumber(a) && a.size() != b.size())
    return a.size() < b.size();
  return a < b;
}

/// Tensors and objects as a tree of the segments of their names, printed to a depth.
class NameTree {
public:
  explicit NameTree(int depth) : depth_(depth) {}

  void add(const TensorMeta &tensor) {
    NameNode &leaf = place(tensor.name, tensorBytes(tensor.type, tensor.shape).value_or(0), true);
    leaf.tensor = &tensor;
  }
  void add(const std::string &name, std::string value) {
    NameNode &leaf = place(name, 0, false);
    leaf.isObject = true;
    leaf.value = std::move(value);
  }
  void print() const { printChildren(root_, 0); }

private:
  NameNode &place(const std::string &name, int64_t bytes, bool isTensor) {
    NameNode *node = &root_;
    for (size_t begin = 0; begin <= name.size();) {
      size_t end = std::min(name.find('.', begin), name.size());
      node = &node->children[name.substr(begin, end - begin)];
      node->bytes += bytes;
      node->tensors += isTensor ? 1 : 0;
      node->objects += isTensor ? 0 : 1;
      begin = end + 1;
    }
    return *node;
  }

  void printChildren(const NameNode &node, int level) const {
    std::vector<std::string> names;
    for (const auto &[name, child] : node.children)
      names.push_back(name);
    std::ranges::sort(names, isBefore);
    for (const std::string &name : names)
      printNode(name, &node.children.at(name), level);
  }

  /// Prints chains of nodes with a single child as one line: `self_attention.linear_qkv.weight`.
  void printNode(std::string name, const NameNode *node, int level) const {
    while (node->children.size() == 1 && node->tensor == nullptr && !node->isObject) {
      const auto &[next, child] = *node->children.begin();
      name += "." + next;
      node = &child;
    }
    std::string margin(static_cast<size_t>(level) * 2, ' ');
    std::string shown = plan::printable(name);
    if (node->tensor != nullptr)
      printOut("{}{}  {} {}, {} {}, {}\n", margin, shown, torchName(node->tensor->type),
               checkpoint::shapeText(node->tensor->shape), node->tensor->chunks.size(),
               node->tensor->chunks.size() == 1 ? "chunk" : "chunks",
               plan::formatBytes(tensorBytes(node->tensor->type, node->tensor->shape).value_or(0)));
    else if (node->isObject)
      printOut("{}{} = {}\n", margin, shown, plan::printable(node->value));
    else if (depth_ > 0 && level + 1 >= depth_)
      printOut("{}{}  {} tensors, {} objects, {}\n", margin, shown, node->tensors, node->objects,
               plan::formatBytes(node->bytes));
    else
      printOut("{}{}\n", margin, shown);
    if (depth_ == 0 || level + 1 < depth_)
      printChildren(*node, level + 1);
  }

  NameNode root_;
  int depth_;
};

void printGroups(const std::vector<InspectedGroup> &groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    std::string settings;
    for (const auto &[field, value] : groups[i].settings)
      settings += fmt::format("{}{}={}", settings.empty() ? "" : " ", plan::printable(field),
                              plan::printable(value));
    printOut("optimizer group {}: {}{}\n", i,
             groups[i].params.empty() ? ""
                                      : fmt::format("{} parameters, ", groups[i].params.size()),
             settings);
  }
}

void printText(const CheckpointView &view, const InspectOptions &options, int64_t iteration) {
  const checkpoint::CheckpointReader &reader = view.reader();
  const checkpoint::Metadata &metadata = reader.metadata();
  printOut("'{}': {}, iteration {}, {}{}\n", plan::printable(reader.folder()),
           formatName(view.format()), iteration, contentsText(reader.folder()),
           reader.hasIntegrity() ? ", with checksums of every file" : "");
  NameTree tree(options.depth);
  for (const TensorMeta &tensor : metadata.tensors)
    tree.add(tensor);
  for (const checkpoint::ObjectMeta &object : metadata.objects)
    if (!checkpoint::holdsGroupSettings(object.name) && object.name != kCommonStateKey)
      tree.add(object.name, shortened(objectText(reader, object.name)));
  tree.print();
  if (const checkpoint::TorchDistCheckpoint *dist = view.torchDist()) {
    NameTree common(options.depth);
    for (const checkpoint::CommonLeaf &leaf : dist->common())
      common.add("common." + checkpoint::nameOfPath(leaf.path),
                 shortened(leafText(dist->commonGraph(), leaf.value)));
    common.print();
  }
  printGroups(groupsOf(view));
}

Status inspect(const InspectOptions &options) {
  ASSIGN_OR_RETURN(std::string folder, checkpoint::findCheckpoint(options.path));
  ASSIGN_OR_RETURN(CheckpointView view,
                   CheckpointView::open(folder, checkpoint::Verify::Touched, reportCkpt));
  ASSIGN_OR_RETURN(int64_t iteration, iterationOf(folder));
  for (const Report &warning : view.reader().metadata().warnings)
    reportCkpt(warning);
  if (options.isJson)
    printOut("{}\n", inspectionJson(view, iteration));
  else
    printText(view, options, iteration);
  return Status::ok();
}

struct ListOptions {
  std::string folder;
  bool isJson = false;
};

/// The time at which a save was completed: that of its metadata, which is written last.
std::string savedAt(const std::string &folder) {
  struct stat info {};
  std::tm local{};
  if (::stat((folder + "/.metadata").c_str(), &info) != 0 ||
      ::localtime_r(&info.st_mtime, &local) == nullptr)
    return "";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}", local.tm_year + 1900, local.tm_mon + 1,
                     local.tm_mday, local.tm_hour, local.tm_min);
}

/// Bytes of the files of a checkpoint. Files that disappear during the count are ignored.
int64_t bytesOf(const std::string &folder) {
  namespace fs = std::filesystem;
  int64_t bytes = 0;
  std::error_code error, gone;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (at->is_regular_file(gone))
      if (uintmax_t size = at->file_size(gone); !gone)
        bytes += static_cast<int64_t>(size);
  return bytes;
}

/// Lists the complete checkpoints of a folder, as lines or as one JSON list.
Status list(const ListOptions &options) {
  std::error_code error;
  if (!std::filesystem::is_directory(options.folder, error))
    return makeStatus(StatusCode::NotFound, "'{}' is not a folder", options.folder);
  ASSIGN_OR_RETURN(std::vector<checkpoint::SavedIteration> saved,
                   checkpoint::listIterations(options.folder));
  ASSIGN_OR_RETURN(std::optional<checkpoint::SavedIteration> latest,
                   checkpoint::latestIteration(options.folder));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const checkpoint::SavedIteration &each : saved) {
    bool isLatest = latest && latest->folder == each.folder;
    int64_t bytes = bytesOf(each.folder);
    std::string time = savedAt(each.folder);
    if (options.isJson)
      rows.push_back({{"iteration", each.iteration},
                      {"folder", each.folder},
                      {"bytes", bytes},
                      {"saved_at", time},
                      {"is_latest", isLatest}});
    else
      printOut("{:>10}  {}  {:>10}  {}{}\n", each.iteration, time, plan::formatBytes(bytes),
               plan::printable(each.folder), isLatest ? "  (latest)" : "");
  }
  if (options.isJson)
    printOut("{}\n", toText(rows, 2, /*isAscii=*/true));
  else if (saved.empty())
    printOut("'{}' has no complete checkpoint\n", plan::printable(options.folder));
  return Status::ok();
}

} // namespace

void addCkptList(cli::Command &ckpt, int &status) {
  auto options = std::make_shared<ListOptions>();
  cli::Command &command =
      ckpt.addCommand("list", "print the checkpoints of a folder: step, time, size")
          .alsoCalled({"ls"});
  command.option("folder", options->folder, "a folder of checkpoints").required();
  command.flag("--json", options->isJson, "print one JSON document");
  command.onUse([options, &status] { status = finishCkpt(list(*options)); });
}

void addCkptInspect(cli::Command &ckpt, int &status) {
  auto options = std::make_shared<InspectOptions>();
  cli::Command &command = ckpt.addCommand("inspect", "print what is in a checkpoint");
  command.option("checkpoint", options->path, "its folder, or a folder of checkpoints").required();
  command.flag("--json", options->isJson, "print everything as JSON, chunks and values too");
  command.option("--depth", options->depth, "levels of names to print; deeper ones are added up")
      .nonNegative();
  command.onUse([options, &status] { status = finishCkpt(inspect(*options)); });
}

} // namespace shardc::tools
