#include "runtime/tools/Options.h"

#include <charconv>

#include <fmt/format.h>

#include "runtime/base/CommandLine.h"
#include "runtime/base/ElasticSizes.h"
#include "runtime/base/Socket.h"
#include "runtime/run/Metrics.h"
#include "runtime/tools/Backends.h"

namespace shardc::tools {
namespace {

/// Without a launcher, this machine starts a process for each spare.
constexpr int64_t kSparesMax = 1024;

/// Adds the options for restarts after a fault. `sizes` receives the text of --elastic.
void addRestarts(cli::Program &app, RunToolOptions &options, std::string &sizes,
                 const cli::Option &simulated) {
  app.option("--restarts", options.restarts,
             "restart from the newest save after a fault, at most N times")
      .nonNegative()
      .excludes(simulated);
  app.option("--elastic", sizes,
             "numbers of ranks with which the run may continue, largest first, as 8,6,4; the plan "
             "file has a plan for each")
      .excludes(simulated);
  app.option("--spares", options.spares,
             "spare processes, which wait to take over ranks that are lost")
      .between(0, kSparesMax, "COUNT")
      .excludes(simulated);
}

} // namespace

namespace {

/// Adds the options for measurements, which are used instead of running a plan.
void addMeasuring(cli::Program &app, cli::Option path, RunToolOptions &options) {
  cli::Option measure =
      app.flag("--measure", options.measure,
               "instead of running a plan, measures this machine: products, attention, copies and "
               "collectives");
  app.option("-o,--output", options.output, "file of rates that --measure writes");
  cli::Option doctor = app.flag("--doctor", options.doctor,
                                "instead of running a plan, tests memory, and names ranks that are "
                                "slower than the others");
  measure.excludes(doctor);
  measure.excludes(path);
  doctor.excludes(path);
  app.option("--against", options.against, "file of rates that --doctor expects");
  app.option("--ranks", options.ranks,
             "ranks of --measure and --doctor on this machine; default: one for each GPU")
      .positive();
  app.flag("--quick", options.isQuick, "--measure takes one size of each series");
  app.option("--slower", options.slowerPercent,
             "--doctor names a rank that is this many percent below the median")
      .between(1, 99, "PERCENT")
      .showsDefault();
  app.option("--below", options.belowPercent,
             "--doctor names the machine if it is this many percent below what is expected")
      .between(1, 99, "PERCENT")
      .showsDefault();
  app.option("--memory-gib", options.memoryGiB,
             "GiB of each device that --doctor tests; default: up to 48 of what is free")
      .positive();
}

void addDumps(cli::Program &app, RunToolOptions &options) {
  app.option("--dump", options.dumps,
             "writes SEGMENT:VALUE or SEGMENT:@CELL to files; a final * matches any ending");
  app.option("--dump-dir", options.dumpFolder, "folder for --dump");
  app.option("--dump-step", options.dumpStep, "step in which --dump writes values").positive();
}

void addHidden(cli::Program &app, RunToolOptions &options) {
  app.option("--continue", options.continueWith,
             "continues a text with a plan of forward bodies, by the settings of this file")
      .hidden(); // used by shardc generate
  app.option("--nodes-ahead", options.nodesAhead,
             "largest number of graph nodes queued on a GPU; 0: no limit")
      .hidden() // used for measurements
      .nonNegative();
  app.option("--product-sms", options.productMultiprocessors,
             "multiprocessors for products that run concurrently with NCCL's kernels; 0: all")
      .hidden()
      .nonNegative();
  app.option("--products-beside", options.productsBeside,
             "number of products after each NCCL collective to which --product-sms applies")
      .hidden()
      .positive();
}

/// Parses ascending numbers separated by commas.
std::optional<std::vector<int64_t>> parseRanks(std::string_view text) {
  std::vector<int64_t> ranks;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    int64_t rank = 0;
    auto [after, error] = std::from_chars(at, end, rank);
    if (error != std::errc() || rank < 0 || (!ranks.empty() && rank <= ranks.back()))
      return std::nullopt;
    ranks.push_back(rank);
    if (after == end)
      return ranks;
    if (*after != ',')
      return std::nullopt;
    at = after + 1;
  }
}

void addTrace(cli::Program &app, RunToolOptions &options, std::string &ranks) {
  app.option("--trace", options.trace, "writes a trace of some steps to this file");
  app.option("--trace-ranks", ranks,
             "ranks that write a trace, as 0,4; each of several has its own file; default: 0");
}

/// Reads FIRST-LAST. Returns why it is refused; empty if it is not.
std::string readPorts(const std::string &text) {
  constexpr int kPortMax = 65535;
  int first = 0, last = 0;
  const char *end = text.data() + text.size();
  auto [dash, error] = std::from_chars(text.data(), end, first);
  bool isGood = error == std::errc() && dash != end && *dash == '-';
  if (isGood) {
    auto [after, wrong] = std::from_chars(dash + 1, end, last);
    isGood =
        wrong == std::errc() && after == end && first >= 1 && last >= first && last <= kPortMax;
  }
  if (!isGood)
    return fmt::format("--ports is '{}'; it takes two numbers from 1 to {}, as 30000-30031", text,
                       kPortMax);
  limitPorts(first, last);
  return "";
}

/// Reads the options that are lists. Returns why one is refused; empty if none is.
std::string readLists(const std::string &sizes, const std::string &traceRanks,
                      const std::string &ports, RunToolOptions &options) {
  if (!ports.empty())
    if (std::string why = readPorts(ports); !why.empty())
      return why;
  if (!sizes.empty()) {
    Result<std::vector<int64_t>> parsed = parseElasticSizes(sizes);
    if (!parsed.isOk())
      return std::string(parsed.status().message());
    options.elastic = std::move(*parsed);
  }
  if (run::metricsCommand(options.metrics) && (options.restarts > 0 || options.isElastic()))
    return "'--metrics=| COMMAND' cannot be combined with restarts, which write lines too: write a "
           "file, and read it with 'tail -F FILE | COMMAND'";
  if (traceRanks.empty())
    return "";
  std::optional<std::vector<int64_t>> parsed = parseRanks(traceRanks);
  if (!parsed)
    return fmt::format("--trace-ranks is '{}'; it takes ranks with commas between them, smallest "
                       "first, as 0,4",
                       traceRanks);
  if (options.trace.empty())
    return "--trace-ranks needs --trace=FILE";
  options.traceRanks = std::move(*parsed);
  return "";
}

} // namespace

