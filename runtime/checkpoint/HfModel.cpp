#include "runtime/checkpoint/HfModel.h"

#include <algorithm>
#include <set>

#include "runtime/base/Json.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

/// The name of a table row with the number of an expert or layer in place of `*`.
std::string numbered(std::string_view name, int64_t number) {
  size_t star = std::min(name.find('*'), name.size());
  return star == name.size()
             ? std::string(name)
             : fmt::format("{}{}{}", name.substr(0, star), number, name.substr(star + 1));
}

/// The name of a layer in the hub's files.
std::string hfLayer(const HfConfig &config, int64_t layer) {
  return numbered(hfTensors(config.arch, "layer").front(), layer / config.layersOfOne);
}

/// Builds the list of parameters. HF_TENSOR rows have the names. `mine` and `hf` are the names of a
/// layer.
class Mapper {
public:
  explicit Mapper(const HfConfig &config)
      : config_(config), isTransposed_(infoOf(config.arch).isTransposed),
        hasNormBiases_(hfOption(config.arch, "normalization") == "LayerNorm"),
        isGated_(hfOption(config.arch, "gated_linear_unit") == true),
        hasOutputGate_(hfOption(config.arch, "attention_output_gate") == true) {}

  std::vector<HfParam> run();

private:
  HfParam &add(std::string name, std::string hf, bool isOptional = false) {
    params_.push_back({std::move(name), {{std::move(hf)}}, {}, isOptional});
    return params_.back();
  }
  std::vector<std::string_view> tensorsOf(std::string_view parameter) const {
    return hfTensors(config_.arch, parameter);
  }
  /// Names of a parameter's tensors in a layer.
  std::vector<std::string> tensorsIn(const std::string &hf, std::string_view parameter,
                                     int64_t expert = 0) const;
  void addNorm(const std::string &name, const std::string &hf);
  void addNormOf(const std::string &mine, const std::string &hf, std::string_view parameter);
  void addWeight(const std::string &mine, const std::string &hf, std::string_view parameter);
  HfParam &addJoined(std::string name, const std::vector<std::string> &tensors, const char *kind,
                     int64_t rows);
  void addWoven(const std::string &name, const std::string &hf, int64_t expert, int64_t rows,
                bool isMatrix);
  void addQkv(const std::string &mine, const std::string &hf, const char *kind, bool isOptional);
  void addEnds();
  void addAttention(const std::string &mine, const std::string &hf);
  void addMla(const std::string &mine, const std::string &hf);
  void addShortConv(const std::string &mine, const std::string &hf);
  void addDeltaNet(const std::string &mine, const std::string &hf);
  void addMamba(const std::string &mine, const std::string &hf);
  void addDenseMlp(const std::string &mine, const std::string &hf);
  void addExperts(const std::string &mine, const std::string &hf);
  void addStackedExpert(const std::string &mine, const std::string &hf, int64_t expert);
  void addExpert(const std::string &mine, const std::string &hf, int64_t expert);
  void addSharedExperts(const std::string &mine, const std::string &hf);
  void addMixer(const std::string &mine, const std::string &hf, HfMixer mixer);
  void addFeedForward(const std::string &mine, const std::string &hf, bool hasExperts);
  void addMtp(int64_t index);
  void addCopy(const char *name, std::string hf, const char *of);
  void addGptOssMlp(const std::string &mine, const std::string &hf);

  const HfConfig &config_;
  bool isTransposed_, hasNormBiases_, isGated_, hasOutputGate_;
  std::vector<HfParam> params_;
};

std::vector<std::string> Mapper::tensorsIn(const std::string &hf, std::string_view parameter,
                                           int64_t expert) const {
  std::vector<std::string> names;
  for (std::string_view name : tensorsOf(fmt::format("layer.{}", parameter)))
    names.push_back(fmt::format("{}.{}", hf, numbered(name, expert)));
  return names;
}

void Mapper::addNorm(const std::string &name, const std::string &hf) {
  add(name + "weight", hf + ".weight");
  if (hasNormBiases_)
    add(name + "bias", hf + ".bias");
}

