#include "compiler/tools/ImportHf.h"

#include <filesystem>

#include "compiler/config/Steps.h"
#include "compiler/lower/Lower.h"
#include "compiler/tools/Session.h"
#include "compiler/tools/StoredArgs.h"
#include "compiler/upstream/Yaml.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfConvert.h"

namespace shardc::tools {
namespace {

using checkpoint::HfConfig;
using checkpoint::HfFault;
using checkpoint::HfFaults;
using checkpoint::PlainEntries;
using upstream::Tree;
using upstream::TreePtr;

void report(const Report &error, SourceRange range, DiagEngine &diags) {
  diags.report(DiagInfo{error.severity, {error.id.data(), error.id.size()}, "", "{0}"}, range,
               {DiagArg(error.text)});
}

/// The place of a field of `tree`, the JSON object in the file, by its dotted name: the place of
/// its name or of its value. For a value in brackets, it is the place of the opening bracket. If
/// the object does not have the field, it is the start of the file.
SourceRange placeOf(llvm::StringRef field, bool isName, const Tree *tree, BufferId input,
                    const SourceManager &sources) {
  llvm::SmallVector<llvm::StringRef> names;
  field.split(names, '.');
  for (llvm::StringRef name : names)
    tree = tree == nullptr ? nullptr : tree->find(name);
  if (tree == nullptr)
    return SourceRange(sources.loc(input, 0));
  llvm::StringRef before = sources.text(input).take_front(sources.offset(tree->range.begin));
  std::string key = ("\"" + names.back() + "\"").str();
  size_t begin = before.rfind(key); // not found if it is written with escapes
  if (isName && begin != llvm::StringRef::npos)
    return sources.range(input, begin, begin + key.size());
  bool isInBrackets = tree->kind == Tree::Kind::List || tree->kind == Tree::Kind::Map;
  if (isInBrackets) // the parser's place is behind the bracket
    return SourceRange(sources.loc(input, before.find_last_of("[{")));
  return tree->range;
}

/// Reports each fault at its field: at the name of an unknown field, at the value of others.
void report(const HfFaults &faults, BufferId input, DiagEngine &diags) {
  DiagEngine quiet(diags.sources());
  const TreePtr whole = upstream::readYaml(input, quiet); // JSON is YAML
  for (const HfFault &fault : faults) {
    const Report error = fault.status.report();
    bool isName = error.id == report::HfFieldUnknown.info().id;
    report(error, placeOf(fault.field, isName, whole.get(), input, diags.sources()), diags);
  }
}

/// Reports the faults or, if there are none, the status.
std::nullopt_t refuse(const Status &status, HfFaults faults, BufferId input, DiagEngine &diags) {
  if (faults.empty())
    faults.push_back({"", status});
  report(faults, input, diags);
  return std::nullopt;
}

/// The reason why the recipe cannot be compiled for the host: rules, ops, passes, verification of
/// the plan, or memory. Empty if it can be compiled.
std::string whyNotCompiled(const std::string &recipe) {
  SourceManager sources;
  DiagEngine diags(sources);
  config::registerGroups(diags);
  CommonOptions common;
  common.load.sets = {"cluster.gpu=host", "cluster.nodes=1", "cluster.gpus_per_node=1"};
  std::optional<config::Config> config =
      config::loadConfig(sources, diags, sources.addBuffer("imported.recipe", recipe), common.load);
  std::string why;
  auto add = [&](const std::string &what) { why += (why.empty() ? "" : "; ") + what; };
  std::vector<lower::Missing> missing;
  if (config)
    missing = lower::findMissing(*config);
  for (const lower::Missing &item : missing)
    add(item.what);
  if (config && missing.empty())
    compile(*config, sources, diags, common, {.keepsSources = false});
  for (const Diagnostic &one : diags.pending())
    // A model that is too large for one rank may fit several.
    if (one.severity == Severity::Error && one.id != diag::PlanTooLarge.info.id)
      add(one.text);
  return why;
}

} // namespace

std::optional<std::string> importHf(BufferId input, const std::vector<std::string> &accepted,
                                    const upstream::ImportOptions &options, DiagEngine &diags) {
  const llvm::StringRef whole = diags.sources().text(input);
  const std::string_view text(whole.data(), whole.size());
  const std::string path(diags.sources().name(input));
  HfFaults faults;
  Result<HfConfig> config = checkpoint::parseHfConfig(text, path, {accepted}, &faults);
  if (!config.isOk())
    return refuse(config.status(), std::move(faults), input, diags);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  checkpoint::settleByTensors(folder.empty() ? "." : folder.string(), *config);
  Result<PlainEntries> arguments = checkpoint::hfArguments(*config, config->biases, &faults);
  if (!arguments.isOk())
    return refuse(arguments.status(), std::move(faults), input, diags);
  for (const Report &remark : checkpoint::hfRemarks(config->file))
    report(remark, SourceRange(diags.sources().loc(input, 0)), diags);
  Tree tree;
  tree.kind = Tree::Kind::Map;
  for (const auto &[name, value] : *arguments)
    tree.entries.emplace_back(name, treeOf(value));
  std::string_view family = checkpoint::infoOf(config->arch).recipeFamily;
  std::optional<std::string> recipe =
      upstream::importHubArgs(tree, {family.data(), family.size()}, options, diags);
  std::string why = recipe ? whyNotCompiled(*recipe) : "";
  if (why.empty())
    return recipe;
  Status refused = makeStatus(report::HfNotCompiled, path, why);
  return refuse(refused, {}, input, diags);
}

void addAcceptedFields(cli::Command &command, std::vector<std::string> &names) {
  command
      .option("--accept-field", names,
              "a field of config.json that changes nothing in this model, and is left out; may be "
              "repeated")
      .repeatableOneByOne();
}

Result<BufferId> loadHfConfig(const std::string &path, SourceManager &sources) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return sources.loadFile(path);
  ASSIGN_OR_RETURN(std::string text,
                   UntrustedFolder::readIn(path, "config.json", upstream::kInputBytesMax));
  return sources.addBuffer((std::filesystem::path(path) / "config.json").string(), std::move(text));
}

} // namespace shardc::tools
