#include "compiler/tools/ImportRun.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "compiler/basic/ShellWord.h"
#include "compiler/tools/ForeignProgram.h"
#include "compiler/upstream/Shell.h"
#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/UntrustedFolder.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;
using upstream::RanCommand;
using upstream::RanWord;
using upstream::ShellRun;

#define ASSET(name, text) {name, text},
constexpr std::pair<const char *, const char *> kStandIns[] = {
#include "compiler/basic/Utf8.h"
#include "compiler/tools/StandIns.inc"
};
#undef ASSET

/// Maximum number of runs: a script that lacks paths runs again with these paths.
constexpr unsigned kTriesMax = 8;
constexpr size_t kLinesSaidMax = 10;
constexpr size_t kLastLines = 3;       ///< of the output of a script that fails
constexpr size_t kWithFilesMax = 1000; ///< in folders of --with
constexpr int kWithLevelsMax = 16;
constexpr size_t kColumnsMax = 100; ///< maximum columns of a launch line in messages
constexpr llvm::StringLiteral kUnknownOpen = "@output-of-";
constexpr llvm::StringLiteral kNoFile = ": No such file or directory";

std::vector<std::string> splitRecord(const std::string &text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// The calls that the stand-ins recorded, as commands of a script.
class Records {
public:
  Records(const ForeignResult &result, const std::string &script,
          const std::vector<std::string> &secrets, const upstream::ImportOptions &options,
          Session &session)
      : result_(result), script_(script), secrets_(secrets), options_(options), session_(session) {}

  /// Reads the records that the stand-ins wrote, in the order of the calls. A program that wraps
  /// another one, such as srun around python, is joined with it to one command.
  ShellRun read() {
    for (int number = 0;; ++number) {
      auto found = result_.results.find(std::to_string(number));
      if (found == result_.results.end())
        break;
      std::vector<std::string> words = splitRecord(found->second);
      if (words.size() < 2)
        continue;
      std::string kind = words[0], parent = words[1];
      words.erase(words.begin(), words.begin() + 2);
      if (kind == "wrap" || kind == "launch")
        prependParent(parent, words);
      chains_[std::to_string(number)] = words;
      if (kind == "launch")
        addLaunch(words, std::to_string(number));
      if (kind == "ask" && !words.empty())
        asks_.insert(words.front());
      if (kind == "sourced" && !words.empty())
        lacking_.push_back(words.front());
    }
    if (auto found = result_.results.find("unset"); found != result_.results.end())
      for (const std::string &name : splitRecord(found->second))
        run_.exported[name] = {};
    if (auto found = result_.results.find("sourced"); found != result_.results.end())
      for (const std::string &name : splitRecord(found->second))
        lacking_.push_back(name);
    for (const auto &[name, text] : result_.results)
      if (llvm::StringRef file = name; file.consume_front("file."))
        run_.files[file.str()] = text;
    run_.hasRun = true;
    return std::move(run_);
  }

  /// What the script asked for that the command line must give: "gpus", or a variable.
  const std::set<std::string> &asks() const { return asks_; }
  /// Files that the script tried to read or to submit.
  const std::vector<std::string> &lacking() const { return lacking_; }

private:
  void prependParent(const std::string &parent, std::vector<std::string> &words) {
    if (auto found = chains_.find(parent); found != chains_.end())
      words.insert(words.begin(), found->second.begin(), found->second.end());
  }

  /// A word that may depend on something unknown: the output of a program, or the folder of the
  /// run.
  RanWord shown(llvm::StringRef word, SourceRange range) const {
    RanWord ran{"", range, nullptr};
    auto unknown = std::make_shared<upstream::ShellUnknown>();
    while (!word.empty()) {
      llvm::StringRef rest = word;
      if (rest.consume_front(kUnknownOpen)) {
        auto [name, behind] = rest.split('@');
        bool isVariable = name.upper() == name;
        unknown->shown = (isVariable ? "$" + name : "$(" + name + ")").str();
        ran.text += unknown->shown;
        word = behind;
      } else if (rest.consume_front(result_.folder)) {
        rest.consume_front("/work") || rest.consume_front("/home");
        unknown->shown = "$PWD";
        ran.text += unknown->shown;
        word = rest;
      } else {
        ran.text += word.front();
        word = word.drop_front();
      }
    }
    if (llvm::StringRef text = ran.text; text.contains('*') && text.contains('/'))
      unknown->shown = ran.text; // files of the cluster
    if (!unknown->shown.empty())
      ran.unknown = unknown;
    return ran;
  }

  /// Turns a started command into source text with locations, so that messages about an argument
  /// can show it.
  void addLaunch(std::vector<std::string> words, const std::string &number) {
    std::vector<std::pair<std::string, std::string>> variables;
    if (auto found = result_.results.find(number + ".environment"); found != result_.results.end())
      for (const std::string &variable : splitRecord(found->second))
        variables.emplace_back(llvm::StringRef(variable).split('='));
    for (std::string &word : words)
      word = withoutValues(upstream::withoutSecretsOf(variables, std::move(word)), secrets_);
    // The line gets a separate buffer, so that messages can point into it.
    std::string line;
    size_t lineBegin = 0;
    std::vector<std::pair<size_t, size_t>> places;
    for (const std::string &word : words) {
      std::string text = shellQuoted(shown(word, {}).text);
      bool breaks = line.size() + text.size() > lineBegin + kColumnsMax;
      lineBegin = breaks ? line.size() : lineBegin;
      line += line.empty() ? "" : breaks ? " \\\n    " : " ";
      places.emplace_back(line.size(), line.size() + text.size());
      line += text;
    }
    ++numLaunches_;
    BufferId buffer = session_.sources().addBuffer(
        script_ + (numLaunches_ == 1 ? "" : ", launch " + std::to_string(numLaunches_)),
        line + "\n");
    auto loc = [&](size_t at) { return session_.sources().loc(buffer, at); };
    RanCommand command;
    command.range = SourceRange(loc(0), loc(line.size()));
    for (size_t i = 0; i < words.size(); ++i)
      command.words.push_back(
          shown(words[i], SourceRange(loc(places[i].first), loc(places[i].second))));
    for (const auto &[name, value] : variables) {
      auto given = options_.variables.find(name);
      bool isGiven = given != options_.variables.end() && given->second == value;
      if (!isOurs(name) && !isGiven && value != (kUnknownOpen + name + "@").str())
        command.environment.emplace(name, shown(value, {}));
    }
    run_.commands.push_back(std::move(command));
  }

  /// Whether a variable was set by this program, by Slurm or by the shell, rather than by the
  /// script.
  static bool isOurs(llvm::StringRef name) {
    for (llvm::StringRef prefix : {"SHARDC_", "SLURM_", "OMPI_", "BASH_", "PBS_"})
      if (name.startswith(prefix))
        return true;
    constexpr llvm::StringLiteral kNames[] = {"PATH", "HOME", "PWD",  "OLDPWD",  "SHLVL",
                                              "_",    "LANG", "USER", "LOGNAME", "HOSTNAME"};
    return llvm::is_contained(kNames, name);
  }

  const ForeignResult &result_;
  const std::string &script_;
  const std::vector<std::string> secrets_; ///< in its text, also of variables not exported
  const upstream::ImportOptions &options_;
  Session &session_;
  ShellRun run_;
  std::map<std::string, std::vector<std::string>> chains_;
  std::vector<std::string> lacking_;
  std::set<std::string> asks_;
  unsigned numLaunches_ = 0;
};

/// Whether bash, or a program that lacks a file, reports an error in the line.
bool isComplaint(llvm::StringRef line) {
  return line.contains(": line ") || line.contains(kNoFile);
}

/// The lines of the output that `isWanted` accepts.
std::vector<std::string> linesOf(const std::string &output,
                                 llvm::function_ref<bool(llvm::StringRef)> isWanted) {
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(output).split(lines, '\n', -1, false);
  llvm::erase_if(lines, [&](llvm::StringRef line) { return !isWanted(line); });
  return std::vector<std::string>(lines.begin(), lines.end());
}

/// Text without the path of the folder in which the script ran.
std::string withoutFolder(std::string text, const std::string &folder) {
  for (const std::string &path : {folder + "/work", folder})
    for (size_t at; (at = text.find(path + "/")) != std::string::npos;)
      text.erase(at, path.size() + 1);
  return text;
}

/// The last lines of the output that are neither complaints nor unknown.
std::vector<std::string> lastLines(const std::string &output) {
  std::vector<std::string> lines = linesOf(output, [](llvm::StringRef line) {
    return !line.trim().empty() && !isComplaint(line) && !line.contains(kUnknownOpen);
  });
  lines.erase(lines.begin(), lines.end() - std::min(lines.size(), kLastLines));
  return lines;
}

/// The path that a line of error output reports as missing, with "/." if it is a folder; empty if
/// the line reports something else, or names no file that is read.
std::string lackingPath(llvm::StringRef line) {
  if (line.consume_back(")"))
    line = line.take_front(line.rfind(" ("));
  else if (!line.consume_back(kNoFile))
    return {};
  bool isFolder = line.contains(" cd: ");
  llvm::StringRef path = line.substr(line.rfind(": ") == line.npos ? 0 : line.rfind(": ") + 2);
  path.consume_front("can't read ") || path.consume_front("cannot open ");
  path.consume_back(" for reading");
  path = path.trim("'\"");
  if (path.empty() || path.contains('\'') || path.contains(' '))
    return {};
  return isFolder ? (path + "/.").str() : path.str();
}

class ScriptRunner {
public:
  ScriptRunner(const std::string &path, BufferId script, const ScriptRun &run,
               const upstream::ImportOptions &options, Session &session)
      : run_(run), options_(options), session_(session),
        name_(path == "-" ? "script.sh" : path.substr(path.rfind('/') + 1)),
        text_(session.sources().text(script).str()) {}

  /// Runs the script until it lacks no more paths. Empty after an error.
  std::optional<ForeignResult> run() {
    ForeignProgram program = describe();
    announce(program);
    std::set<std::string> missing;
    for (unsigned i = 0;; ++i) {
      Result<ForeignResult> done = runForeign(program);
      if (!done.isOk()) {
        session_.diags().report(diag::ImportRunFailed, SourceRange(), name_,
                                done.status().message());
        return std::nullopt;
      }
      size_t before = missing.size();
      for (const std::string &line : linesOf(done->output, isComplaint))
        if (std::string path = lackingPath(withoutFolder(line, done->folder));
            !path.empty() && program.closesOff)
          missing.insert(path);
      if (missing.size() == before || i + 1 == kTriesMax)
        return std::move(*done);
      program.environment.back().second = llvm::join(missing, "\n");
    }
  }

  const std::string &name() const { return name_; }

private:
  /// The program to run: the script, files beside it, and stand-ins, in a folder of its own, with
  /// variables that tell the stand-ins about the cluster.
  ForeignProgram describe() const {
    ForeignProgram program;
    program.closesOff = !run_.isUnconfined;
    for (const auto &[name, text] : kStandIns)
      program.files[name] = text;
    program.files["work/" + name_] = text_;
    for (const auto &[place, text] : options_.files)
      program.files["work/" + place] = text;
    program.command = {"/bin/bash", "-p", "../start.sh", name_};
    for (const std::string &argument : options_.arguments)
      program.command.push_back(argument);
    auto give = [&](const std::string &name, std::string value) {
      program.environment.emplace_back(name, std::move(value));
    };
    give("LANG", "C.UTF-8");
    for (const char *name : {"USER", "LOGNAME"})
      give(name, "@output-of-whoami@");
    give("HOSTNAME", "node0");
    for (const auto &[name, value] : options_.variables)
      give(name, value);
    give("SHARDC_NODES", run_.nodes > 0 ? std::to_string(run_.nodes) : "");
    give("SHARDC_GPUS", run_.gpusPerNode > 0 ? std::to_string(run_.gpusPerNode) : "");
    give("SHARDC_GPU", llvm::StringRef(run_.gpu).upper());
    give("SHARDC_WITH_FILES", run_.with.empty() ? "" : "1");
    give("SHARDC_MISSING", ""); // the last missing path
    return program;
  }

  void announce(const ForeignProgram &program) const {
    std::string line = "bash " + shellQuoted(name_);
    for (const std::string &argument : options_.arguments)
      line += " " + shellQuoted(argument);
    llvm::errs() << "shardc: running '" << printable(line)
                 << "' with stand-ins for its launchers, in an empty folder, for at most "
                 << program.secondsMax << " s" << (run_.isUnconfined ? kUnconfinedWords : "")
                 << "\n";
  }

  const ScriptRun &run_;
  const upstream::ImportOptions &options_;
  Session &session_;
  std::string name_, text_;
};

/// Reports how the script ran.
void reportRun(const ForeignResult &result, const Records &records, bool hasLaunch,
               const std::string &name, DiagEngine &diags) {
  for (const std::string &what : records.asks())
    diags.report(diag::ImportRunAsks, SourceRange(), name,
                 what == "gpus"
                     ? "how many GPUs a node has; '--gpus-per-node'"
                     : fmt::format("which task of an array it is; '--var {}=NUMBER'", what));
  std::set<std::string> lacking(records.lacking().begin(), records.lacking().end());
  std::vector<std::string> said = linesOf(result.output, isComplaint);
  for (size_t i = 0; i < std::min(said.size(), kLinesSaidMax); ++i) {
    std::string line = withoutFolder(said[i], result.folder);
    if (!llvm::StringRef(line).contains(kNoFile))
      diags.report(diag::ImportRunSaid, SourceRange(), line);
    else if (std::string path = lackingPath(line); !llvm::StringRef(path).endswith("/."))
      lacking.insert(path);
  }
  lacking.erase("");
  for (const std::string &path : lacking)
    if (!llvm::StringRef(path).contains(kUnknownOpen))
      diags.report(diag::ImportRunLacks, SourceRange(), name, withoutFolder(path, result.folder));
  if (result.status != 0 || !hasLaunch)
    for (const std::string &line : lastLines(result.output))
      diags.report(diag::ImportRunSays, SourceRange(), withoutFolder(line, result.folder));
  if (result.status != 0)
    diags.report(diag::ImportRunStatus, SourceRange(), name, result.status);
}

} // namespace

