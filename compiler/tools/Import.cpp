// shardc import: converts launch lines, stored arguments and configurations of Megatron-LM and
// Megatron-Bridge, configurations of other programs, and models of Hugging Face, to recipes.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "compiler/basic/Utf8.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/ForeignProgram.h"
#include "compiler/tools/ImportHf.h"
#include "compiler/tools/ImportRun.h"
#include "compiler/tools/Session.h"
#include "compiler/tools/StoredArgs.h"
#include "compiler/upstream/BridgeProgram.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/Import.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/UntrustedFolder.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

/// Limits for modules beside the program, which it may import.
constexpr size_t kModulesMax = 400, kModuleBytesMax = size_t{4} << 20;
constexpr int kFoldersMax = 3;
constexpr size_t kStatementBytesMax = size_t{32} << 20;

/// Copies the Python, YAML and JSON files of the program's folder, which the program may read.
/// Links, hidden folders, deep ones, and files beyond the limits are left out.
Status addModules(const std::string &folder, ForeignProgram &program) {
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(folder));
  ASSIGN_OR_RETURN(std::vector<std::string> names, in.listBelow(kFoldersMax));
  size_t left = kModuleBytesMax;
  for (const std::string &name : names) {
    if (!upstream::isOneOf(".py .yaml .yml .json", fs::path(name).extension().string()) ||
        program.files.size() >= kModulesMax)
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
  llvm::ErrorOr<std::string> python =
      llvm::sys::findProgramByName("python3", {"/usr/bin", "/usr/local/bin", "/opt"});
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

/// The configuration that the program builds, as YAML. `input`: FILE or FILE:FUNCTION. Prints what
/// it will run. Empty after an error, which is reported.
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

/// The configuration in Python code or overrides, as YAML, as far as their text shows it. Empty
/// after an error, which is reported. Needs python3, which parses the text without running it.
std::optional<BufferId> readBridgePython(BufferId input, const upstream::ImportOptions &options,
                                         Session &session) {
  std::optional<std::string> made =
      readWith("bridge_reader.py", bridgeProgram(), "configuration", input, session);
  return made ? std::optional(bufferOf(options.source, std::move(*made), session)) : std::nullopt;
}

/// Like readBridgePython(), but returns the recipe of a launch script of the shell.
std::optional<std::string> readScript(BufferId input, const upstream::ImportOptions &options,
                                      Session &session) {
  llvm::json::Object variables, files, setting;
  for (const auto &[name, value] : options.variables)
    variables[name] = value;
  setting["variables"] = std::move(variables);
  for (const auto &[place, text] : options.files)
    files[llvm::json::fixUTF8(place)] = llvm::json::fixUTF8(text);
  setting["files"] = std::move(files);
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

struct ImportCommand {
  CommonOptions common;
  std::string format;
  std::string input;
  std::string output;
  std::string name;
  std::vector<std::string> variables; ///< NAME=value
  std::vector<std::string> arguments; ///< of the script or program
  int64_t launch = 0;
  ScriptRun run;
  std::vector<std::string> acceptedFields;
};

/// The input's text. Empty after an error, which is reported.
std::optional<BufferId> readInput(const std::string &path, bool isHf, Session &session) {
  if (path == "-") {
    auto text = llvm::MemoryBuffer::getSTDIN();
    if (!text) {
      session.diags().report(diag::CannotReadFile, SourceRange(), text.getError().message());
      return std::nullopt;
    }
    return session.sources().addBuffer("<stdin>", (*text)->getBuffer().str());
  }
  Result<BufferId> buffer =
      isHf ? loadHfConfig(path, session.sources()) : session.sources().loadFile(path);
  if (buffer.isOk())
    return *buffer;
  session.diags().report(diag::CannotReadFile, SourceRange(), buffer.status().message());
  return std::nullopt;
}

std::optional<std::string> importInput(const ImportCommand &command,
                                       const upstream::ImportOptions &options, Session &session) {
  if (command.format == "megatron-args" && isCheckpoint(command.input)) {
    Result<upstream::TreePtr> args = readStoredArgs(command.input);
    if (args.isOk())
      return upstream::importStoredArgs(**args, options, session.diags());
    session.diags().report(diag::ImportMalformed, SourceRange(), args.status().message());
    return std::nullopt;
  }
  bool isHf = command.format == "hf", isPython = command.format == "bridge-python";
  bool runsPython = isPython && command.run.isAsked;
  std::optional<BufferId> input = runsPython
                                      ? runBridgePython(command.input, command.arguments,
                                                        command.run.isUnconfined, options, session)
                                      : readInput(command.input, isHf, session);
  if (!input)
    return std::nullopt;
  if (isHf)
    return importHf(*input, command.acceptedFields, options, session.diags());
  if (command.run.isAsked && !isPython)
    return importRun(command.input, *input, command.run, options, session);
  for (const upstream::ForeignForm &form : upstream::kForeignForms)
    if (form.name == command.format)
      return upstream::importForeign(*input, form.name, options, session.diags());
  if (command.format == "megatron-args")
    return readScript(*input, options, session);
  if (command.format != "bridge-yaml" && !runsPython)
    input = readBridgePython(*input, options, session);
  return input ? upstream::importBridgeYaml(*input, options, session.diags()) : std::nullopt;
}

/// The reason why the options contradict each other; empty if they do not.
std::string whyMisused(const ImportCommand &command) {
  bool isScript = command.format == "megatron-args" && !isCheckpoint(command.input);
  const ScriptRun &run = command.run;
  bool isPython = command.format == "bridge-python";
  if (!isScript && !isPython && (run.isAsked || !command.arguments.empty()))
    return "--run and arguments are for the scripts of megatron-args and for bridge-python";
  if (run.isUnconfined && !run.isAsked)
    return "--unconfined is for --run";
  if (!isScript && command.launch != 0)
    return "--launch is for the scripts of megatron-args";
  bool describes = run.nodes > 0 || run.gpusPerNode > 0 || !run.gpu.empty();
  if ((!run.isAsked || isPython) && describes)
    return "--nodes, --gpus-per-node and --gpu are for a script that runs: add --run";
  if (!isScript && !run.with.empty())
    return "--with is for the scripts of megatron-args";
  if (!run.gpu.empty() && run.gpusPerNode == 0)
    return "--gpu needs --gpus-per-node";
  return {};
}

int runImport(const ImportCommand &command) {
  Session session(command.common);
  if (std::string why = whyKept(command.output, {command.input}); !why.empty())
    return refuseUsage(why);
  if (std::string why = whyMisused(command); !why.empty())
    return refuseUsage(why);
  upstream::ImportOptions options;
  options.arguments = command.arguments;
  options.launch = static_cast<unsigned>(command.launch);
  options.name = command.name.empty()
                     ? upstream::recipeNameOf(command.input == "-" ? "imported" : command.input)
                     : upstream::recipeNameOf(command.name);
  options.source =
      command.input == "-" ? "standard input" : command.input.substr(command.input.rfind('/') + 1);
  auto files = readGiven(command.run.with, command.input);
  if (!files.isOk())
    session.diags().report(diag::CannotReadFile, SourceRange(), files.status().message());
  else
    options.files = std::move(*files);
  std::vector<std::string> secrets;
  for (const auto &[place, text] : options.files) // a script may source it
    llvm::append_range(secrets, secretsIn(text));
  for (const std::string &variable : command.variables) {
    auto [name, value] = llvm::StringRef(variable).split('=');
    options.variables[name.str()] = value.str();
    constexpr size_t kArgumentsMax = 1000;
    if (size_t number = 0; command.run.isAsked && !name.getAsInteger(10, number) && number > 0 &&
                           number <= kArgumentsMax) {
      options.arguments.resize(std::max(options.arguments.size(), number));
      options.arguments[number - 1] = value.str();
    }
    if (isSecret(name.str(), value.str()))
      secrets.push_back(value.str());
  }
  session.sources().hide(std::move(secrets));
  std::optional<std::string> recipe = importInput(command, options, session);
  ExitStatus status = session.finish();
  if (!recipe || status != kFine)
    return status == kFine ? kInputErrors : status;
  return writeOutput(command.output, session.sources().withoutSecrets(*recipe));
}

/// A hint for flags of Megatron-LM, which belong into the input.
std::string hintAtFlag(const std::string &flag) {
  const std::string where =
      "; flags of Megatron-LM are read from a file, or from standard input with '-'";
  if (!upstream::findFlag(flag).empty())
    return where;
  std::optional<llvm::StringRef> meant = upstream::misspeltFlag(flag);
  return meant ? where + "; did you mean '" + meant->str() + "'?" : "";
}

} // namespace

void addImport(cli::Command &app, int &status) {
  auto options = std::make_shared<ImportCommand>();
  cli::Command &command = app.addCommand(
      "import", "write the recipe of a Megatron-LM launch, a configuration of Megatron-Bridge or "
                "another program, or a Hugging Face model");
  std::vector<std::string> forms = {"megatron-args", "bridge-yaml", "bridge-overrides",
                                    "bridge-python", "hf"};
  for (const upstream::ForeignForm &form : upstream::kForeignForms)
    forms.push_back(form.name.str());
  command.option("form", options->format, "kind of the input").required().oneOf(std::move(forms));
  command
      .option("input", options->input,
              "file, checkpoint folder (megatron-args), model folder (hf), or - for standard input")
      .required();
  command.option("arguments", options->arguments, "after --: the arguments of a script or program")
      .repeatable();
  command.flag("--run", options->run.isAsked,
               "run the script with bash, or the program FILE or FILE:FUNCTION with python3, and "
               "stand-ins for what they start or import, instead of reading it");
  command.flag("--unconfined", options->run.isUnconfined,
               "with --run: without a sandbox, with your files and the network");
  command.option("--launch", options->launch, "which of several launches of a script, from 1")
      .positive();
  command.option("--nodes", options->run.nodes, "with --run: nodes of the cluster").positive();
  command
      .option("--gpus-per-node", options->run.gpusPerNode,
              "with --run: GPUs that nvidia-smi finds on a node")
      .positive();
  command.option("--gpu", options->run.gpu, "with --run: their kind, as in cluster.gpu");
  command
      .option("--with", options->run.with,
              "a file that the script, or a launcher of it, finds beside itself")
      .repeatableOneByOne();
  command.option("-o,--output", options->output,
                 "output file of the recipe; default: standard output");
  command.option("--name", options->name, "name of the recipe");
  command
      .option("--var", options->variables,
              "NAME=value: a variable of the shell that would run "
              "the script, or of the program's environment")
      .repeatableOneByOne();
  addAcceptedFields(command, options->acceptedFields);
  options->common.addMessageOptions(command);
  command.hintsAtUnknown(hintAtFlag);
  command.onUse([options, &status] { status = runImport(*options); });
}

} // namespace shardc::tools