/// Checks that concern several options, such as a missing plan, follow the parse.
std::optional<RunToolOptions> parseCommandLine(int argc, char **argv, int &status) {
  RunToolOptions options;
  cli::Program app("Runs a placed plan.", "shardc-run");
  cli::Option path = app.option("plan", options.planPath, "the plan's file");
  cli::Option fd =
      app.option("--plan-fd", options.planFd, "reads the plan from this file descriptor")
          .nonNegative();
  path.excludes(fd);
  app.option("--allow-env", options.allowedVariables,
             "variable that the plan may set although it could load code")
      .repeatableOneByOne();
  app.option("--refuse", options.refuse,
             "joins a launched job only to report to the other ranks why this one cannot run");
  app.option("--backend", options.backend, "backend; default: the plan's").oneOf(backendNames());
  app.option("--metrics", options.metrics,
             "writes one JSON object per step to this file; '| COMMAND' gives them to a command");
  std::string traceRanks;
  addTrace(app, options, traceRanks);
  app.flag("--check", options.check,
           "runs op by op; stops at the first result that is not finite, or write out of bounds");
  app.flag("--explain", options.explain, "prints the kernel of each op without running the plan");
  app.flag("--any-reference", options.anyReference,
           "takes the log-probabilities of pairs by another model than the one with which training "
           "begins");
  app.flag("--no-graph", options.noGraph, "launches every op separately, without graphs");
  app.flag("--timings", options.timings, "prints how long each part of the start took");
  addHidden(app, options);
  app.flag("--processes", options.processes,
           "starts a process for each rank on this machine; not needed under a launcher");
  cli::Option simulated =
      app.option(
             "--simulate-ranks", options.simulateRanks,
             "runs all ranks of a plan for another backend on this machine; the number must be the "
             "plan's")
          .positive();
  std::string sizes, ports;
  app.option("--ports", ports,
             "FIRST-LAST: listens only on these ports, apart from the one where ranks meet");
  addRestarts(app, options, sizes, simulated);
  app.option("--workers", options.workers, "threads that execute ops; default: one per core")
      .positive();
  app.option("--seed-schedule", options.scheduleSeed,
             "runs ready ops in random order, with poisoned and guarded memory");
  addDumps(app, options);
  addMeasuring(app, path, options);
  std::string form = "text";
  app.option("--diag-format", form,
             "form of messages; json: one object per line on standard output")
      .oneOf({"text", "json"});
  app.versionFlag("--version", versionLines, "print version, backends and libraries");
  std::optional<int> ended = app.parse(argc, argv);
  bool needsPlan = options.refuse.empty() && !options.measure && !options.doctor;
  if (!ended && options.planPath.empty() && options.planFd < 0 && needsPlan)
    ended = app.refuseWithout("plan");
  if (!ended)
    if (std::string why = readLists(sizes, traceRanks, ports, options); !why.empty())
      ended = app.refuse(why);
  options.console.isJson = form == "json";
  if (!ended)
    return options;
  status = *ended;
  return std::nullopt;
}

} // namespace shardc::tools
