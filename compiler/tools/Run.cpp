// shardc run: compiles a recipe in memory, or reads a plan, and executes shardc-run from its own
// folder. The runner replaces this process and receives the plan through a file descriptor.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>

#include "compiler/predict/DeviceTable.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/ElasticPlans.h"
#include "compiler/tools/GroupMapOf.h"
#include "compiler/tools/Nodes.h"
#include "compiler/tools/Runner.h"
#include "compiler/tools/SamplePlan.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Launcher.h"
#include "runtime/base/Notice.h"
#include "runtime/base/Reports.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct RunCommand {
  CommonOptions common;
  std::string program;
  std::string backend, metrics, trace, traceRanks; ///< the plan's own backend if empty
  std::string groupFolder; ///< folder for the optimizer group of each parameter; empty: not written
  int64_t simulateRanks = 0, restarts = 0, spares = 0;
  ElasticOption elastic;
  NodeOptions nodes;
  std::string ports;
  bool check = false, explain = false, noGraph = false, anyReference = false, processes = false,
       timings = false;
};

int fail(const std::string &what) {
  llvm::errs() << "shardc: error: cannot " << what << ": " << std::strerror(errno) << "\n";
  return kRunFailed;
}

void onSignal(int) {
  writeNotice(report::StoppedBeforeSteps, "shardc");
  ::_exit(kFine);
}

/// Blocks SIGINT and SIGTERM; the runner unblocks them.
void blockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
}

/// Lets a signal during compilation end the process, since no work is lost. A rank that a launcher
/// started first connects to the others.
void endOnSignals() {
  ::signal(SIGINT, onSignal);
  ::signal(SIGTERM, onSignal);
  if (findLauncher(Environment(::getenv)))
    blockSignals();
}

/// Replaces this process by the runner, so that the parent process sees the signals, the end and
/// the exit status of the run itself.
int execute(const std::string &runner, std::vector<std::string> arguments) {
  std::fflush(nullptr);
  blockSignals();
  return become(runner, std::move(arguments));
}

/// Whether a launcher started this process as a rank other than the first. Only the first one
/// prints messages.
bool isFollower() {
  Environment environment(::getenv);
  const LauncherVariables *launcher = findLauncher(environment);
  return launcher && environment.has(launcher->rank) && environment.text(launcher->rank) != "0";
}

/// Captures standard error while it lives, if requested.
class StderrCapture {
public:
  explicit StderrCapture(bool isWanted) {
    if (!isWanted)
      return;
    taken_ = ::memfd_create("messages", MFD_CLOEXEC);
    before_ = ::dup(STDERR_FILENO);
    ::dup2(taken_, STDERR_FILENO);
  }
  ~StderrCapture() { end(); }
  /// The last screens of the captured text.
  std::string end() {
    if (before_ < 0)
      return "";
    llvm::errs().flush();
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    before_ = -1;
    std::string text(kBytesMax, '\0');
    ssize_t bytes = ::pread(taken_, text.data(), text.size(), 0);
    ::close(taken_);
    text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return text;
  }

private:
  static constexpr size_t kBytesMax = 16 << 10;
  int taken_ = -1, before_ = -1;
};

/// The device of the recipe, if it is not the host. Prints no messages.
std::optional<config::Gpu> otherDevice(const CommonOptions &common) {
  SourceManager sources;
  DiagEngine diags(sources);
  std::optional<config::Config> config = config::loadConfig(sources, diags, common.load);
  std::optional<config::Gpu> gpu = config ? config->derived().gpu : std::nullopt;
  return gpu && !predict::device(*gpu).isHost() ? gpu : std::nullopt;
}

/// A plan is for one device, so with `--backend=host` the recipe is compiled for the host, whatever
/// device it names.
void compileForHost(RunCommand &options) {
  std::optional<config::Gpu> gpu = otherDevice(options.common);
  if (!gpu)
    return;
  options.common.load.sets.push_back("cluster.gpu=host");
  if (!isFollower())
    llvm::errs() << "shardc: the recipe is for " << config::spelling(*gpu)
                 << "; it is compiled for the host ('--set cluster.gpu=host')\n";
}

bool isPlan(const std::string &input) {
  return std::filesystem::path(input).extension() == ".plan";
}

/// The reason why a file that the run would write must not be overwritten; empty if there is none.
std::string whyFilesAreKept(const RunCommand &options, const std::vector<std::string> &inputs) {
  if (!options.trace.empty() && options.trace == options.metrics)
    return "'--metrics' and '--trace' name the same file '" + options.trace + "'";
  std::string why = whyKept(options.metrics, inputs);
  return why.empty() ? whyKept(options.trace, inputs) : why;
}

