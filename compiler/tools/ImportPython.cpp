#include "compiler/tools/ImportPython.h"

#include <filesystem>

#include "compiler/basic/Utf8.h"
#include "compiler/tools/ForeignProgram.h"
#include "compiler/upstream/BridgeProgram.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "runtime/base/Io.h"
#include "runtime/base/UntrustedFolder.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

/// Limits for modules beside the program, which it may import.
constexpr size_t kModulesMax = 400, kModuleBytesMax = size_t{4} << 20;
constexpr int kFoldersMax = 3;
constexpr size_t kStatementBytesMax = size_t{32} << 20;

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

/// Copies the Python, YAML and JSON files of the program's folder, which the program may read.
/// Links, hidden folders, deep ones, and files beyond the limits are left out.
Status addModules(const std::string &folder, ForeignProgram &program) {
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(folder));
  ASSIGN_OR_RETURN(std::vector<std::string> names, in.listBelow(kFoldersMax));
  size_t left = kModuleBytesMax;
  for (const std::string &name : names) {
    if (!isRead(name) || program.files.size() >= kModulesMax)
      continue;
    if (Result<std::string> text = in.read(name, left); text.isOk()) {
      left -= text->size();
      program.files["work/" + name] = std::move(*text);
    }
  }
  return Status::ok();
}

ForeignProgram bridgeProgram() {
  ForeignProgram program;
  program.files["standin/bridge_standin.py"] = upstream::pythonProgram("bridge_standin.py");
  program.files["standin/tables.json"] = upstream::bridgeTables();
  return program;
}

/// The text of the result file `wanted` that the program wrote, or the reason why it wrote none.
Result<std::string> resultOf(ForeignProgram &program, std::vector<std::string> words,
                             const std::string &wanted) {
  std::optional<std::string> python = findPython();
  if (!python)
    return makeStatus(StatusCode::Unavailable, "it needs python3, which is not installed");
  program.command = {*python, "-I"};
  program.command.insert(program.command.end(), words.begin(), words.end());
  program.environment.insert(
      program.environment.begin(),
      {{"PATH", "/usr/bin:/bin"}, {"HOME", "/nowhere"}, {"LANG", "C.UTF-8"}});
  ASSIGN_OR_RETURN(ForeignResult done, runForeign(program));
  if (auto made = done.results.find(wanted); made != done.results.end())
    return made->second;
  if (auto why = done.results.find("error"); why != done.results.end())
    return makeStatus(StatusCode::InvalidInput, "{}", why->second);
  llvm::StringRef last = llvm::StringRef(done.output).rtrim();
  return makeStatus(StatusCode::InvalidInput, "it ended with status {}: {}", done.status,
                    last.substr(last.rfind('\n') + 1).str());
}

Result<std::string> runProgram(const std::string &file, const std::string &function,
                               const std::vector<std::string> &arguments,
                               const upstream::ImportOptions &options, bool isUnconfined) {
  ForeignProgram program = bridgeProgram();
  program.closesOff = !isUnconfined;
  RETURN_IF_ERROR(addModules(fs::absolute(file).parent_path().string(), program));
  std::string name = fs::path(file).filename().string();
  ASSIGN_OR_RETURN(program.files["work/" + name], readFile(file));
  for (const auto &[variable, value] : options.variables)
    program.environment.emplace_back(variable, value);
  std::vector<std::string> words = {"../standin/bridge_standin.py", "../standin/tables.json",
                                    "../results", name, function};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return resultOf(program, std::move(words), "configuration");
}

/// Runs a reader on an input, and returns its result file `wanted`. Empty after an error, which is
/// reported.
std::optional<std::string> readWith(const std::string &reader, ForeignProgram program,
                                    const std::string &wanted, BufferId input, Session &session) {
  if (!upstream::checkInput(input, session.diags()))
    return std::nullopt;
  program.files["standin/" + reader] = upstream::pythonProgram(reader);
  program.files["work/input"] = session.sources().text(input).str();
  program.closesOff = false; // no code of the input is executed
  program.outputBytesMax = kStatementBytesMax;
  Result<std::string> made = resultOf(
      program, {"../standin/" + reader, "../standin/tables.json", "../results", "input"}, wanted);
  if (made.isOk())
    return std::move(*made);
  session.diags().report(diag::ImportMalformed, SourceRange(), made.status().message());
  return std::nullopt;
}

BufferId bufferOf(const std::string &source, std::string configuration, Session &session) {
  return session.sources().addBuffer("<configuration of " + source + ">", std::move(configuration));
}

} // namespace

std::optional<BufferId> runBridgePython(const std::string &input,
                                        const std::vector<std::string> &arguments,
                                        bool isUnconfined, const upstream::ImportOptions &options,
                                        Session &session) {
  auto [file, function] = llvm::StringRef(input).rsplit(':');
  bool hasFunction = !function.empty() && file.endswith(".py");
  std::string path = hasFunction ? file.str() : input;
  llvm::errs() << "shardc: running 'python3 " << printable(path) << "'"
               << (hasFunction ? ", function '" + function.str() + "'," : "")
               << " with a stand-in for megatron.bridge" << (isUnconfined ? kUnconfinedWords : "")
               << "\n";
  Result<std::string> made =
      runProgram(path, hasFunction ? function.str() : "", arguments, options, isUnconfined);
  if (made.isOk())
    return bufferOf(path, std::move(*made), session);
  session.diags().report(diag::ImportMalformed, SourceRange(), made.status().message());
  return std::nullopt;
}

std::optional<BufferId> readBridgePython(BufferId input, const upstream::ImportOptions &options,
                                         Session &session) {
  std::optional<std::string> made =
      readWith("bridge_reader.py", bridgeProgram(), "configuration", input, session);
  return made ? std::optional(bufferOf(options.source, std::move(*made), session)) : std::nullopt;
}

std::optional<std::string> readScript(BufferId input, const upstream::ImportOptions &options,
                                      Session &session) {
  llvm::json::Object variables, setting;
  for (const auto &[name, value] : options.variables)
    variables[name] = value;
  setting["variables"] = std::move(variables);
  if (!options.arguments.empty())
    setting["arguments"] = llvm::json::Array(options.arguments);
  llvm::ErrorOr<std::string> shfmt = llvm::sys::findProgramByName("shfmt");
  if (!shfmt) {
    session.diags().report(diag::ImportMalformed, SourceRange(),
                           "it needs shfmt, which is not installed; 'apt-get install shfmt' or "
                           "'pip install shfmt-py' installs it, and '--run' does not need it");
    return std::nullopt;
  }
  setting["shfmt"] = *shfmt;
  ForeignProgram program;
  llvm::raw_string_ostream(program.files["standin/tables.json"])
      << llvm::json::Value(std::move(setting));
  std::optional<std::string> commands =
      readWith("shell_reader.py", std::move(program), "commands", input, session);
  return commands ? upstream::importMegatronArgs(input, *commands, options, session.diags())
                  : std::nullopt;
}

} // namespace shardc::tools
