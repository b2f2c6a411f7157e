// shardc recipes: lists the recipes that come with the program, or those of a folder, with the size
// of the model, the number of GPUs, and whether they can be compiled.
#include <algorithm>
#include <filesystem>

#include "compiler/basic/Format.h"
#include "compiler/basic/Library.h"
#include "compiler/basic/Utf8.h"
#include "compiler/lower/Family.h"
#include "compiler/lower/Lower.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

/// A row of the list.
struct Row {
  std::string file; ///< relative to the folder
  std::string name;
  bool isValid = false;
  int64_t parameters = 0;
  int64_t numGpus = 0;
  std::string gpu;
  std::vector<std::string> lacks; ///< features that no op supports yet
  bool runs() const { return isValid && lacks.empty(); }
};

/// A folder from which recipes are listed, and the prefix of their names.
struct Library {
  std::string folder;
  std::string prefix;
};

/// The recipes that come with the program: the installed ones, or those of the source tree that
/// contains the build.
Library libraryOfProgram() {
  std::error_code error;
  fs::path installed = filePathOf(kLibraryPrefix);
  if (fs::is_directory(installed, error))
    return {installed.string(), kLibraryPrefix.str()};
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = (program.parent_path() / "../../../recipes").lexically_normal();
  if (fs::is_directory(folder, error))
    return {folder.string(), ""};
  return {};
}

Row describe(const Library &library, const std::string &file) {
  Row row;
  row.file = library.prefix + file;
  SourceManager sources;
  DiagEngine diags(sources);
  config::LoadOptions load;
  load.path = (fs::path(library.folder) / file).string();
  std::optional<config::Config> config = config::loadConfig(sources, diags, load);
  row.isValid = config && !diags.hasErrors();
  if (!row.isValid)
    return row;
  row.name = config->name();
  row.parameters = lower::countParameters(*config);
  row.numGpus = config->derived().worldSize;
  if (config->derived().gpu)
    row.gpu = config::spelling(*config->derived().gpu).str();
  for (const lower::Missing &item : lower::findMissing(*config))
    if (!llvm::is_contained(row.lacks, item.what))
      row.lacks.push_back(item.what);
  return row;
}

/// All recipes below a folder, except overlays, which are only parts of recipes.
std::vector<Row> listRecipes(const Library &library, std::error_code &error) {
  std::vector<Row> rows;
  for (const std::string &file : recipesBelow(library.folder, error))
    rows.push_back(describe(library, file));
  return rows;
}

/// A count with three digits and a unit, such as `8.03 B`.
std::string countText(int64_t count) {
  double value = static_cast<double>(count);
  const char *unit = "";
  for (const char *next : {"k", "M", "B", "T"})
    if (value >= 999.5) {
      value /= 1000;
      unit = next;
    }
  return fmt::format("{:.{}f}{}{}", value,
                     value >= 99.95 || count < 1000 ? 0
                     : value >= 9.995               ? 1
                                                    : 2,
                     *unit == '\0' ? "" : " ", unit);
}

void printTable(const std::string &folder, const std::vector<Row> &rows) {
  size_t width = 6;
  for (const Row &row : rows)
    width = std::max(width, row.file.size());
  printOut("recipes in {}\n\n{:{}}  {:>10}  {:>6}  {:10} runs\n", folder, "recipe", width,
           "parameters", "GPUs", "of kind");
  for (const Row &row : rows) {
    if (!row.isValid)
      printOut("{:{}}  {:>10}  {:>6}  {:10} no: it has errors, see shardc check\n",
               printable(row.file), width, "", "", "");
    else
      printOut("{:{}}  {:>10}  {:>6}  {:10} {}\n", printable(row.file), width,
               countText(row.parameters), row.numGpus, row.gpu,
               row.lacks.empty() ? "yes" : "not yet: " + llvm::join(row.lacks, ", "));
  }
  auto numRunning = llvm::count_if(rows, [](const Row &row) { return row.runs(); });
  printOut("\n{} recipes, {} run\n", rows.size(), numRunning);
}

void printRecipesJson(const std::vector<Row> &rows) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Row &row : rows) {
    Json &json =
        list.emplace_back(Json{{"file", row.file}, {"valid", row.isValid}, {"runs", row.runs()}});
    if (!row.isValid)
      continue;
    json["name"] = row.name;
    json["parameters"] = row.parameters;
    json["gpus"] = row.numGpus;
    json["gpu"] = row.gpu.empty() ? Json() : Json(row.gpu);
    json["lacks"] = row.lacks;
  }
  printOut("{}\n", toText(list, 2, /*isAscii=*/true));
}

int runRecipes(const std::string &folder, bool asJson, bool onlyPath) {
  Library library = folder.empty() ? libraryOfProgram() : Library{folder, ""};
  if (library.folder.empty()) {
    llvm::errs() << "shardc: error: no recipes were found where this program was installed or "
                    "built; 'shardc recipes FOLDER' lists those of a folder\n";
    return kInputErrors;
  }
  if (onlyPath) {
    printOut("{}\n", llvm::StringRef(library.folder).rtrim('/').str());
    return kFine;
  }
  std::error_code error;
  std::vector<Row> rows = listRecipes(library, error);
  if (error) {
    llvm::errs() << "shardc: error: cannot read '" << library.folder << "': " << error.message()
                 << "\n";
    return kInputErrors;
  }
  if (asJson)
    printRecipesJson(rows);
  else
    printTable(library.folder, rows);
  return kFine;
}

} // namespace

void addRecipes(cli::Command &app, int &status) {
  auto folder = std::make_shared<std::string>();
  auto asJson = std::make_shared<bool>(false), onlyPath = std::make_shared<bool>(false);
  cli::Command &command =
      app.addCommand("recipes", "list recipes: parameters, GPUs, and whether they run");
  command.option("folder", *folder, "folder of recipes; default: the program's recipes");
  command.flag("--json", *asJson, "print an array of objects");
  command.flag("--path", *onlyPath, "print only the folder, which also has scripts for Slurm");
  command.onUse([=, &status] { status = runRecipes(*folder, *asJson, *onlyPath); });
}

} // namespace shardc::tools