/// Adds a norm of a layer if the architecture has it. A norm inside a linear layer has no module
/// name of its own.
void Mapper::addNormOf(const std::string &mine, const std::string &hf, std::string_view parameter) {
  bool isOfLinear = parameter.ends_with(".layer_norm");
  for (const std::string &tensor : tensorsIn(hf, parameter))
    addNorm(fmt::format("{}.{}{}", mine, parameter, isOfLinear ? "_" : "."), tensor);
}

void Mapper::addWeight(const std::string &mine, const std::string &hf, std::string_view parameter) {
  for (const std::string &tensor : tensorsIn(hf, parameter))
    add(fmt::format("{}.{}.weight", mine, parameter), tensor + ".weight");
}

/// Adds the rows of the gate followed by those of the up projection, from two tensors or from one;
/// or of one projection without a gate. `rows` is the number of rows of each.
HfParam &Mapper::addJoined(std::string name, const std::vector<std::string> &tensors,
                           const char *kind, int64_t rows) {
  HfParam param{std::move(name), {}};
  int64_t row = 0, each = tensors.size() == 1 && isGated_ ? 2 * rows : rows;
  for (const std::string &tensor : tensors) {
    param.segments.push_back({fmt::format("{}.{}", tensor, kind), 0, row, each});
    row += each;
  }
  params_.push_back(std::move(param));
  return params_.back();
}

/// Adds one expert's part of a tensor for all experts, in which rows of gate and up projection
/// alternate.
void Mapper::addWoven(const std::string &name, const std::string &hf, int64_t expert, int64_t rows,
                      bool isMatrix) {
  HfParam param{name, {{hf, 0, 0, rows, expert, 2}, {hf, 1, rows, rows, expert, 2}}};
  param.isTransposed = isMatrix;
  params_.push_back(std::move(param));
}

/// Adds queries, keys and values. For each group, the parameter has the query heads, the gates of
/// their output if it has some, the key head and the value head. Some models have all of them in
/// one tensor, with all queries first. The hub has the gate of a head behind its query.
void Mapper::addQkv(const std::string &mine, const std::string &hf, const char *kind,
                    bool isOptional) {
  constexpr const char *kName = "self_attention.linear_qkv";
  std::vector<std::string> tensors = tensorsIn(hf, kName);
  bool areOne = tensors.size() == 1;
  int64_t d = config_.headDim, perGroup = config_.heads / config_.groups, row = 0;
  HfParam param{fmt::format("{}.{}.{}", mine, kName, kind), {}, {}, isOptional};
  for (int64_t group = 0; group < config_.groups; ++group) {
    int64_t joinedAt = 0;
    for (size_t part = 0; part < 3; ++part) {
      int64_t heads = part == 0 ? perGroup : 1;
      if (part == 0 && hasOutputGate_) {
        const std::string tensor = fmt::format("{}.{}", tensors[0], kind);
        for (int64_t i = 0; i < 2 * heads; ++i, row += d)
          param.segments.push_back(
              {tensor, ((group * heads + i % heads) * 2 + i / heads) * d, row, d});
        continue;
      }
      param.segments.push_back({fmt::format("{}.{}", tensors[areOne ? 0 : part], kind),
                                joinedAt + group * heads * d, row, heads * d});
      row += heads * d;
      joinedAt += areOne ? config_.groups * heads * d : 0;
    }
  }
  param.isTransposed = isTransposed_ && kind[0] == 'w';
  params_.push_back(std::move(param));
}

/// Adds the parameters outside of layers. Tied models have no separate output layer.
void Mapper::addEnds() {
  auto weightOf = [&](const char *parameter) {
    for (std::string_view tensor : tensorsOf(parameter))
      add(fmt::format("{}.weight", parameter), fmt::format("{}.weight", tensor));
  };
  weightOf("embedding.word_embeddings");
  params_.back().isVocab = true;
  weightOf("embedding.position_embeddings");
  for (const std::string norm : {"decoder.final_layernorm", "decoder.final_norm"})
    for (std::string_view tensor : tensorsOf(norm))
      addNorm(norm + ".", std::string(tensor));
  if (config_.isTied)
    return;
  weightOf("output_layer");
  params_.back().isVocab = true;
}

