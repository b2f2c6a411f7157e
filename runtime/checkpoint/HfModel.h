// Hugging Face models under Megatron-Core's names: which rows of which tensors of a hub's
// checkpoint make up each parameter, for the supported families. Import and export share this list.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/HfFile.h"

namespace shardc::checkpoint {

/// The settings of a `config.json` that determine the mapping.
struct HfConfig {
  HfFile file = {};
  HfArch arch = HfArch::Llama;
  HfLayout layout = HfLayout::Dense;
  int64_t layers = 0, hidden = 0, heads = 0, groups = 0, headDim = 0, vocab = 0;
  int64_t ffn = 0, expertFfn = 0, sharedFfn = 0, experts = 0;
  int64_t firstDenseLayers = 0, mtpLayers = 0;
  int64_t expertsEvery = 1;              ///< `decoder_sparse_step`: every n-th layer has experts
  std::vector<int64_t> denseLayers = {}; ///< sorted, which have none
  std::vector<bool> isRotated = {}; ///< of each layer, if they differ: whether it has rotations
  int64_t qLoraRank = 0;            ///< 0: queries are not low-rank
  bool isTied = false;
  HfBiases biases = {};                   ///< that fields say or the architecture has
  std::optional<Element> weightType = {}; ///< that it says; other types than fp32, bf16, fp16: none

  bool hasExperts(int64_t layer) const;
};
inline constexpr uint64_t kHfConfigBytesMax = 16 << 20;
/// Reads the text of a `config.json`, as readHfFile does. CannotConvert also for sizes that are
/// missing or do not fit together.
Result<HfConfig> parseHfConfig(std::string_view text, const std::string &path,
                               const HfReading &reading = {}, HfFaults *faults = nullptr);

/// Rows [hfRow, hfRow + rows) of a hub's tensor are rows [row, row + rows) of the parameter; -1
/// rows are all of both. Tensors of more than two dims count as a list of rows of the last dim;
/// with a `slab` they are that matrix of a list of matrices, or that vector of a list of vectors.
/// From one row of the hub's to the next are `step` rows.
struct HfSegment {
  std::string hf;
  int64_t hfRow = 0, row = 0, rows = -1;
  int64_t slab = -1, step = 1;
};

struct HfParam {
  std::string name; ///< Megatron-Core's
  std::vector<HfSegment> segments;
  std::vector<HfSegment> stacked = {}; ///< other names that may hold the same
  bool isOptional = false;             ///< biases and norms that some models have
  bool isTransposed = false;           ///< the hub stores [in, out]
  bool isVocab = false;                ///< rows are padded
  /// If not empty: the shape of zeros that an export writes, since the checkpoint has no such
  /// parameter.
  std::vector<int64_t> zeros = {};
  bool isOnlyWritten = false; ///< runs have no such parameter: an import leaves it out
  int64_t predictor = -1;     ///< number of the multi-token prediction layer that it is of
};

/// Biases that models of an architecture have, whatever their files say.
HfBiases hfConstantBiases(HfArch arch);
/// Biases of a model by the names of its tensors; of the feed-forward layers, as the file says.
HfBiases hfBiasesOf(const HfConfig &config,
                    const std::function<bool(const std::string &)> &isThere);

/// All parameters that a model of this kind may have, in order of layers.
std::vector<HfParam> hfParams(const HfConfig &config);
/// Leaves out multi-token prediction layers (`mtp.layers.N`) without any tensor: models that
/// transformers saved have none, whatever their config.json says. Gives the number of the others.
int64_t dropAbsentPredictors(std::vector<HfParam> &params,
                             const std::function<bool(const HfParam &)> &isThere);
/// Whether a hub's tensor has no counterpart by design: masks, frequencies, tied or doubled heads.
bool isDroppedHfName(const HfConfig &config, std::string_view name);
/// The name of the tensor with the scales of another tensor's fp8 blocks of 128 x 128.
std::string scaleNameOf(std::string_view name);

} // namespace shardc::checkpoint
