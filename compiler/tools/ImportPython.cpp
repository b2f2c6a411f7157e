#include "compiler/tools/ImportPython.h"

#include <filesystem>

#include "compiler/tools/ForeignProgram.h"
#include "compiler/upstream/BridgeProgram.h"
#include "runtime/base/Io.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

/// Modules beside the program that it may import.
constexpr size_t kModulesMax = 400, kModuleBytesMax = size_t{4} << 20;
constexpr int kFoldersMax = 3;

std::optional<std::string> findPython() {
  for (const char *path : {"/usr/bin/python3", "/usr/local/bin/python3", "/opt/python3"}) {
    std::error_code error;
    if (fs::exists(path, error))
      return path;
  }
  return std::nullopt;
}

bool isRead(const fs::path &path) {
  std::string ending = path.extension().string();
  return ending == ".py" || ending == ".yaml" || ending == ".yml" || ending == ".json";
}

Status addModules(const fs::path &folder, ForeignProgram &program) {
  std::error_code error;
  size_t bytes = 0;
  fs::recursive_directory_iterator all(folder, error), end;
  for (; !error && all != end; all.increment(error)) {
    bool isHidden = all->path().filename().string().front() == '.';
    if (all->is_directory(error) && (isHidden || all.depth() >= kFoldersMax))
      all.disable_recursion_pending();
    if (!all->is_regular_file(error) || !isRead(all->path()))
      continue;
    size_t size = all->file_size(error);
    if (error || program.files.size() >= kModulesMax || bytes + size > kModuleBytesMax)
      continue;
    bytes += size;
    ASSIGN_OR_RETURN(program.files["work/" + fs::relative(all->path(), folder).string()],
                     readFile(all->path().string()));
  }
  return Status::ok();
}

Result<std::string> runProgram(const std::string &file, const std::string &function,
                               const std::vector<std::string> &arguments,
                               const upstream::ImportOptions &options, DiagEngine &diags) {
  std::optional<std::string> python = findPython();
  if (!python)
    return makeStatus(StatusCode::Unavailable, "it needs python3, which is not installed");
  ForeignProgram program;
  RETURN_IF_ERROR(addModules(fs::absolute(file).parent_path(), program));
  std::string name = fs::path(file).filename().string();
  ASSIGN_OR_RETURN(program.files["work/" + name], readFile(file));
  program.files["standin/standin.py"] = upstream::bridgeStandin();
  program.files["standin/tables.json"] = upstream::bridgeTables();
  program.command = {
      *python, "-I",    "../standin/standin.py", "../standin/tables.json", "../results",
      name,    function};
  program.command.insert(program.command.end(), arguments.begin(), arguments.end());
  program.environment = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/nowhere"}, {"LANG", "C.UTF-8"}};
  for (const auto &[variable, value] : options.variables)
    program.environment.emplace_back(variable, value);
  ASSIGN_OR_RETURN(ForeignResult done, runForeign(program));
  if (!done.isClosedOff)
    diags.report(diag::ImportNotClosedOff, SourceRange(), name);
  if (auto made = done.results.find("configuration"); made != done.results.end())
    return made->second;
  if (auto why = done.results.find("error"); why != done.results.end())
    return makeStatus(StatusCode::InvalidInput, "{}", why->second);
  llvm::StringRef last = llvm::StringRef(done.output).rtrim();
  return makeStatus(StatusCode::InvalidInput, "it ended with status {}: {}", done.status,
                    last.substr(last.rfind('\n') + 1).str());
}

} // namespace

std::optional<BufferId> runBridgePython(const std::string &input,
                                        const std::vector<std::string> &arguments,
                                        const upstream::ImportOptions &options, Session &session) {
  auto [file, function] = llvm::StringRef(input).rsplit(':');
  bool hasFunction = !function.empty() && file.endswith(".py");
  std::string path = hasFunction ? file.str() : input;
  llvm::errs() << "shardc: running 'python3 " << path << "'"
               << (hasFunction ? ", function '" + function.str() + "'," : "")
               << " with a stand-in for megatron.bridge\n";
  Result<std::string> made =
      runProgram(path, hasFunction ? function.str() : "", arguments, options, session.diags());
  if (made.isOk())
    return session.sources().addBuffer("<configuration of " + path + ">", std::move(*made));
  session.diags().report(diag::ImportMalformed, SourceRange(), made.status().message());
  return std::nullopt;
}

} // namespace shardc::tools