void Mapper::addAttention(const std::string &mine, const std::string &hf) {
  addNormOf(mine, hf, "self_attention.linear_qkv.layer_norm");
  addQkv(mine, hf, "weight", false);
  HfBiases always = hfConstantBiases(config_.arch);
  addQkv(mine, hf, "bias", !config_.biases.ofQkv);
  for (const char *norm : {"self_attention.q_layernorm", "self_attention.k_layernorm"})
    for (const std::string &tensor : tensorsIn(hf, norm))
      add(fmt::format("{}.{}.weight", mine, norm), tensor + ".weight", true);
  for (const std::string &tensor : tensorsIn(hf, "self_attention.linear_proj")) {
    const std::string name = mine + ".self_attention.linear_proj.";
    add(name + "weight", tensor + ".weight").isTransposed = isTransposed_;
    add(name + "bias", tensor + ".bias", !always.ofProjection);
  }
  addNormOf(mine, hf, "post_self_attn_layernorm");
  for (const std::string &tensor : tensorsIn(hf, "self_attention.core_attention.softmax_offset"))
    add(mine + ".self_attention.core_attention.softmax_offset", tensor);
}

void Mapper::addDenseMlp(const std::string &mine, const std::string &hf) {
  addNormOf(mine, hf, "mlp.linear_fc1.layer_norm");
  std::vector<std::string> up = tensorsIn(hf, "mlp.linear_fc1");
  std::vector<std::string> down = tensorsIn(hf, "mlp.linear_fc2");
  for (const char *kind : {"weight", "bias"}) {
    bool isWeight = kind[0] == 'w';
    if (!isWeight && !config_.biases.ofMlp)
      continue;
    addJoined(fmt::format("{}.mlp.linear_fc1.{}", mine, kind), up, kind, config_.ffn).isTransposed =
        isTransposed_ && isWeight;
    add(fmt::format("{}.mlp.linear_fc2.{}", mine, kind), fmt::format("{}.{}", down[0], kind))
        .isTransposed = isTransposed_ && isWeight;
  }
  addNormOf(mine, hf, "post_mlp_layernorm");
}

/// Adds experts in tensors for all experts, transposed and with biases. A dense layer is
/// represented by a single expert, to which the router sends every token with weight 1.
void Mapper::addGptOssMlp(const std::string &mine, const std::string &hf) {
  bool isDense = config_.experts == 1;
  add(mine + (isDense ? ".mlp.linear_fc1.layer_norm_weight" : ".pre_mlp_layernorm.weight"),
      tensorsIn(hf, "pre_mlp_layernorm")[0] + ".weight");
  const std::string router = tensorsIn(hf, "mlp.router")[0],
                    up = tensorsIn(hf, "mlp.experts.linear_fc1")[0],
                    down = tensorsIn(hf, "mlp.experts.linear_fc2")[0];
  for (const char *kind : {"weight", "bias"}) {
    bool isMatrix = kind[0] == 'w';
    const char *suffix = isMatrix ? "" : "_bias";
    HfParam &routing = add(fmt::format("{}.mlp.router.{}", mine, kind),
                           fmt::format("{}.{}", router, kind), isDense);
    routing.isOnlyWritten = isDense;
    if (isDense && isMatrix)
      routing.zeros = {1, config_.hidden};
    else if (isDense)
      routing.zeros = {1};
    for (int64_t expert = 0; expert < config_.experts; ++expert) {
      std::string number = isDense ? "" : std::to_string(expert);
      std::string to = mine + (isDense ? ".mlp.linear_fc" : ".mlp.experts.linear_fc");
      addWoven(fmt::format("{}1.{}{}", to, kind, number), up + suffix, expert, config_.ffn,
               isMatrix);
      HfParam &second = add(fmt::format("{}2.{}{}", to, kind, number), down + suffix);
      second.segments[0].slab = expert;
      second.segments[0].rows = config_.hidden;
      second.isTransposed = isMatrix;
    }
  }
}

/// Maps one expert's weights to its slab of the tensors in which transformers stacks all experts,
/// in one layout transposed.
void Mapper::addStackedExpert(const std::string &mine, const std::string &hf, int64_t expert) {
  for (const auto &[parameter, rows] : {std::pair("mlp.experts.linear_fc1", 2 * config_.expertFfn),
                                        std::pair("mlp.experts.linear_fc2", config_.hidden)}) {
    HfParam &param =
        add(fmt::format("{}.{}.weight{}", mine, parameter, expert), tensorsIn(hf, parameter)[0]);
    param.segments[0].slab = expert;
    param.segments[0].rows = rows;
    param.isTransposed = config_.layout == HfLayout::Stacked;
  }
}

