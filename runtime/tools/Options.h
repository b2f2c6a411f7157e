// The command line of shardc-run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/Fault.h"
#include "runtime/tools/Console.h"

namespace shardc::tools {

struct RunToolOptions {
  std::string planPath;
  int planFd = -1;     ///< instead of a path
  std::string recipe;  ///< that the plan is from; empty where it was given as a file
  std::string backend; ///< empty: what the plan needs
  std::string metrics;
  std::string trace;
  std::vector<int64_t> traceRanks = {0}; ///< each writes a trace; ascending
  bool check = false;
  bool explain = false;
  bool noGraph = false;
  bool timings = false;         ///< reports how long the parts of the start took
  double planSeconds = 0;       ///< in which the plan was read and verified
  bool processes = false;       ///< one per rank
  int64_t restarts = 0;         ///< how often ranks may start again after a fault
  std::vector<int64_t> elastic; ///< numbers of ranks that the job may have, largest first
  int64_t spares = 0;           ///< processes that wait to take the place of others
  /// The job may go on as other ranks than it began with.
  bool isElastic() const { return !elastic.empty() || spares > 0; }
  /// Nodes of graphs that may be queued on a GPU; 0: as many as come, and a launch that finds the
  /// queue full waits inside of the driver, which costs llama3_8b on four GPUs 1.3 % of its step.
  int64_t nodesAhead = 2048;
  /// Multiprocessors for products beside NCCL's kernels, and how many products after each
  /// collective are meant.
  int32_t productMultiprocessors = 0;
  int productsBeside = 1;
  std::string refuse; ///< why this rank of a launched job cannot run; instead of a plan
  int64_t simulateRanks = 0;
  int workers = 0;
  std::optional<uint64_t> scheduleSeed;
  std::vector<std::string> dumps;
  std::string dumpFolder = "dump";
  int64_t dumpStep = 1;
  bool measure = false; ///< instead of a plan: measures this machine, and writes `output`
  bool doctor = false;  ///< instead of a plan: looks for a slow or faulty rank
  std::string output;   ///< the file of --measure
  std::string against;  ///< a file of rates that --doctor expects
  int64_t ranks = 0;    ///< of --measure and --doctor; 0: one for each GPU, or one on the host
  bool isQuick = false; ///< --measure takes one size of each series
  int64_t slowerPercent = 10; ///< below the median, from which on --doctor names a rank
  int64_t belowPercent = 25;  ///< below what is expected, from which on it names the machine
  int64_t memoryGiB = 0;      ///< that --doctor tests on each device; 0: up to 48 of what is free
  run::Fault fault;           ///< SHARDC_FAULT
  Console console;            ///< where reports go
};

/// The file that a rank writes its trace to; empty if it writes none. One rank writes `trace`
/// itself; each of several ranks has its number in the name: 'a.json' becomes 'a.rank2.json'.
std::string traceFileOf(const RunToolOptions &options, int64_t rank);

/// Reads the command line. Sets `status` to the exit status where the program is to end here: 0
/// after --help, 2 after a usage error, which has been printed.
std::optional<RunToolOptions> parseCommandLine(int argc, char **argv, int &status);

} // namespace shardc::tools
