// Converts Hugging Face models to `fsdp_dtensor` checkpoints and back in a streaming fashion.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Nf4Scales.h"
#include "runtime/checkpoint/Box.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

inline constexpr int64_t kVocabDivisorMax = 1 << 20;

struct HfImportOptions {
  Element weightType = Element::F32; ///< type of the master weights
  int64_t vocabDivisor = 128;        ///< make_vocab_size_divisible_by times tensor-parallel ranks;
                                     ///< 1 to kVocabDivisorMax
  std::vector<std::string> acceptedFields = {}; ///< see HfReading
  int64_t pieceBytes = int64_t{64} << 20;
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = {}; ///< receives the remarks of hfRemarks on the file
};
/// Imports the model in folder `in`. NotFound, with up to 20 names, if tensors are missing.
/// InvalidInput if the model's sizes need more or fewer rows of a tensor than it has, or if the
/// folder has an adapter. `unused`, if not null, receives names of tensors that the model does not
/// use.
Status importHf(const std::string &in, const SaveTarget &out, const HfImportOptions &options = {},
                const ConvertRank &rank = {}, std::vector<std::string> *unused = nullptr);

/// The weights of a Hugging Face model under Megatron-Core's names, read in place. It has no
/// optimizer state.
class HfWeights final : public ParamSource {
public:
  /// Opens a model under the same conditions as an import. For `accepted` and `emit`, see
  /// HfImportOptions.
  static Result<std::unique_ptr<HfWeights>> open(const std::string &folder,
                                                 const std::vector<std::string> &accepted = {},
                                                 const ReportSink &emit = {});
  ~HfWeights() override;

  std::string_view format() const override { return "a Hugging Face model"; }
  const HfWeights *model() const override { return this; }
  std::vector<std::string> names() const override;
  /// Without padding.
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override;
  /// The type in config.json, of all weights; nothing if it does not have one.
  std::optional<Element> typeOf(std::string_view name, ParamPart part) const override;
  using ParamSource::read;
  /// Rows after the last one are zero.
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows) const override;
  LoadDifferences check(std::span<const ParamRequest> requests) const override;
  /// The model's arguments in the form that an import saves.
  Result<RunState> runState() const override;
  /// The scales in 8 bits of a matrix that the model stores in 4 bits; nothing if its form is
  /// another.
  Result<std::optional<NestedScales>> nestedScales(std::string_view name) const;

private:
  struct State;
  HfWeights(std::string folder, std::unique_ptr<State> state);
  friend Status importHf(const std::string &in, const SaveTarget &out,
                         const HfImportOptions &options, const ConvertRank &rank,
                         std::vector<std::string> *unused);
  std::unique_ptr<State> state_;
};

/// Sets properties that only the tensors in the folder show, if they can be read: the number of
/// multi-token prediction layers, and whether the output layer is tied if the file does not say so.
void settleByTensors(const std::string &folder, HfConfig &config);

struct HfExportOptions {
  /// The type of the exported weights. If not set, it is the type in the `config.json` of
  /// `configFolder` (`torch_dtype` or `dtype`), otherwise the type in which the run computed
  /// (`run_config.yaml`), otherwise that of the saved weights.
  std::optional<Element> weightType = {};
  /// Called with the chosen type.
  std::function<void(Element type)> reportType = {};
  std::vector<std::string> acceptedFields = {}; ///< see HfReading
  /// Whether to pack weights of linear layers in 4 bits, as bitsandbytes does. This concerns the
  /// layers that `peft.quantize` keeps in 4 bits.
  enum Packing : uint8_t {
    Plain,
    Nf4,
    Nf4Nested ///< with scales in 8 bits
  } packing = Plain;
  uint64_t shardBytes = uint64_t{5} << 30; ///< maximum size of a safetensors file
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = {}; ///< see CheckpointReader::open
};
/// Exports the checkpoint `in`, of any format, as a model of the kind that `configFolder`
/// describes, and copies that folder's config and tokenizer files. If the model has several parts,
/// such as vision and text, the exported `config.json` describes the text model only. It has the
/// `quantization_config` of the requested packing. If `configFolder` is empty, the export uses the
/// files that an import or a run has stored in `in`. If there are none, or the run trained a
/// different model, the export derives `config.json` from the options that the run saved. The
/// folder `out` appears when it is complete; InvalidInput if it exists already.
Status exportHf(const std::string &in, const std::string &configFolder, const std::string &out,
                const HfExportOptions &options = {});

} // namespace shardc::checkpoint