Result<std::map<std::string, std::string>> readGiven(const std::vector<std::string> &with,
                                                     const std::string &script) {
  std::map<std::string, std::string> files;
  const fs::path folder = script == "-" ? fs::path() : fs::path(script).parent_path();
  for (const std::string &given : with) {
    const fs::path path = given;
    std::error_code error;
    fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
    std::set<fs::path> places = {name};
    for (const fs::path &place : {path.lexically_normal(), fs::relative(path, folder, error)})
      if (place.is_relative() && !place.empty() && *place.begin() != "..")
        places.insert(place);
    if (!fs::is_directory(path, error)) {
      ASSIGN_OR_RETURN(std::string text, readFile(given, upstream::kInputBytesMax));
      for (const fs::path &place : places)
        files[place.string()] = text;
      continue;
    }
    ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(given));
    ASSIGN_OR_RETURN(std::vector<std::string> names, in.listBelow(kWithLevelsMax));
    names.resize(std::min(names.size(), kWithFilesMax));
    for (const std::string &inside : names) {
      ASSIGN_OR_RETURN(std::string text, in.read(inside, upstream::kInputBytesMax));
      for (const fs::path &place : places)
        files[(place / inside).string()] = text;
    }
  }
  return files;
}

std::optional<std::string> importRun(const std::string &path, BufferId script, const ScriptRun &run,
                                     const upstream::ImportOptions &options, Session &session) {
  ScriptRunner runner(path, script, run, options, session);
  std::optional<ForeignResult> result = runner.run();
  if (!result)
    return std::nullopt;
  Records records(*result, runner.name(), secretsIn(session.sources().text(script)), options,
                  session);
  ShellRun ran = records.read();
  ran.text = session.sources().text(script).str();
  ran.files.insert(options.files.begin(), options.files.end());
  reportRun(*result, records, llvm::any_of(ran.commands, upstream::startsTraining), runner.name(),
            session.diags());
  auto describe = [&](const std::string &option) {
    ran.directives.push_back({option, {}, nullptr});
  };
  ran.nodes = run.nodes;
  ran.gpusPerNode = run.gpusPerNode;
  if (run.nodes > 0)
    describe("--nodes=" + std::to_string(run.nodes));
  if (run.gpusPerNode > 0)
    describe("--gres=gpu:" + (run.gpu.empty() ? "" : run.gpu + ":") +
             std::to_string(run.gpusPerNode));
  return upstream::importMegatronRun(ran, options, session.diags());
}

} // namespace shardc::tools
