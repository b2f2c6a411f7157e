// Converts Megatron's `torch_dist` to `fsdp_dtensor` and back, streaming: at most one piece of a
// tensor is in memory at a time. Several ranks (processes or threads) share the work and write the
// same tensors as one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/GroupMap.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {

/// One of the processes that convert together. `barrier` as in save; it may be empty for one. Each
/// thread of it writes a file of its own; all ranks have as many.
struct ConvertRank {
  int rank = 0, worldSize = 1, threads = 1;
  std::function<Status(Status)> barrier = {};
};

/// Called after each piece with the bytes that this rank has read and has to read. Never by two
/// threads at once.
using ConvertProgress = std::function<void(int64_t done, int64_t total)>;

/// Classes and functions, `module.name`, that copied objects may use although this program does not
/// know them.
using KeptNames = std::vector<std::string>;

struct ConvertOptions {
  bool isSwiglu = false;                       ///< all gateable layers are gated
  std::vector<std::string> swigluModules = {}; ///< those under these modules are
  std::optional<GroupMap> groups = {};         ///< writes group metadata per parameter
  bool weightsOnly = false;                    ///< leaves optimizer state out
  bool keepsModelDtype = false;                ///< takes the model's tensors, not the fp32 masters
  bool renamesMtp = false;                     ///< `transformer_layer` becomes `mtp_model_layer`
  std::string modelPrefix = "model.module";
  /// Empty: `optimizer.state.module.module.module`, and one `module` less if the checkpoint's
  /// arguments say that its run was in fp32.
  std::string optimizerPrefix = {};
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< as in CheckpointReader::open
  KeptNames keptNames = {};
};

/// Reads the torch_dist checkpoint `in` and saves it at `out`. NotFound or InvalidInput with the
/// parameter where groups are missing or keys collide.
Status convertTorchDistToFsdp(const std::string &in, const SaveTarget &out,
                              const ConvertOptions &options, const ConvertRank &rank = {});

struct ConvertBackOptions {
  bool weightsOnly = false;
  std::optional<Element> weightType = {}; ///< of the model's tensors; as saved if not given
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< as in CheckpointReader::open
  KeptNames keptNames = {};
};

/// Reads the fsdp_dtensor checkpoint `in` and saves it as torch_dist at `out`: layers that are
/// alike and experts stacked, gated halves joined, optimizer state fully reshardable.
Status convertFsdpToTorchDist(const std::string &in, const SaveTarget &out,
                              const ConvertBackOptions &options, const ConvertRank &rank = {});

struct ReshardOptions {
  int ranks = 1;   ///< data files, each tensor cut by rows among them
  int threads = 1; ///< that write them
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  ReportSink emit = {}; ///< as in CheckpointReader::open
  KeptNames keptNames = {};
};
/// Saves any DCP checkpoint again on other ranks, with the files that lie beside its records.
/// InvalidInput for old torch_dist with flattened tensors, which only a conversion can read.
Status reshard(const std::string &in, const SaveTarget &out, const ReshardOptions &options);

} // namespace shardc::checkpoint
