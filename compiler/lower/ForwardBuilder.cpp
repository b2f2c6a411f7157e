#include "compiler/lower/ForwardBuilder.h"

#include <cmath>

namespace shardc::lower {

using config::Opt;
using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

ForwardBuilder::ForwardBuilder(const config::Config &config, const ParamTable &params,
                               plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                               const Places &places, bool training)
    : config_(config), d_(config.derived()), params_(params), role_(role), segment_(segment),
      places_(places), training_(training), weights_(plan.params.size(), kNone),
      dtype_(config.derived().compute) {}

/// The parameter in this body: its cell's content. Lowering names cells by parameter index.
ValueId ForwardBuilder::weight(int param) {
  ValueId &value = weights_[static_cast<size_t>(param)];
  if (value == kNone) {
    auto cell = static_cast<uint32_t>(param);
    value = plan::addLiveIn(segment_, "w." + role_.cells[cell].name, role_, cell);
  }
  return value;
}

Op ForwardBuilder::op(OpKind kind, std::initializer_list<ValueId> operands) const {
  return plan::makeOp(kind, operands, unit_, loc_);
}

ValueId ForwardBuilder::emit(Op op, const std::string &name, const Type &type) {
  ValueId result = plan::addValue(segment_, name, type);
  op.results = {result};
  plan::append(segment_, std::move(op));
  return result;
}

std::vector<ValueId>
ForwardBuilder::emitMany(Op op, std::initializer_list<std::pair<const char *, Type>> results) {
  std::vector<ValueId> values;
  for (const auto &[what, type] : results)
    values.push_back(plan::addValue(segment_, name(what), type));
  op.results = values;
  plan::append(segment_, std::move(op));
  return values;
}

Batch ForwardBuilder::loadBatch(uint32_t feedCell, int64_t slots) {
  Type ids = Type::of(DType::I32, {d_.microBatch, d_.seqLength});
  Type mask = Type::of(DType::F32, {d_.microBatch, d_.seqLength});
  Type samples = Type::of(DType::I64, {d_.microBatch});
  Op load = op(OpKind::BatchLoad, {plan::addLiveIn(segment_, "feed", role_, feedCell)});
  load.loc = places_.train;
  load.set(Key::slots, slots);
  auto v = emitMany(std::move(load), {{"tokens", ids},
                                      {"labels", ids},
                                      {"mask", mask},
                                      {"positions", ids},
                                      {"docs", ids},
                                      {"samples", samples}});
  for (ValueId value : v)
    segment_.values[value].purpose = plan::Purpose::Data;
  return {v[0], v[1], v[2], v[3], v[4], v[5]};
}

ValueId ForwardBuilder::dropout(ValueId x, const char *what) {
  double p = config_.getFloat(Opt::ModelHiddenDropout);
  ++salt_; // counted in evaluation too, so that each place in the model always has the same salt
  if (!training_ || p == 0)
    return x;
  Op drop = op(OpKind::Dropout, {x, batch_.samples});
  drop.set(Key::p, p).set(Key::salt, salt_).set(Key::seed, config_.getInt(Opt::RngSeed));
  return emit(std::move(drop), name(what), segment_.values[x].type);
}

ValueId ForwardBuilder::embed() {
  Type type = Type::of(dtype_, {d_.microBatch, d_.seqLength, d_.hidden});
  ValueId x =
      emit(op(OpKind::Embedding, {batch_.tokens, weight(params_.wordEmbeddings)}), "embed", type);
  if (params_.positionEmbeddings >= 0) {
    ValueId position =
        emit(op(OpKind::Embedding, {batch_.positions, weight(params_.positionEmbeddings)}),
             "embed.position", type);
    x = emit(op(OpKind::Add, {x, position}), "embed.sum", type);
  }
  return dropout(x, "embed.drop");
}

ValueId ForwardBuilder::norm(ValueId x, const NormParams &params, const char *what) {
  Type rows = Type::of(DType::F32, {d_.microBatch * d_.seqLength});
  std::string y = what, mean = y + ".mean", rstd = y + ".rstd";
  bool layerNorm = params.bias >= 0;
  Op norm = layerNorm ? op(OpKind::LayerNorm, {x, weight(params.weight), weight(params.bias)})
                      : op(OpKind::RmsNorm, {x, weight(params.weight)});
  norm.set(Key::eps, config_.getFloat(Opt::ModelLayernormEpsilon));
  norm.set(Key::zero_centered, int64_t{config_.isOn(Opt::ModelLayernormZeroCenteredGamma)});
  const Type type = segment_.values[x].type;
  if (layerNorm)
    return emitMany(std::move(norm),
                    {{y.c_str(), type}, {mean.c_str(), rows}, {rstd.c_str(), rows}})[0];
  return emitMany(std::move(norm), {{y.c_str(), type}, {rstd.c_str(), rows}})[0];
}

ValueId ForwardBuilder::linear(ValueId x, int weightParam, int biasParam, const char *what) {
  ValueId w = weight(weightParam);
  Type type = segment_.values[x].type;
  type.shape[type.rank - 1u] = segment_.values[w].type.shape[0];
  Op product = op(OpKind::MatMul, {x, w});
  product.set(Key::trans_b, int64_t{1});
  if (biasParam < 0)
    return emit(std::move(product), name(what), type);
  ValueId y = emit(std::move(product), name(what) + ".product", type);
  return emit(op(OpKind::BiasAdd, {y, weight(biasParam)}), name(what), type);
}

ValueId ForwardBuilder::attention(ValueId x, const LayerParams &layer) {
  int64_t b = d_.microBatch, s = d_.seqLength, n = d_.numHeads, g = d_.numGroups, hd = d_.headSize;
  Type query = Type::of(dtype_, {b, s, n, hd}), key = Type::of(dtype_, {b, s, g, hd});
  ValueId qkv = linear(x, layer.qkv, layer.qkvBias, "qkv");
  bool rope = config_.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::Rope);
  Op split = op(OpKind::SplitQkv, {qkv});
  split.set(Key::num_heads, n).set(Key::num_groups, g).set(Key::head_dim, hd);
  auto v = rope ? emitMany(std::move(split), {{"q.plain", query}, {"k.plain", key}, {"v", key}})
                : emitMany(std::move(split), {{"q", query}, {"k", key}, {"v", key}});
  if (rope) {
    auto rotate = [&](ValueId value, const char *what, const Type &type) {
      Op rope = op(OpKind::Rope, {value});
      rope.set(Key::rotary_base, config_.getFloat(Opt::ModelRotaryBase));
      if (config_.isOn(Opt::ModelRopeScaling))
        rope.set(Key::rotary_scaling, config_.getFloat(Opt::ModelRopeScalingFactor));
      rope.set(Key::rotary_dim,
               static_cast<int64_t>(std::llround(config_.getFloat(Opt::ModelRotaryPercent) *
                                                 static_cast<double>(hd))));
      rope.set(Key::rotary_interleaved, int64_t{config_.isOn(Opt::ModelRotaryInterleaved)});
      return emit(std::move(rope), name(what), type);
    };
    v[0] = rotate(v[0], "q", query);
    v[1] = rotate(v[1], "k", key);
  }
  Op attend = op(OpKind::Attention, {v[0], v[1], v[2], batch_.docs, batch_.samples});
  attend.set(Key::scale,
             config_.getFloatOr(Opt::ModelSoftmaxScale, 1.0 / std::sqrt(static_cast<double>(hd))));
  attend.set(Key::causal, int64_t{1});
  attend.set(Key::reset_mask, int64_t{config_.isOn(Opt::DatasetResetAttentionMask)});
  double p = config_.getFloat(Opt::ModelAttentionDropout);
  ++salt_;
  if (training_ && p > 0)
    attend.set(Key::p, p).set(Key::salt, salt_).set(Key::seed, config_.getInt(Opt::RngSeed));
  ValueId o = emitMany(std::move(attend), {{"attn", Type::of(dtype_, {b, s, n * hd})},
                                           {"attn.lse", Type::of(DType::F32, {b, n, s})}})[0];
  return dropout(linear(o, layer.proj, layer.projBias, "proj"), "proj.drop");
}

