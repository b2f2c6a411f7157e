// Converts Megatron's `torch_dist` to `fsdp_dtensor` and back in a streaming fashion: each thread
// has at most one piece of a tensor in memory. Several ranks (processes or threads) share the work.
// They write the same tensors as one rank would.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/GroupMap.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {

/// One of the processes that convert together. `barrier` is that of save(); it may be empty if
/// there is one process. Each thread of a process writes a file of its own. All processes have
/// equally many threads.
struct ConvertRank {
  int rank = 0, worldSize = 1, threads = 1;
  std::function<Status(Status)> barrier = {};
};

/// Called after each piece with the number of bytes that this rank has read and that it must read
/// in total. Calls never overlap.
using ConvertProgress = std::function<void(int64_t done, int64_t total)>;

/// Names `module.name` of classes and functions that copied objects may contain although this
/// program does not know them.
using KeptNames = std::vector<std::string>;

struct ConvertOptions {
  bool isSwiglu = false;                       ///< whether all gateable layers are gated
  std::vector<std::string> swigluModules = {}; ///< modules whose gateable layers are gated
  std::optional<GroupMap> groups = {};         ///< if set, group metadata is written per parameter
  bool weightsOnly = false;                    ///< leaves out optimizer state
  bool keepsModelDtype = false;                ///< uses the model's tensors, not the fp32 masters
  bool renamesMtp = false;                     ///< renames `transformer_layer` to `mtp_model_layer`
  std::string modelPrefix = "model.module";
  /// Empty: `optimizer.state.module.module.module`, or with one `module` less if the checkpoint's
  /// arguments say that the run was in fp32.
  std::string optimizerPrefix = {};
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< see CheckpointReader::open
  KeptNames keptNames = {};
};

/// Reads the torch_dist checkpoint `in` and saves it at `out`. NotFound or InvalidInput, with the
/// parameter, if groups are missing or keys collide.
Status convertTorchDistToFsdp(const std::string &in, const SaveTarget &out,
                              const ConvertOptions &options, const ConvertRank &rank = {});

struct ConvertBackOptions {
  bool weightsOnly = false;
  std::optional<Element> weightType = {}; ///< type of the model's tensors; not set: the saved type
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< see CheckpointReader::open
  KeptNames keptNames = {};
};

/// Reads the fsdp_dtensor checkpoint `in` and saves it as torch_dist at `out`: stacks experts and
/// equal layers, joins gated halves, and writes fully reshardable optimizer state.
Status convertFsdpToTorchDist(const std::string &in, const SaveTarget &out,
                              const ConvertBackOptions &options, const ConvertRank &rank = {});

struct ReshardOptions {
  int ranks = 1;   ///< number of data files; each tensor is divided among them by rows
  int threads = 1; ///< number of threads that write them
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< see CheckpointReader::open
  KeptNames keptNames = {};
};
/// Saves any DCP checkpoint again for another number of ranks, with its other files. InvalidInput
/// for old torch_dist checkpoints with flattened tensors, which only a conversion can read.
Status reshard(const std::string &in, const SaveTarget &out, const ReshardOptions &options);

} // namespace shardc::checkpoint