/// Whether the recipe names its data. Random tokens must be requested explicitly, because a user
/// who forgot the data does not want to train on them.
bool namesData(const config::Config &config, DiagEngine &diags) {
  if (config.isWritten(config::Opt::DatasetKind) ||
      !config.is(config::Opt::DatasetKind, config::DatasetKind::Synthetic))
    return true;
  diags.report(diag::NoDataset, SourceRange(config.bodyEnd()))
      .note(diag::WriteFiles, SourceRange())
      .note(diag::WriteSynthetic, SourceRange());
  return false;
}

/// Compiles the recipe. Sets the argument that passes the plan to the runner, or returns the status
/// to exit with.
ExitStatus compileRecipe(const RunCommand &options, std::string &argument) {
  Session session(options.common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load);
  std::optional<Compiled> compiled;
  if (config)
    if (std::string why = whyFilesAreKept(options, filesOf(*config, session.sources()));
        !why.empty())
      return refuseUsage(why);
  if (config && (session.diags().hasErrors() || namesData(*config, session.diags())))
    compiled = compile(*config, session.sources(), session.diags(), options.common, {});
  std::optional<std::vector<Compiled>> smaller;
  std::optional<std::string> samples;
  if (compiled)
    smaller = compileSizes(*config, options.elastic.sizes, options.common, session.diags());
  if (smaller)
    samples = sampleText(*config, options.common, session.diags());
  if (ExitStatus status = session.finish(); status != kFine || !samples)
    return status == kFine ? kInputErrors : status;
  if (Status status = dumpGroupMap(options.groupFolder, compiled->plan); !status.isOk())
    return static_cast<ExitStatus>(finishCkpt(status));
  std::string text = planText(*compiled);
  for (const Compiled &each : *smaller)
    text += planText(each);
  text += *samples;
  int fd = makeTextFd(text);
  if (fd < 0)
    return static_cast<ExitStatus>(fail("pass the plan to the runtime"));
  argument = "--plan-fd=" + std::to_string(fd);
  return kFine;
}

/// The processes of this node: those of the place, of the recipe or of the plan, and its spares.
/// One if the input has errors, which that one reports.
int64_t ranksOfNode(const RunCommand &options, const NodePlace &place) {
  int64_t ranks = place.ranks;
  if (ranks == 0 && isPlan(options.common.load.path)) {
    Result<std::string> text = readFile(options.common.load.path, plan::limits::kTextBytesMax);
    auto plans = text.isOk() ? plan::parseJob(*text, options.common.load.path)
                             : Result<std::vector<plan::Plan>>(text.status());
    ranks = plans.isOk() ? plans->front().worldSize() / place.nodes : 1;
  } else if (ranks == 0) {
    SourceManager sources;
    DiagEngine diags(sources);
    std::optional<config::Config> config = config::loadConfig(sources, diags, options.common.load);
    ranks = config ? config->derived().gpusPerNode : 1;
  }
  return std::max<int64_t>(ranks, 1) + options.spares / place.nodes;
}

/// Starts the ranks of this node, if it is one of several, and gives its size to the recipe.
/// Returns the exit status in the process that has started them.
std::optional<int> startNode(RunCommand &options) {
  ExitStatus status = kFine;
  std::optional<NodePlace> place = placeOfNode(options.nodes, status);
  if (!place)
    return status == kFine ? std::nullopt : std::optional<int>(status);
  if (options.processes || options.simulateRanks > 0 || options.explain)
    return refuseUsage("'--processes', '--simulate-ranks' and '--explain' are for one node");
  if (options.spares % place->nodes != 0)
    return refuseUsage("'--spares' counts those of all nodes: give a multiple of " +
                       std::to_string(place->nodes));
  std::vector<std::string> &sets = options.common.load.sets;
  auto give = [&sets](const std::string &path, int64_t value) {
    auto isOf = [&path](const std::string &set) { return set.starts_with(path + "="); };
    if (std::ranges::none_of(sets, isOf))
      sets.push_back(path + "=" + std::to_string(value));
  };
  if (!isPlan(options.common.load.path)) {
    give("cluster.nodes", place->nodes);
    if (place->ranks > 0)
      give("cluster.gpus_per_node", place->ranks);
  }
  if (place->nodes == 1)
    return std::nullopt;
  return startRanks(*place, ranksOfNode(options, *place));
}