ValueId ForwardBuilder::feedForward(ValueId x, const LayerParams &layer) {
  ValueId f1 = linear(x, layer.fc1, layer.fc1Bias, "fc1");
  Type type = Type::of(dtype_, {d_.microBatch, d_.seqLength, d_.ffnHidden});
  Op activation = op(d_.gated ? OpKind::SwiGlu : OpKind::Gelu, {f1});
  // Megatron's fused bias-GELU is the tanh approximation; without fusion GELU is exact.
  if (!d_.gated)
    activation.set(Key::tanh_approx, int64_t{config_.isOn(Opt::ModelBiasActivationFusion)});
  ValueId a = emit(std::move(activation), name("act"), type);
  return dropout(linear(a, layer.fc2, layer.fc2Bias, "fc2"), "fc2.drop");
}

ValueId ForwardBuilder::loss(ValueId x, ValueId &count) {
  int64_t rows = d_.microBatch * d_.seqLength;
  count = emit(op(OpKind::TokenCount, {batch_.mask}), "count", Type::of(DType::F32, {1}));
  Op product = op(OpKind::MatMul, {x, weight(params_.output)});
  product.set(Key::trans_b, int64_t{1});
  ValueId logits = emit(std::move(product), "logits",
                        Type::of(dtype_, {d_.microBatch, d_.seqLength, d_.paddedVocab}));
  Op entropy = op(OpKind::CrossEntropy, {logits, batch_.labels, batch_.mask});
  // Megatron's softmax runs over the rows of padding too.
  entropy.set(Key::valid_cols, config_.isOn(Opt::ModelMaskPaddedVocab) ? d_.vocab : d_.paddedVocab);
  Type type = Type::of(DType::F32, {rows});
  return emitMany(std::move(entropy), {{"losses", type}, {"losses.lse", type}})[0];
}

ValueId ForwardBuilder::build(uint32_t feedCell, int64_t slots, ValueId &count) {
  loc_ = places_.vocab;
  batch_ = loadBatch(feedCell, slots);
  ValueId h = embed();
  for (size_t i = 0; i < params_.layers.size(); ++i) {
    unit_ = static_cast<int32_t>(i) + 1;
    loc_ = places_.layers;
    prefix_ = fmt::format("l{}.", i);
    const LayerParams &layer = params_.layers[i];
    const Type type = segment_.values[h].type;
    ValueId attended = attention(norm(h, layer.attentionNorm, "norm1"), layer);
    h = emit(op(OpKind::Add, {h, attended}), name("mid"), type);
    ValueId fed = feedForward(norm(h, layer.mlpNorm, "norm2"), layer);
    h = emit(op(OpKind::Add, {h, fed}), name("out"), type);
  }
  unit_ = static_cast<int32_t>(params_.layers.size()) + 1;
  loc_ = places_.vocab;
  prefix_ = "head.";
  return loss(norm(h, params_.finalNorm, "norm"), count);
}

} // namespace shardc::lower
