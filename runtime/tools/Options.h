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
  int planFd = -1;                           ///< instead of a path
  std::vector<std::string> allowedVariables; ///< that plans may set although they could load code
  std::string backend;                       ///< empty: the one that the plan needs
  std::string metrics;
  std::string trace;
  std::vector<int64_t> traceRanks = {0}; ///< ascending; each writes a trace
  bool check = false;
  bool explain = false;
  bool noGraph = false;
  bool anyReference = false;    ///< takes log-probabilities of another reference model
  bool timings = false;         ///< reports the durations of the parts of the start
  double planSeconds = 0;       ///< time in which the plan was read and verified
  bool processes = false;       ///< whether each rank has its own process
  int64_t restarts = 0;         ///< most restarts of the ranks after faults
  std::vector<int64_t> elastic; ///< permitted numbers of ranks, descending
  int64_t spares = 0;           ///< processes that wait to replace others
  /// Whether the job may continue with other ranks than those with which it began.
  bool isElastic() const { return !elastic.empty() || spares > 0; }
  /// Limit of graph nodes queued on a GPU; 0: no limit. A launch that finds the queue full waits
  /// inside the driver, which costs llama3_8b on four GPUs 1.3 % of its step.
  int64_t nodesAhead = 2048;
  /// Number of multiprocessors for products that overlap NCCL's kernels, and the number of products
  /// after each collective that this applies to.
  int32_t productMultiprocessors = 0;
  int productsBeside = 1;
  std::string refuse; ///< why this rank of a launched job cannot run; instead of a plan
  int64_t simulateRanks = 0;
  int workers = 0;
  std::optional<uint64_t> scheduleSeed;
  std::vector<std::string> dumps;
  std::string dumpFolder = "dump";
  int64_t dumpStep = 1;
  bool measure = false; ///< instead of a plan: measures this machine and writes `output`
  bool doctor = false;  ///< instead of a plan: looks for a slow or faulty rank
  std::string output;   ///< the file of --measure
  std::string against;  ///< a file of rates with which --doctor compares
  int64_t ranks = 0; ///< ranks of --measure and --doctor; 0: one for each GPU, or one on the host
  std::string continueWith;   ///< file of settings: continues a text instead of running the plan
  bool isQuick = false;       ///< --measure takes one size of each series
  int64_t slowerPercent = 10; ///< --doctor names ranks that are slower than the median by this
  int64_t belowPercent = 25;  ///< the same for a machine below the rate that is expected of it
  int64_t memoryGiB = 0;      ///< tested by --doctor on each device; 0: up to 48 of free memory
  run::Fault fault;           ///< SHARDC_FAULT
  Console console;            ///< receives reports
};

/// Returns the file to which a rank writes its trace; empty if it writes none. A single tracing
/// rank writes `trace` itself; several ranks add their numbers to the name: 'a.json' becomes
/// 'a.rank2.json'.
std::string traceFileOf(const RunToolOptions &options, int64_t rank);

/// Parses the command line. If the program is to end here, returns nothing and sets `status` to the
/// exit status: 0 after --help, 2 after a usage error, which has been printed.
std::optional<RunToolOptions> parseCommandLine(int argc, char **argv, int &status);

} // namespace shardc::tools