/// Adds an expert, from tensors of its own or from the tensors for all experts that newer versions
/// of the library write.
void Mapper::addExpert(const std::string &mine, const std::string &hf, int64_t expert) {
  constexpr const char *kUp = "mlp.experts.linear_fc1", *kDown = "mlp.experts.linear_fc2";
  int64_t rows = config_.expertFfn;
  addJoined(fmt::format("{}.{}.weight{}", mine, kUp, expert), tensorsIn(hf, kUp, expert), "weight",
            rows)
      .stacked = {{hf + ".mlp.experts.gate_up_proj", 0, 0, isGated_ ? 2 * rows : rows, expert}};
  add(fmt::format("{}.{}.weight{}", mine, kDown, expert),
      tensorsIn(hf, kDown, expert)[0] + ".weight")
      .stacked = {{hf + ".mlp.experts.down_proj", 0, 0, config_.hidden, expert}};
}

void Mapper::addExperts(const std::string &mine, const std::string &hf) {
  addWeight(mine, hf, "pre_mlp_layernorm");
  addWeight(mine, hf, "mlp.router");
  params_.back().segments[0].rows = config_.experts;
  bool areStacked =
      tensorsOf("layer.mlp.experts.linear_fc2").front().find('*') == std::string::npos;
  for (int64_t expert = 0; expert < config_.experts; ++expert)
    if (areStacked)
      addStackedExpert(mine, hf, expert);
    else
      addExpert(mine, hf, expert);
  for (const std::string &tensor : tensorsIn(hf, "mlp.router.expert_bias"))
    add(mine + ".mlp.router.expert_bias", tensor, true).zeros = {config_.experts};
}

void Mapper::addSharedExperts(const std::string &mine, const std::string &hf) {
  if (config_.sharedFfn == 0)
    return;
  constexpr const char *kUp = "mlp.shared_experts.linear_fc1";
  addJoined(fmt::format("{}.{}.weight", mine, kUp), tensorsIn(hf, kUp), "weight",
            config_.sharedFfn);
  addWeight(mine, hf, "mlp.shared_experts.linear_fc2");
  for (const std::string &tensor : tensorsIn(hf, "mlp.shared_experts.gate_weight"))
    add(mine + ".mlp.shared_experts.gate_weight", tensor);
}

/// Adds latent attention: the down projections, a norm inside each up projection, and the up
/// projections.
void Mapper::addMla(const std::string &mine, const std::string &hf) {
  addWeight(mine, hf, "input_layernorm");
  if (config_.qLoraRank != 0) {
    addWeight(mine, hf, "self_attention.linear_q_down_proj");
    addNormOf(mine, hf, "self_attention.linear_q_up_proj.layer_norm");
    addWeight(mine, hf, "self_attention.linear_q_up_proj");
  } else {
    addWeight(mine, hf, "self_attention.linear_q_proj");
  }
  addWeight(mine, hf, "self_attention.linear_kv_down_proj");
  addNormOf(mine, hf, "self_attention.linear_kv_up_proj.layer_norm");
  addWeight(mine, hf, "self_attention.linear_kv_up_proj");
  addWeight(mine, hf, "self_attention.linear_proj");
}

void Mapper::addShortConv(const std::string &mine, const std::string &hf) {
  addNormOf(mine, hf, "short_conv.in_proj.layer_norm");
  addWeight(mine, hf, "short_conv.in_proj");
  addWeight(mine, hf, "short_conv.out_proj");
  addWeight(mine, hf, "short_conv.conv");
  params_.back().isFilter = true;
}

