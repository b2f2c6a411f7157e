// Hugging Face models to `fsdp_dtensor` checkpoints and back, streaming.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/Box.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

inline constexpr int64_t kVocabDivisorMax = 1 << 20;

struct HfImportOptions {
  Element weightType = Element::F32; ///< of the master weights
  int64_t vocabDivisor = 128;        ///< make_vocab_size_divisible_by times tensor-parallel ranks;
                                     ///< 1 to kVocabDivisorMax
  std::vector<std::string> acceptedFields = {}; ///< as HfReading has them
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = {}; ///< receives what hfRemarks says of the file
};
/// Imports the model in the folder `in`. NotFound with up to 20 names if tensors are missing;
/// InvalidInput for one of which the model's sizes need more or fewer rows than there are, and if
/// the folder has an adapter. `unused` receives the names that have no place in the model, if not
/// null.
Status importHf(const std::string &in, const SaveTarget &out, const HfImportOptions &options = {},
                const ConvertRank &rank = {}, std::vector<std::string> *unused = nullptr);

/// The weights of a Hugging Face model under Megatron-Core's names, read where they are.
class HfWeights {
public:
  /// The same conditions as for an import. `accepted`, `emit` as in HfImportOptions.
  static Result<std::unique_ptr<HfWeights>> open(const std::string &folder,
                                                 const std::vector<std::string> &accepted = {},
                                                 const ReportSink &emit = {});
  ~HfWeights();

  /// The model's arguments, as an import saves them.
  const PlainEntries &arguments() const;
  std::vector<std::string> names() const;
  /// The type in config.json; nothing if it has none.
  std::optional<Element> weightType() const;
  /// The shape without padding; nothing if the model lacks the parameter.
  std::optional<Shape> shapeOf(std::string_view name) const;
  /// Reads a box of a parameter; rows behind the last one are zeros.
  Status read(std::string_view name, const Box &box, Element type, void *dst) const;

private:
  struct State;
  explicit HfWeights(std::unique_ptr<State> state);
  friend Status importHf(const std::string &in, const SaveTarget &out,
                         const HfImportOptions &options, const ConvertRank &rank,
                         std::vector<std::string> *unused);
  std::unique_ptr<State> state_;
};

/// Sets properties that the tensors in the folder show, unless they cannot be read: the number of
/// multi-token prediction layers, and whether the output layer is the embedding table if the file
/// does not say so.
void settleByTensors(const std::string &folder, HfConfig &config);

struct HfExportOptions {
  /// The type of the exported weights. If not given: the type in the `config.json` of
  /// `configFolder` (`torch_dtype` or `dtype`), or else the one that the run computed with
  /// (`run_config.yaml`), or else that of the saved weights.
  std::optional<Element> weightType = {};
  /// Receives the type that is chosen.
  std::function<void(Element type)> tellType = {};
  std::vector<std::string> acceptedFields = {}; ///< as HfReading has them
  /// Whether weights of linear layers are packed in 4 bits, as bitsandbytes does it: those that
  /// `peft.quantize` keeps so.
  enum Packing : uint8_t {
    Plain,
    Nf4,
    Nf4Nested ///< with scales in 8 bits
  } packing = Plain;
  uint64_t shardBytes = uint64_t{5} << 30; ///< of one safetensors file
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = {}; ///< as in CheckpointReader::open
};
/// Exports the checkpoint `in`, of any format, as a model of the kind that `configFolder`
/// describes; its config and tokenizer files are copied along. Of a model of several parts,
/// `config.json` becomes that of the text model, with the `quantization_config` of the packing that
/// is asked for. If `configFolder` is empty, the files are those that an import kept, or a run
/// carried, in `in`. If there are none, or the run computes something else than that model,
/// `config.json` is made of the options that the run saved. The folder `out` appears when all of it
/// is written; InvalidInput if it is there already.
Status exportHf(const std::string &in, const std::string &configFolder, const std::string &out,
                const HfExportOptions &options = {});

} // namespace shardc::checkpoint
