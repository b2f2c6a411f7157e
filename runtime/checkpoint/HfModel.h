// Maps Hugging Face models to Megatron-Core's names: which rows of which tensors form each
// parameter, for the supported families. Import and export share this list.
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

/// What mixes the positions of a layer, if something does.
enum class HfMixer : uint8_t { None, Attention, ShortConv, DeltaNet, Mamba };

/// The settings of a `config.json` that determine the mapping.
struct HfConfig {
  HfFile file = {};
  HfArch arch = HfArch::Llama;
  HfLayout layout = HfLayout::Dense;
  int64_t layers = 0, hidden = 0, heads = 0, groups = 0, headDim = 0, vocab = 0;
  int64_t ffn = 0, expertFfn = 0, sharedFfn = 0, experts = 0;
  int64_t firstDenseLayers = 0, mtpLayers = 0;
  int64_t expertsEvery = 1;              ///< `decoder_sparse_step`: every n-th layer has experts
  std::vector<int64_t> denseLayers = {}; ///< layers without experts, sorted
  std::vector<bool> isRotated = {};      ///< by layer, if they differ: has rotary embeddings
  /// By layer; empty if the architecture always has attention.
  std::vector<HfMixer> mixers = {};
  bool hasOnePart = false; ///< each layer has either a mixer or a feed-forward part
  int64_t layersOfOne = 1; ///< how many layers are one layer of the file
  /// Of linear attention and of Mamba-2 mixers; 0: the architecture has none.
  int64_t keyHeads = 0, valueHeads = 0, keyDim = 0, valueDim = 0;
  int64_t qLoraRank = 0; ///< 0: queries are not low-rank
  bool isTied = false;
  HfBiases biases = {};                   ///< requested by fields or constant for the architecture
  std::optional<Element> weightType = {}; ///< type in the file, if it is fp32, bf16 or fp16

  bool hasExperts(int64_t layer) const;
  HfMixer mixerOf(int64_t layer) const {
    return mixers.empty() ? HfMixer::Attention : mixers[static_cast<size_t>(layer)];
  }
  bool hasFeedForward(int64_t layer) const {
    return !hasOnePart || mixerOf(layer) == HfMixer::None;
  }
};
inline constexpr uint64_t kHfConfigBytesMax = 16 << 20;
/// Reads the text of a `config.json` like readHfFile. CannotConvert also for sizes that are missing
/// or do not match.
Result<HfConfig> parseHfConfig(std::string_view text, const std::string &path,
                               const HfReading &reading = {}, HfFaults *faults = nullptr);

/// Rows [hfRow, hfRow + rows) of a hub's tensor are rows [row, row + rows) of the parameter; if
/// `rows` is -1, all rows of both. A tensor with more than two dimensions counts as a list of rows
/// of its last dimension. With a `slab`, only that matrix of a stack of matrices, or that vector of
/// a stack of vectors, is meant. Consecutive rows are `step` rows apart in the hub's tensor.
struct HfSegment {
  std::string hf;
  int64_t hfRow = 0, row = 0, rows = -1;
  int64_t slab = -1, step = 1;
};

/// A parameter of shardc, and the rows of Hugging Face's tensors from which it is made.
struct HfParam {
  std::string name; ///< name in Megatron-Core
  std::vector<HfSegment> segments;
  std::vector<HfSegment> stacked = {}; ///< other tensors that may contain the same rows
  bool isOptional = false;             ///< biases and norms that only some models have
  bool isTransposed = false;           ///< the hub stores [in, out]
  bool isFilter = false;               ///< the hub stores [rows, 1, columns]
  bool isVocab = false;                ///< its rows are padded
  /// If not empty: an export writes zeros of this shape, since checkpoints lack the parameter.
  std::vector<int64_t> zeros = {};
  bool isOnlyWritten = false; ///< an import omits it, since runs have no such parameter
  int64_t predictor = -1;     ///< number of its multi-token prediction layer; -1: none
};

/// The name of the table of input embeddings.
std::string hfEmbeddings(HfArch arch);
/// Whether models of the architecture have no output layer of their own.
bool isAlwaysTied(HfArch arch);
/// The biases that every model of an architecture has.
HfBiases hfConstantBiases(HfArch arch);
/// The biases of a model according to the names of its tensors; for feed-forward layers, according
/// to the file.
HfBiases hfBiasesOf(const HfConfig &config,
                    const std::function<bool(const std::string &)> &isThere);

/// All parameters that a model of this kind may have, sorted by layer.
std::vector<HfParam> hfParams(const HfConfig &config);
/// Removes the parameters of multi-token prediction layers (`mtp.layers.N`) that have no tensors,
/// since models saved by transformers lack them regardless of config.json. Returns the number of
/// remaining layers.
int64_t dropAbsentPredictors(std::vector<HfParam> &params,
                             const std::function<bool(const HfParam &)> &isThere);
/// Whether a hub's tensor intentionally has no counterpart: masks, frequencies, tied or duplicated
/// heads.
bool isDroppedHfName(const HfConfig &config, std::string_view name);
/// The name of the tensor with the scales of another tensor's fp8 blocks of 128 x 128.
std::string scaleNameOf(std::string_view name);

} // namespace shardc::checkpoint