/// Adds a gated delta net. The hub has the rows of the products by key head: its query and key, the
/// values and gates of its value heads; their strengths and decays. It convolves queries, keys and
/// values together.
void Mapper::addDeltaNet(const std::string &mine, const std::string &hf) {
  const int64_t heads = config_.keyHeads, each = config_.valueHeads / heads, keys = config_.keyDim,
                values = each * config_.valueDim;
  struct Part {
    const char *name;
    size_t tensor;
    int64_t at, rows, step; ///< rows of a key head, of `step` in the hub's tensor
  };
  const int64_t step = 2 * (keys + values);
  const Part parts[] = {
      {"query", 0, 0, keys, step},          {"key", 0, keys, keys, step},
      {"value", 0, 2 * keys, values, step}, {"z", 0, 2 * keys + values, values, step},
      {"beta", 1, 0, each, 2 * each},       {"alpha", 1, each, each, 2 * each}};
  const std::string own = mine + ".self_attention.";
  const std::vector<std::string> tensors = tensorsIn(hf, "self_attention.in_proj"),
                                 convs = tensorsIn(hf, "self_attention.conv1d");
  addNormOf(mine, hf, "self_attention.in_proj.layer_norm");
  int64_t channel = 0;
  for (const Part &part : parts) {
    HfParam param{fmt::format("{}in_proj.weight.{}", own, part.name), {}};
    for (int64_t head = 0; head < heads; ++head)
      param.segments.push_back({tensors[part.tensor] + ".weight", head * part.step + part.at,
                                head * part.rows, part.rows});
    params_.push_back(std::move(param));
    if (part.tensor > 0 || part.name[0] == 'z')
      continue;
    HfParam &conv = add(fmt::format("{}conv1d.weight.{}", own, part.name), convs[0] + ".weight");
    conv.segments[0].hfRow = channel, conv.segments[0].rows = heads * part.rows;
    conv.isFilter = true;
    channel += heads * part.rows;
  }
  for (const char *name : {"A_log", "dt_bias"})
    add(own + name, tensorsIn(hf, fmt::format("self_attention.{}", name))[0]);
  addWeight(mine, hf, "self_attention.out_norm");
  addWeight(mine, hf, "self_attention.out_proj");
}

/// Adds a Mamba-2 mixer, of which the hub joins the products and the convolutions.
void Mapper::addMamba(const std::string &mine, const std::string &hf) {
  const int64_t inner = config_.valueHeads * config_.valueDim,
                keys = config_.keyHeads * config_.keyDim;
  const std::pair<const char *, int64_t> parts[] = {
      {"z", inner}, {"x", inner}, {"B", keys}, {"C", keys}, {"dt", config_.valueHeads}};
  const std::string own = mine + ".mixer.", product = tensorsIn(hf, "mixer.in_proj")[0],
                    conv = tensorsIn(hf, "mixer.conv1d")[0];
  auto addPart = [&](std::string name, std::string tensor, int64_t row, int64_t rows) -> HfParam & {
    HfParam &param = add(std::move(name), std::move(tensor));
    param.segments[0].hfRow = row, param.segments[0].rows = rows;
    return param;
  };
  addNormOf(mine, hf, "mixer.in_proj.layer_norm");
  int64_t row = 0;
  for (const auto &[part, rows] : parts) {
    addPart(fmt::format("{}in_proj.weight.{}", own, part), product + ".weight", row, rows);
    if (std::string_view("xBC").find(part) != std::string_view::npos) {
      addPart(fmt::format("{}conv1d.weight.{}", own, part), conv + ".weight", row - inner, rows)
          .isFilter = true;
      addPart(fmt::format("{}conv1d.bias.{}", own, part), conv + ".bias", row - inner, rows);
    }
    row += rows;
  }
  for (const char *name : {"A_log", "dt_bias", "D"})
    add(own + name, tensorsIn(hf, fmt::format("mixer.{}", name))[0]);
  addWeight(mine, hf, "mixer.norm");
  addWeight(mine, hf, "mixer.out_proj");
}

void Mapper::addMixer(const std::string &mine, const std::string &hf, HfMixer mixer) {
  switch (mixer) {
  case HfMixer::None:
    return;
  case HfMixer::DeltaNet:
    return addDeltaNet(mine, hf);
  case HfMixer::ShortConv:
    return addShortConv(mine, hf);
  case HfMixer::Mamba:
    return addMamba(mine, hf);
  case HfMixer::Attention:
    return config_.layout == HfLayout::Deepseek ? addMla(mine, hf) : addAttention(mine, hf);
  }
}

void Mapper::addFeedForward(const std::string &mine, const std::string &hf, bool hasExperts) {
  if (config_.layout == HfLayout::GptOss)
    return addGptOssMlp(mine, hf);
  if (!hasExperts)
    return addDenseMlp(mine, hf);
  addExperts(mine, hf);
  addSharedExperts(mine, hf);
}

