#include "compiler/lower/ParamTable.h"

#include <cmath>

namespace shardc::lower {
namespace {

using config::Opt;
using plan::InitKind;
using plan::Type;

/// Alignment of a parameter's start in elements: 16 bytes in 16-bit types.
constexpr int64_t kAlign = 8;

/// Adds rows to the table with Megatron's initial values.
class Table {
public:
  Table(const config::Config &config, plan::Plan &plan)
      : config_(config), plan_(plan), dtype_(config.derived().params),
        std_(config.getFloat(Opt::ModelInitMethodStd)),
        // Layers that add to the residual stream have smaller initial values: Megatron's
        // scaled_init_method_normal.
        scaledStd_(std_ / std::sqrt(2.0 * static_cast<double>(config.derived().numLayers))) {}

  int addUnit(std::string name) {
    unit_ = static_cast<int>(plan_.units.size());
    plan_.units.push_back({name});
    plan::Block block;
    block.name = std::move(name);
    block.unit = unit_;
    plan_.blocks.push_back(std::move(block));
    return unit_;
  }

  int matrix(std::string name, int64_t rows, int64_t columns, bool residual = false) {
    return add(std::move(name), Type::of(dtype_, {rows, columns}), InitKind::Normal,
               residual ? scaledStd_ : std_);
  }
  int embedding(std::string name, int64_t rows, int64_t columns) {
    double std = config_.getFloatOr(Opt::ModelEmbeddingInitMethodStd, std_);
    return add(std::move(name), Type::of(dtype_, {rows, columns}), InitKind::Normal, std);
  }
  int bias(std::string name, int64_t size, bool present) {
    return present ? add(std::move(name), Type::of(dtype_, {size}), InitKind::Zeros, 0) : -1;
  }

  NormParams norm(const std::string &weight, const std::string &bias) {
    bool centered = config_.isOn(Opt::ModelLayernormZeroCenteredGamma);
    Type type = Type::of(dtype_, {config_.derived().hidden});
    NormParams norm;
    norm.weight = add(weight, type, centered ? InitKind::Zeros : InitKind::Ones, 0);
    if (config_.is(Opt::ModelNormalization, config::Normalization::LayerNorm))
      norm.bias = add(bias, type, InitKind::Zeros, 0);
    return norm;
  }

private:
  int add(std::string name, const Type &type, InitKind init, double std) {
    plan::Param param;
    param.name = std::move(name);
    param.type = type;
    param.block = unit_;
    plan::Block &block = plan_.blocks[static_cast<size_t>(unit_)];
    param.offset = block.numel;
    block.numel = (block.numel + type.numel() + kAlign - 1) / kAlign * kAlign;
    block.shard = block.numel;
    param.wdMult =
        type.rank == 1 ? 0 : 1; // Megatron decays no biases and no one-dimensional parameters
    param.init = init;
    param.initStd = std;
    plan_.params.push_back(std::move(param));
    return static_cast<int>(plan_.params.size()) - 1;
  }

  const config::Config &config_;
  plan::Plan &plan_;
  DType dtype_;
  double std_, scaledStd_;
  int unit_ = 0;
};

LayerParams addLayer(Table &table, const config::Config &config, int64_t index) {
  const config::Derived &d = config.derived();
  bool bias = config.isOn(Opt::ModelAddBiasLinear);
  bool qkvBias = bias || config.isOn(Opt::ModelAddQkvBias);
  int64_t queries = d.numHeads * d.headSize, qkv = queries + 2 * d.numGroups * d.headSize;
  int64_t fc1 = d.gated ? 2 * d.ffnHidden : d.ffnHidden;
  std::string layer = fmt::format("decoder.layers.{}.", index);
  std::string attention = layer + "self_attention.", mlp = layer + "mlp.";

  table.addUnit(fmt::format("layers.{}", index));
  LayerParams p;
  p.attentionNorm = table.norm(attention + "linear_qkv.layer_norm_weight",
                               attention + "linear_qkv.layer_norm_bias");
  p.qkv = table.matrix(attention + "linear_qkv.weight", qkv, d.hidden);
  p.qkvBias = table.bias(attention + "linear_qkv.bias", qkv, qkvBias);
  p.proj = table.matrix(attention + "linear_proj.weight", d.hidden, queries, /*residual=*/true);
  p.projBias = table.bias(attention + "linear_proj.bias", d.hidden, bias);
  p.mlpNorm = table.norm(mlp + "linear_fc1.layer_norm_weight", mlp + "linear_fc1.layer_norm_bias");
  p.fc1 = table.matrix(mlp + "linear_fc1.weight", fc1, d.hidden);
  p.fc1Bias = table.bias(mlp + "linear_fc1.bias", fc1, bias);
  p.fc2 = table.matrix(mlp + "linear_fc2.weight", d.hidden, d.ffnHidden, /*residual=*/true);
  p.fc2Bias = table.bias(mlp + "linear_fc2.bias", d.hidden, bias);
  return p;
}

} // namespace

ParamTable makeParamTable(const config::Config &config, plan::Plan &plan) {
  const config::Derived &d = config.derived();
  Table table(config, plan);
  ParamTable params;
  table.addUnit("embedding");
  params.wordEmbeddings =
      table.embedding("embedding.word_embeddings.weight", d.paddedVocab, d.hidden);
  if (config.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::LearnedAbsolute))
    params.positionEmbeddings =
        table.embedding("embedding.position_embeddings.weight", d.maxPositions, d.hidden);
  for (int64_t layer = 0; layer < d.numLayers; ++layer)
    params.layers.push_back(addLayer(table, config, layer));
  table.addUnit("head");
  params.finalNorm = table.norm("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
  params.output =
      d.tied ? params.wordEmbeddings : table.matrix("output_layer.weight", d.paddedVocab, d.hidden);
  return params;
}

} // namespace shardc::lower
