// Hugging Face models to `fsdp_dtensor` checkpoints and back, streaming.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/HfModel.h"

namespace shardc::checkpoint {

inline constexpr int64_t kVocabDivisorMax = 1 << 20;

struct HfImportOptions {
  Element weightType = Element::F32; ///< of the master weights
  int64_t vocabDivisor = 128;        ///< make_vocab_size_divisible_by times tensor-parallel ranks;
                                     ///< 1 to kVocabDivisorMax
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  Onlookers onlookers = {};
};
/// Imports the model in the folder `in`. NotFound with up to 20 names if tensors are missing;
/// InvalidInput for one of which the model's sizes need more or fewer rows than there are. `unused`
/// receives the names that have no place in the model, if not null.
Status importHf(const std::string &in, const SaveTarget &out, const HfImportOptions &options = {},
                const ConvertRank &rank = {}, std::vector<std::string> *unused = nullptr);

/// Predictors of further tokens with tensors in the folder; those that `config` names where the
/// folder has no tensors that can be read.
int64_t predictorsIn(const std::string &folder, const HfConfig &config);

struct HfExportOptions {
  /// The type of the exported weights. If not given: the type in the `config.json` of
  /// `configFolder` (`torch_dtype` or `dtype`), or else the one that the run computed with
  /// (`run_config.yaml`), or else that of the saved weights.
  std::optional<Element> weightType = {};
  /// Receives the type and where it is from, for people.
  std::function<void(Element type, const std::string &from)> tellType = {};
  uint64_t shardBytes = uint64_t{5} << 30; ///< of one safetensors file
  ConvertProgress progress = {};
  Onlookers onlookers = {};
  ReportSink tell = {}; ///< as in CheckpointReader::open
};
/// Exports the checkpoint `in`, of any format, as a model of the kind that `configFolder`
/// describes; its config and tokenizer files are copied along. If that is empty, they are those
/// that an import kept in `in`, or else `config.json` is made of the options that the run saved,
/// and there is no tokenizer. The folder `out` appears when
/// all of it is written; InvalidInput if it is there already.
Status exportHf(const std::string &in, const std::string &configFolder, const std::string &out,
                const HfExportOptions &options = {});

} // namespace shardc::checkpoint