/// Adds a multi-token prediction layer. The hub numbers these layers after the others.
void Mapper::addMtp(int64_t index) {
  std::string from = hfLayer(config_, config_.layers + index);
  std::string to = fmt::format("mtp.layers.{}", index);
  size_t first = params_.size();
  add(to + ".enorm.weight", from + ".enorm.weight");
  add(to + ".hnorm.weight", from + ".hnorm.weight");
  add(to + ".eh_proj.weight", from + ".eh_proj.weight");
  add(to + ".final_layernorm.weight", from + ".shared_head.norm.weight");
  addMixer(to + ".transformer_layer", from, HfMixer::Attention);
  addFeedForward(to + ".transformer_layer", from, /*hasExperts=*/true);
  // The hub stores the model's embeddings and head again in this layer.
  addCopy("embedding.word_embeddings.weight", from + ".embed_tokens.weight", "model.embed_tokens");
  if (!config_.isTied)
    addCopy("output_layer.weight", from + ".shared_head.head.weight", "lm_head");
  for (size_t i = first; i < params_.size(); ++i)
    params_[i].predictor = index;
}

void Mapper::addCopy(const char *name, std::string hf, const char *of) {
  HfParam &copy = add(name, std::move(hf));
  copy.stacked = {{fmt::format("{}.weight", of)}};
  copy.isVocab = copy.isOnlyWritten = true;
}

std::vector<HfParam> Mapper::run() {
  addEnds();
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string mine = fmt::format("decoder.layers.{}", layer), hf = hfLayer(config_, layer);
    addMixer(mine, hf, config_.mixerOf(layer));
    if (config_.hasFeedForward(layer))
      addFeedForward(mine, hf, config_.hasExperts(layer));
  }
  for (int64_t index = 0; index < config_.mtpLayers; ++index)
    addMtp(index);
  return std::move(params_);
}

} // namespace

std::string hfEmbeddings(HfArch arch) {
  return fmt::format("{}.weight", hfTensors(arch, "embedding.word_embeddings").front());
}

HfBiases hfConstantBiases(HfArch arch) {
  bool areAll = hfOption(arch, "add_bias_linear") == true;
  return {areAll || hfOption(arch, "add_qkv_bias") == true, areAll, areAll};
}

HfBiases hfBiasesOf(const HfConfig &config,
                    const std::function<bool(const std::string &)> &isThere) {
  HfBiases biases = config.biases;
  int64_t layer = 0; // the first one with attention
  while (layer + 1 < config.layers && config.mixerOf(layer) != HfMixer::Attention)
    ++layer;
  auto has = [&](const char *parameter) {
    std::vector<std::string_view> names = hfTensors(config.arch, parameter);
    return !names.empty() &&
           isThere(fmt::format("{}.{}.bias", hfLayer(config, layer), names.front()));
  };
  biases.ofQkv = has("layer.self_attention.linear_qkv");
  biases.ofProjection = has("layer.self_attention.linear_proj");
  return biases;
}

std::vector<HfParam> hfParams(const HfConfig &config) { return Mapper(config).run(); }

int64_t dropAbsentPredictors(std::vector<HfParam> &params,
                             const std::function<bool(const HfParam &)> &isThere) {
  std::set<int64_t> there;
  for (const HfParam &param : params)
    if (param.predictor >= 0 && !param.isOnlyWritten && isThere(param))
      there.insert(param.predictor);
  std::erase_if(params, [&](const HfParam &param) {
    return param.predictor >= 0 && !there.contains(param.predictor);
  });
  return std::ssize(there);
}

bool isDroppedHfName(const HfConfig &config, std::string_view name) {
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("_scale_inv"))
    return true;
  if (config.layout == HfLayout::GptOss && config.experts == 1 &&
      name.find(".mlp.router.") != std::string_view::npos)
    return true; // the router of the only expert has no effect
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) // masks of GPT-2
    return true;
  for (int64_t index = 0; index < config.mtpLayers; ++index) {
    std::string layer = hfLayer(config, config.layers + index) + ".";
    if (name == layer + "embed_tokens.weight" || name == layer + "shared_head.head.weight")
      return true;
  }
  return config.isTied && name == "lm_head.weight";
}

std::string scaleNameOf(std::string_view name) { return fmt::format("{}_scale_inv", name); }

} // namespace shardc::checkpoint
