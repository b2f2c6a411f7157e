// shardc ckpt diff: compares two checkpoints. Exits with 0 if they are equal, otherwise with 1.
#include <fmt/format.h>

#include "compiler/tools/CkptJson.h"
#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/Diff.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

using checkpoint::CheckpointDiff;
using checkpoint::CheckpointView;
using checkpoint::ObjectDifference;
using checkpoint::TensorDifference;

struct DiffCommand {
  std::string a, b;
  bool isJson = false, isAll = false, tensorsOnly = false;
  int threads = defaultThreads();
};

/// Prints lines under a heading; only the first kListed unless `isAll`.
void printList(const std::string &heading, const std::vector<std::string> &lines, bool isAll) {
  if (lines.empty())
    return;
  printOut("{} {}:\n", lines.size(), heading);
  size_t shown = isAll ? lines.size() : std::min(lines.size(), kListed);
  for (size_t i = 0; i < shown; ++i)
    printOut("  {}\n", plan::printable(lines[i]));
  if (shown < lines.size())
    printOut("  and {} more; --all lists them\n", lines.size() - shown);
}

void printText(const CheckpointDiff &diff, const DiffCommand &command) {
  if (diff.byParams)
    printOut("the formats differ; parameters and optimizer state are compared\n");
  printList("only in A", diff.onlyInA, command.isAll);
  printList("only in B", diff.onlyInB, command.isAll);
  std::vector<std::string> shapes, values, objects;
  for (const TensorDifference &tensor : diff.tensors)
    (tensor.isOfValues ? values : shapes)
        .push_back(tensor.isOfValues ? fmt::format("{}: {}, max abs difference {:g}", tensor.name,
                                                   tensor.what, tensor.maxAbs)
                                     : fmt::format("{}: {}", tensor.name, tensor.what));
  for (const ObjectDifference &object : diff.objects)
    objects.push_back(
        fmt::format("{}: {} and {}", object.name, shortened(object.a), shortened(object.b)));
  printList("differ in shape or type", shapes, command.isAll);
  printList("differ in values", values, command.isAll);
  printList("objects differ", objects, command.isAll);
  printOut("{} tensors and {} objects are equal", diff.sameTensors, diff.sameObjects);
  printOut("{}", diff.isEmpty() ? "; nothing differs\n"
                                : fmt::format("; max abs difference {:g}\n", diff.maxAbs));
}

void printJson(const CheckpointDiff &diff) {
  nlohmann::ordered_json json = {{"equal", diff.isEmpty()},
                                 {"by_parameters", diff.byParams},
                                 {"same_tensors", diff.sameTensors},
                                 {"same_objects", diff.sameObjects},
                                 {"max_abs_difference", numberJson(diff.maxAbs)},
                                 {"only_in_a", diff.onlyInA},
                                 {"only_in_b", diff.onlyInB},
                                 {"tensors", nlohmann::ordered_json::array()},
                                 {"objects", nlohmann::ordered_json::array()}};
  for (const TensorDifference &tensor : diff.tensors)
    json["tensors"].push_back({{"name", tensor.name},
                               {"what", tensor.what},
                               {"elements", tensor.elements},
                               {"max_abs_difference", numberJson(tensor.maxAbs)}});
  for (const ObjectDifference &object : diff.objects)
    json["objects"].push_back({{"name", object.name}, {"a", object.a}, {"b", object.b}});
  printOut("{}\n", toText(json, 2, /*isAscii=*/true));
}

Result<CheckpointView> openView(const std::string &path) {
  ASSIGN_OR_RETURN(std::string folder, checkpoint::findCheckpoint(path));
  return CheckpointView::open(folder, checkpoint::Verify::Touched, reportCkpt);
}

Result<CheckpointDiff> compare(const DiffCommand &command) {
  ASSIGN_OR_RETURN(CheckpointView a, openView(command.a));
  ASSIGN_OR_RETURN(CheckpointView b, openView(command.b));
  ProgressBar bar("comparing");
  return checkpoint::diffCheckpoints(
      a, b, {command.tensorsOnly, command.threads, int64_t{16} << 20, bar.callback()});
}

/// The exit status is 1 if the checkpoints differ.
int runDiff(const DiffCommand &command) {
  Result<CheckpointDiff> diff = compare(command);
  if (!diff.isOk())
    return finishCkpt(diff.status());
  if (command.isJson)
    printJson(*diff);
  else
    printText(*diff, command);
  return diff->isEmpty() ? 0 : 1;
}

} // namespace

void addCkptDiff(cli::Command &ckpt, int &status) {
  auto options = std::make_shared<DiffCommand>();
  cli::Command &command = ckpt.addCommand("diff", "compare two checkpoints: names, shapes, values");
  command.option("a", options->a, "a checkpoint").required();
  command
      .option("b", options->b,
              "the other checkpoint; if its format differs, parameters are compared")
      .required();
  command.flag("--json", options->isJson, "print all that differs as JSON");
  command.flag("--all", options->isAll, "list everything, not the first 20");
  command.flag("--tensors-only", options->tensorsOnly, "do not compare objects");
  command.option("--threads", options->threads, "threads that read").threadCount().showsDefault();
  command.onUse([options, &status] { status = runDiff(*options); });
}

} // namespace shardc::tools