/// Compiles or finds the plan, translates the options, and replaces this process by shardc-run.
/// Ranks of a launcher other than the first keep their messages to themselves; if the recipe does
/// not compile there, they join the job only to say so.
int runRun(RunCommand &options) {
  if (std::optional<int> ended = startNode(options))
    return *ended;
  endOnSignals();
  if (ExitStatus status = options.elastic.read(); status != kFine)
    return status;
  std::vector<std::string> arguments;
  const std::string &input = options.common.load.path;
  if (isPlan(input)) {
    if (!options.common.load.sets.empty() || !options.common.load.overlays.empty()) {
      return refuseUsage("'--set' and '--overlay' change recipes; '" + input +
                         "' is a compiled plan");
    }
    if (std::string why = whyFilesAreKept(options, {input}); !why.empty())
      return refuseUsage(why);
    if (Status status = dumpGroupMapOf(options.groupFolder, input); !status.isOk())
      return finishCkpt(status);
    arguments.push_back(input);
  } else {
    if (options.backend == "host" && options.simulateRanks == 0)
      compileForHost(options);
    bool follows = isFollower();
    StderrCapture captured(follows);
    arguments.emplace_back();
    ExitStatus status = compileRecipe(options, arguments.back());
    std::string messages = captured.end();
    if (status != kFine && follows) // the first rank compiles it as well and reports the errors
      return execute(findRunner(options.program),
                     {"--refuse=the recipe does not compile here:\n" + messages});
    if (status != kFine)
      return status;
  }
  if (options.common.diagFormat == "json")
    arguments.push_back("--diag-format=json");
  passOn(arguments, "--backend", options.backend);
  for (const std::string &name : options.common.load.allowedVariables)
    passOn(arguments, "--allow-env", name);
  passOn(arguments, "--trace", options.trace);
  passOn(arguments, "--trace-ranks", options.traceRanks);
  passOn(arguments, "--metrics", options.metrics);
  passOnFlag(arguments, "--check", options.check);
  passOnFlag(arguments, "--explain", options.explain);
  passOnFlag(arguments, "--any-reference", options.anyReference);
  passOnFlag(arguments, "--no-graph", options.noGraph);
  passOnFlag(arguments, "--timings", options.timings);
  passOnFlag(arguments, "--processes", options.processes);
  passOn(arguments, "--ports", options.ports);
  passOn(arguments, "--restarts", options.restarts);
  passOn(arguments, "--elastic", options.elastic.text);
  passOn(arguments, "--spares", options.spares);
  passOn(arguments, "--simulate-ranks", options.simulateRanks);
  return execute(findRunner(options.program), std::move(arguments));
}

} // namespace

void addRun(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<RunCommand>();
  options->program = program;
  cli::Command &command =
      app.addCommand("run", "compile a recipe and train, or run a compiled plan")
          .alsoCalled({"train", "start", "launch", "execute"});
  options->common.addTo(command);
  command.option("--trace", options->trace, "file for a trace of some steps");
  command.option("--trace-ranks", options->traceRanks,
                 "ranks that write a trace, as 0,4; each of several has its own file; default: 0");
  command
      .option("--backend", options->backend,
              "backend; default: the recipe's; 'host' compiles any recipe for the host; 'null' "
              "only binds and launches any plan")
      .oneOf({"host", "cuda", "null"});
  command.option("--metrics", options->metrics,
                 "file for metrics, one JSON object per step; '| COMMAND' gives them to a command");
  command.option("--dump-param-to-param-group-map", options->groupFolder,
                 "folder for the map of optimizer groups, as 'ckpt group-map' writes it");
  command.flag("--check", options->check, "run op by op and check results and bounds of buffers");
  command.flag("--explain", options->explain, "print the kernel of every op");
  command.flag("--processes", options->processes, "start a process for each rank");
  addNodes(command, options->nodes);
  command.option("--ports", options->ports,
                 "FIRST-LAST: listen only on these ports, apart from the one where ranks meet");
  cli::Option restarts = command
                             .option("--restarts", options->restarts,
                                     "restart from the newest save after a fault, at most N times")
                             .nonNegative();
  options->elastic.addTo(command);
  command
      .option("--spares", options->spares,
              "spare processes, which wait to take over ranks that are lost")
      .nonNegative();
  command.flag("--any-reference", options->anyReference,
               "take the log-probabilities of pairs by another model than the one with which "
               "training begins");
  command.flag("--no-graph", options->noGraph, "launch every op separately, without graphs");
  command.flag("--timings", options->timings, "print how long each part of the start took");
  cli::Option simulated = command
                              .option("--simulate-ranks", options->simulateRanks,
                                      "run all ranks of a plan for another backend on this machine")
                              .positive();
  restarts.excludes(simulated);
  command.onUse([options, &status] { status = runRun(*options); });
}

} // namespace shardc::tools
