#include "runtime/checkpoint/HfModel.h"

#include <algorithm>
#include <limits>
#include <set>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 31;
constexpr int64_t kSizeTaken = std::numeric_limits<int64_t>::max();
constexpr int64_t kHeadsMax = 65'536;
/// The limit of names of tensors and segments in a model: each takes hundreds of bytes.
constexpr int64_t kPartsMax = 1 << 18;

/// Reads the fields of a `config.json` and checks their types. Reports the first field with a wrong
/// type.
class JsonFields {
public:
  JsonFields(const nlohmann::json &json, const std::string &path, std::string *place)
      : json_(json), path_(path), place_(place) {}

  /// The first of some keys that says something; `fallback` if none does.
  int64_t size(std::initializer_list<const char *> keys, int64_t fallback = 0) {
    for (const char *key : keys) {
      const nlohmann::json *value = find(key);
      bool isSize = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || *value <= kSizeTaken);
      if (isSize) // whether it is one that a model can have is judged with the others
        return value->get<int64_t>();
      if (value != nullptr) {
        refuse(key, *value, "a whole number");
        return fallback;
      }
    }
    return fallback;
  }
  /// Numbers of layers.
  std::vector<int64_t> sizes(const char *key) {
    constexpr size_t kListedMax = 10'000;
    const nlohmann::json *value = find(key);
    std::vector<int64_t> list;
    bool isList = value != nullptr && value->is_array() && value->size() <= kListedMax;
    for (size_t i = 0; isList && i < value->size(); ++i) {
      isList = (*value)[i].is_number_integer();
      list.push_back(isList ? (*value)[i].get<int64_t>() : 0);
    }
    if (value != nullptr && !isList)
      refuse(key, *value, "a list of whole numbers");
    return list;
  }
  bool flag(const char *key, bool fallback) {
    const nlohmann::json *value = find(key);
    if (value != nullptr && !value->is_boolean())
      refuse(key, *value, "true or false");
    return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
  }
  std::string text(const char *key) {
    const nlohmann::json *value = find(key);
    if (value != nullptr && !value->is_string())
      refuse(key, *value, "a string");
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  const Status &status() const { return status_; }
  void refuse(const char *key, const nlohmann::json &value, const std::string &needed) {
    constexpr size_t kShown = 40;
    std::string shown = toText(value, /*indent=*/-1, /*isAscii=*/true);
    if (shown.size() > kShown)
      shown = shown.substr(0, kShown) + "...";
    if (!status_.isOk())
      return;
    status_ = cannotConvert("'{}': {} is {}; {} is needed", path_, key, shown, needed);
    if (place_ != nullptr)
      *place_ = key;
  }

private:
  /// Null says nothing, as hubs write it.
  const nlohmann::json *find(const char *key) const {
    auto found = json_.find(key);
    return found != json_.end() && !found->is_null() ? &*found : nullptr;
  }

  const nlohmann::json &json_;
  const std::string &path_;
  std::string *place_;
  Status status_;
};

/// Several experts of one size; negative where no such product is needed.
int64_t productOf(int64_t count, int64_t size) {
  bool isSmall = count >= 0 && count <= kSizeMax && size >= 0 && size <= kSizeMax;
  return isSmall ? count * size : -1;
}

/// No number is beyond what a model can have, and all of them together beyond the memory.
Status checkBounds(const HfConfig &config, const std::string &path) {
  struct Bound {
    const char *what;
    int64_t value, least, most;
  };
  const Bound bounds[] = {
      {"num_hidden_layers", config.layers, 1, 10'000},
      {"hidden_size", config.hidden, 1, kSizeMax},
      {"num_attention_heads", config.heads, 1, kHeadsMax},
      {"num_key_value_heads", config.groups, 1, kHeadsMax},
      {"head_dim", config.headDim, 1, kHeadsMax},
      {"vocab_size", config.vocab, 1, kSizeMax},
      {"intermediate_size", config.ffn, 0, kSizeMax},
      {"num_experts", config.experts, 0, kHeadsMax},
      {"moe_intermediate_size", config.expertFfn, 0, kSizeMax},
      {"shared_expert_intermediate_size", config.sharedFfn, 0, kSizeMax},
      {"first_k_dense_replace", config.firstDenseLayers, 0, kSizeMax},
      {"decoder_sparse_step", config.expertsEvery, 1, kSizeMax},
      {"num_nextn_predict_layers", config.mtpLayers, 0, 1'000},
      {"q_lora_rank", config.qLoraRank, 0, kSizeMax},
  };
  for (const Bound &bound : bounds)
    if (bound.value < bound.least || bound.value > bound.most)
      return cannotConvert("'{}': {} is {}; {} to {} is needed", path, bound.what, bound.value,
                           bound.least, bound.most);
  int64_t layers = config.layers + config.mtpLayers,
          parts = std::max(config.experts, config.groups);
  if (layers * parts > kPartsMax)
    return cannotConvert(
        "'{}': {} layers of {} experts and {} key/value heads; the limit of either is "
        "{} in all layers together",
        path, layers, config.experts, config.groups, kPartsMax);
  return Status::ok();
}

Status checkSizes(const HfConfig &config, const std::string &path) {
  const std::pair<const char *, int64_t> needed[] = {{"layers", config.layers},
                                                     {"hidden size", config.hidden},
                                                     {"attention heads", config.heads},
                                                     {"vocabulary", config.vocab}};
  for (const auto &[what, size] : needed)
    if (size == 0)
      return cannotConvert("'{}' does not set the number of {}", path, what);
  RETURN_IF_ERROR(checkBounds(config, path));
  if (config.heads % config.groups != 0)
    return cannotConvert("'{}': {} heads are not divisible by {} key/value heads", path,
                         config.heads, config.groups);
  bool hasExperts = config.family != HfFamily::Dense && config.family != HfFamily::Gpt2;
  if (hasExperts && (config.experts == 0 || config.expertFfn == 0))
    return cannotConvert("'{}' does not set the number and the size of experts", path);
  if (config.family != HfFamily::Gpt2 && config.ffn == 0)
    return cannotConvert("'{}' does not set the intermediate size", path);
  return Status::ok();
}

/// Of an architecture with layers of attention and a dense feed-forward part: the names of the
/// norms of a layer, null where it has none, and which of its tensors are one.
struct DenseNames {
  const char *attentionNorm = "input_layernorm", *mlpNorm = "post_attention_layernorm";
  const char *behindAttention = nullptr, *behindMlp = nullptr;
  const char *qkv = nullptr, *gateAndUp = nullptr;
  const char *mlp = "mlp";
};

DenseNames namesOf(HfArch arch) {
  DenseNames names;
  if (arch == HfArch::Gpt2)
    names.qkv = "attn.c_attn";
  if (arch == HfArch::Phi3)
    names.qkv = "self_attn.qkv_proj";
  if (arch == HfArch::Phi3 || arch == HfArch::Glm4)
    names.gateAndUp = "mlp.gate_up_proj";
  if (arch == HfArch::Glm4) {
    names.behindAttention = "post_self_attn_layernorm";
    names.behindMlp = "post_mlp_layernorm";
  }
  if (arch == HfArch::Olmo2)
    names = {nullptr, nullptr, "post_attention_layernorm", "post_feedforward_layernorm"};
  if (arch == HfArch::Llama4)
    names.mlp = "feed_forward";
  if (arch == HfArch::Gemma2 || arch == HfArch::Gemma3)
    names = {"input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm",
             "post_feedforward_layernorm"};
  return names;
}

/// Builds the list of parameters, family by family.
class Mapper {
public:
  explicit Mapper(const HfConfig &config) : config_(config), names_(namesOf(config.arch)) {}

  std::vector<HfParam> run();

private:
  HfParam &add(std::string name, std::string hf, bool isOptional = false) {
    params_.push_back({std::move(name), {{std::move(hf)}}, {}, isOptional});
    return params_.back();
  }
  void addGated(const std::string &name, const std::string &gate, const std::string &up,
                int64_t rows);
  void addNorm(const std::string &name, const std::string &hf);
  void addNormOf(const std::string &name, const std::string &layer, const char *hf);
  void addWoven(const std::string &name, const std::string &hf, int64_t expert, int64_t rows,
                bool isMatrix);
  void addQkv(const std::string &name, const std::string &hf, const char *kind, bool isOptional);
  void addEnds();
  void addAttention(const std::string &mine, const std::string &hf);
  void addMla(const std::string &mine, const std::string &hf);
  void addDenseMlp(const std::string &mine, const std::string &hf);
  void addExperts(const std::string &mine, const std::string &hf);
  void addLlama4Experts(const std::string &mine, const std::string &hf);
  void addSharedExperts(const std::string &mine, const std::string &hf);
  void addLayer(const std::string &mine, const std::string &hf, bool hasExperts);
  void addMtp(int64_t index);
  void addCopy(const char *name, std::string hf, const char *of);
  void addGptOssMlp(const std::string &mine, const std::string &hf);
  void addGpt2();
  void addGpt2Layer(int64_t layer);

  const HfConfig &config_;
  DenseNames names_;
  std::vector<HfParam> params_;
};

/// Rows of the gate, then those of the up projection.
void Mapper::addGated(const std::string &name, const std::string &gate, const std::string &up,
                      int64_t rows) {
  params_.push_back({name, {{gate, 0, 0, rows}, {up, 0, rows, rows}}});
}

/// Norms of Nemotron have a bias.
void Mapper::addNorm(const std::string &name, const std::string &hf) {
  add(name + "weight", hf + ".weight");
  if (config_.arch == HfArch::Nemotron)
    add(name + "bias", hf + ".bias");
}

/// A norm of a layer, if its architecture has it.
void Mapper::addNormOf(const std::string &name, const std::string &layer, const char *hf) {
  if (hf != nullptr)
    addNorm(name, fmt::format("{}.{}", layer, hf));
}

/// One expert's part of a tensor of all experts, in which gate and up projection take turns.
void Mapper::addWoven(const std::string &name, const std::string &hf, int64_t expert, int64_t rows,
                      bool isMatrix) {
  HfParam param{name, {{hf, 0, 0, rows, expert, 2}, {hf, 1, rows, rows, expert, 2}}};
  param.isTransposed = isMatrix;
  params_.push_back(std::move(param));
}

/// For each group its query heads, then its key, then its value head. Some have all three in one
/// tensor, all queries first.
void Mapper::addQkv(const std::string &name, const std::string &hf, const char *kind,
                    bool isOptional) {
  int64_t d = config_.headDim, perGroup = config_.heads / config_.groups;
  HfParam param{name, {}, {}, isOptional};
  int64_t row = 0;
  for (int64_t group = 0; group < config_.groups; ++group) {
    const std::pair<const char *, int64_t> parts[] = {{"q", perGroup}, {"k", 1}, {"v", 1}};
    int64_t joinedAt = 0;
    for (const auto &[part, heads] : parts) {
      std::string from = names_.qkv ? fmt::format("{}.{}.{}", hf, names_.qkv, kind)
                                    : fmt::format("{}.self_attn.{}_proj.{}", hf, part, kind);
      param.segments.push_back({std::move(from), joinedAt + group * heads * d, row, heads * d});
      row += heads * d;
      joinedAt += names_.qkv ? config_.groups * heads * d : 0;
    }
  }
  params_.push_back(std::move(param));
}

void Mapper::addEnds() {
  add("embedding.word_embeddings.weight", "model.embed_tokens.weight").isVocab = true;
  addNorm("decoder.final_layernorm.", "model.norm");
  if (!config_.isTied)
    add("output_layer.weight", "lm_head.weight").isVocab = true;
}

void Mapper::addAttention(const std::string &mine, const std::string &hf) {
  std::string attention = mine + ".self_attention.";
  addNormOf(attention + "linear_qkv.layer_norm_", hf, names_.attentionNorm);
  addQkv(attention + "linear_qkv.weight", hf, "weight", false);
  addQkv(attention + "linear_qkv.bias", hf, "bias", true);
  add(attention + "q_layernorm.weight", hf + ".self_attn.q_norm.weight", true);
  add(attention + "k_layernorm.weight", hf + ".self_attn.k_norm.weight", true);
  add(attention + "linear_proj.weight", hf + ".self_attn.o_proj.weight");
  add(attention + "linear_proj.bias", hf + ".self_attn.o_proj.bias", true);
  addNormOf(mine + ".post_self_attn_layernorm.", hf, names_.behindAttention);
  if (config_.family == HfFamily::GptOss)
    add(attention + "core_attention.softmax_offset", hf + ".self_attn.sinks");
}

void Mapper::addDenseMlp(const std::string &mine, const std::string &hf) {
  const std::string fc1 = mine + ".mlp.linear_fc1.", fc2 = mine + ".mlp.linear_fc2.";
  addNormOf(fc1 + "layer_norm_", hf, names_.mlpNorm);
  for (const char *kind : {"weight", "bias"}) {
    if (kind[0] == 'b' && !config_.hasMlpBias)
      continue;
    std::string up = fmt::format("{}.{}.up_proj.{}", hf, names_.mlp, kind);
    if (config_.arch == HfArch::Nemotron)
      add(fc1 + kind, up);
    else if (names_.gateAndUp)
      add(fc1 + kind, fmt::format("{}.{}.{}", hf, names_.gateAndUp, kind)).segments[0].rows =
          2 * config_.ffn;
    else
      addGated(fc1 + kind, fmt::format("{}.{}.gate_proj.{}", hf, names_.mlp, kind), up,
               config_.ffn);
    add(fc2 + kind, fmt::format("{}.{}.down_proj.{}", hf, names_.mlp, kind));
  }
  addNormOf(mine + ".post_mlp_layernorm.", hf, names_.behindMlp);
}

/// Tensors of all experts, transposed, with biases. A dense layer is the only expert of its layer,
/// whose router gives it every token with the weight 1.
void Mapper::addGptOssMlp(const std::string &mine, const std::string &hf) {
  const std::string from = hf + ".mlp.experts.";
  bool isDense = config_.experts == 1;
  add(mine + (isDense ? ".mlp.linear_fc1.layer_norm_weight" : ".pre_mlp_layernorm.weight"),
      hf + ".post_attention_layernorm.weight");
  for (const char *kind : {"weight", "bias"}) {
    bool isMatrix = kind[0] == 'w';
    HfParam &router = add(fmt::format("{}.mlp.router.{}", mine, kind),
                          fmt::format("{}.mlp.router.{}", hf, kind), isDense);
    router.isOnlyWritten = isDense;
    if (isDense && isMatrix)
      router.zeros = {1, config_.hidden};
    else if (isDense)
      router.zeros = {1};
    for (int64_t expert = 0; expert < config_.experts; ++expert) {
      std::string number = isDense ? "" : std::to_string(expert);
      std::string to = mine + (isDense ? ".mlp.linear_fc" : ".mlp.experts.linear_fc");
      addWoven(fmt::format("{}1.{}{}", to, kind, number),
               from + (isMatrix ? "gate_up_proj" : "gate_up_proj_bias"), expert, config_.ffn,
               isMatrix);
      HfParam &down = add(fmt::format("{}2.{}{}", to, kind, number),
                          from + (isMatrix ? "down_proj" : "down_proj_bias"));
      down.segments[0].slab = expert;
      down.segments[0].rows = config_.hidden;
      down.isTransposed = isMatrix;
    }
  }
}

/// Tensors of all experts, transposed.
void Mapper::addLlama4Experts(const std::string &mine, const std::string &hf) {
  const std::string block = hf + ".feed_forward.";
  add(mine + ".pre_mlp_layernorm.weight", hf + ".post_attention_layernorm.weight");
  add(mine + ".mlp.router.weight", block + "router.weight").segments[0].rows = config_.experts;
  for (int64_t expert = 0; expert < config_.experts; ++expert)
    for (const auto &[number, from, rows] : {std::tuple(1, "gate_up_proj", 2 * config_.expertFfn),
                                             std::tuple(2, "down_proj", config_.hidden)}) {
      HfParam &param = add(fmt::format("{}.mlp.experts.linear_fc{}.weight{}", mine, number, expert),
                           fmt::format("{}experts.{}", block, from));
      param.segments[0].slab = expert;
      param.segments[0].rows = rows;
      param.isTransposed = true;
    }
}

void Mapper::addExperts(const std::string &mine, const std::string &hf) {
  if (config_.arch == HfArch::Llama4)
    return addLlama4Experts(mine, hf);
  bool isMixtral = config_.modelType == "mixtral";
  std::string block = hf + (isMixtral ? ".block_sparse_moe" : ".mlp");
  add(mine + ".pre_mlp_layernorm.weight", hf + ".post_attention_layernorm.weight");
  add(mine + ".mlp.router.weight", block + ".gate.weight").segments[0].rows = config_.experts;
  int64_t rows = config_.expertFfn;
  for (int64_t expert = 0; expert < config_.experts; ++expert) {
    std::string from = fmt::format("{}.experts.{}.", block, expert);
    std::string to = fmt::format("{}.mlp.experts.linear_fc", mine);
    addGated(fmt::format("{}1.weight{}", to, expert),
             from + (isMixtral ? "w1.weight" : "gate_proj.weight"),
             from + (isMixtral ? "w3.weight" : "up_proj.weight"), rows);
    params_.back().stacked = {{hf + ".mlp.experts.gate_up_proj", expert * 2 * rows, 0, 2 * rows}};
    add(fmt::format("{}2.weight{}", to, expert),
        from + (isMixtral ? "w2.weight" : "down_proj.weight"));
    params_.back().stacked = {
        {hf + ".mlp.experts.down_proj", expert * config_.hidden, 0, config_.hidden}};
  }
  if (config_.arch == HfArch::DeepseekV3 || config_.arch == HfArch::Glm4Moe)
    add(mine + ".mlp.router.expert_bias", hf + ".mlp.gate.e_score_correction_bias", true).zeros = {
        config_.experts};
}

void Mapper::addSharedExperts(const std::string &mine, const std::string &hf) {
  if (config_.sharedFfn == 0)
    return;
  bool isOne = config_.arch == HfArch::Qwen2Moe || config_.arch == HfArch::Llama4;
  std::string from = fmt::format("{}.{}.shared_expert{}", hf, names_.mlp, isOne ? "" : "s");
  std::string to = mine + ".mlp.shared_experts";
  addGated(to + ".linear_fc1.weight", from + ".gate_proj.weight", from + ".up_proj.weight",
           config_.sharedFfn);
  add(to + ".linear_fc2.weight", from + ".down_proj.weight");
  if (config_.arch == HfArch::Qwen2Moe)
    add(to + ".gate_weight", hf + ".mlp.shared_expert_gate.weight");
}

/// Latent attention: the down projections, a norm inside each up projection, the up projections.
void Mapper::addMla(const std::string &mine, const std::string &hf) {
  std::string to = mine + ".self_attention.", from = hf + ".self_attn.";
  if (config_.qLoraRank != 0) {
    add(to + "linear_q_down_proj.weight", from + "q_a_proj.weight");
    add(to + "linear_q_up_proj.layer_norm_weight", from + "q_a_layernorm.weight");
    add(to + "linear_q_up_proj.weight", from + "q_b_proj.weight");
  } else {
    add(to + "linear_q_proj.weight", from + "q_proj.weight");
  }
  add(to + "linear_kv_down_proj.weight", from + "kv_a_proj_with_mqa.weight");
  add(to + "linear_kv_up_proj.layer_norm_weight", from + "kv_a_layernorm.weight");
  add(to + "linear_kv_up_proj.weight", from + "kv_b_proj.weight");
  add(to + "linear_proj.weight", from + "o_proj.weight");
}

void Mapper::addLayer(const std::string &mine, const std::string &hf, bool hasExperts) {
  if (config_.family == HfFamily::Deepseek) {
    add(mine + ".input_layernorm.weight", hf + ".input_layernorm.weight");
    addMla(mine, hf);
  } else {
    addAttention(mine, hf);
  }
  if (config_.family == HfFamily::GptOss)
    return addGptOssMlp(mine, hf);
  if (!hasExperts)
    return addDenseMlp(mine, hf);
  addExperts(mine, hf);
  addSharedExperts(mine, hf);
}

/// Predictors of further tokens are numbered after the layers in the hub's files.
void Mapper::addMtp(int64_t index) {
  std::string from = fmt::format("model.layers.{}", config_.layers + index);
  std::string to = fmt::format("mtp.layers.{}", index);
  size_t first = params_.size();
  add(to + ".enorm.weight", from + ".enorm.weight");
  add(to + ".hnorm.weight", from + ".hnorm.weight");
  add(to + ".eh_proj.weight", from + ".eh_proj.weight");
  add(to + ".final_layernorm.weight", from + ".shared_head.norm.weight");
  addLayer(to + ".transformer_layer", from, /*hasExperts=*/true);
  // What the model has once is there again.
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

void Mapper::addGpt2Layer(int64_t layer) {
  std::string to = fmt::format("decoder.layers.{}.", layer), from = fmt::format("h.{}", layer);
  for (const char *kind : {"weight", "bias"}) {
    bool isWeight = kind[0] == 'w';
    add(fmt::format("{}self_attention.linear_qkv.layer_norm_{}", to, kind),
        fmt::format("{}.ln_1.{}", from, kind));
    addQkv(fmt::format("{}self_attention.linear_qkv.{}", to, kind), from, kind, false);
    params_.back().isTransposed = isWeight;
    add(fmt::format("{}self_attention.linear_proj.{}", to, kind),
        fmt::format("{}.attn.c_proj.{}", from, kind))
        .isTransposed = isWeight;
    add(fmt::format("{}mlp.linear_fc1.layer_norm_{}", to, kind),
        fmt::format("{}.ln_2.{}", from, kind));
    add(fmt::format("{}mlp.linear_fc1.{}", to, kind), fmt::format("{}.mlp.c_fc.{}", from, kind))
        .isTransposed = isWeight;
    add(fmt::format("{}mlp.linear_fc2.{}", to, kind), fmt::format("{}.mlp.c_proj.{}", from, kind))
        .isTransposed = isWeight;
  }
}

void Mapper::addGpt2() {
  add("embedding.word_embeddings.weight", "wte.weight").isVocab = true;
  add("embedding.position_embeddings.weight", "wpe.weight");
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    addGpt2Layer(layer);
  add("decoder.final_layernorm.weight", "ln_f.weight");
  add("decoder.final_layernorm.bias", "ln_f.bias");
}

std::vector<HfParam> Mapper::run() {
  if (config_.family == HfFamily::Gpt2) {
    addGpt2();
    return std::move(params_);
  }
  addEnds();
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    addLayer(fmt::format("decoder.layers.{}", layer), fmt::format("model.layers.{}", layer),
             config_.hasExperts(layer));
  for (int64_t index = 0; index < config_.mtpLayers; ++index)
    addMtp(index);
  return std::move(params_);
}

} // namespace

namespace {

/// Shared experts where the file does not say how many.
int64_t sharedOf(HfArch arch) {
  bool hasOne = arch == HfArch::DeepseekV3 || arch == HfArch::Glm4Moe || arch == HfArch::Llama4;
  return hasOne ? 1 : arch == HfArch::DeepseekV2 ? 2 : 0;
}

/// The first layers, which have no experts, where the file does not say how many.
int64_t firstDenseOf(HfArch arch) {
  return arch == HfArch::DeepseekV3 ? 3 : arch == HfArch::Glm4Moe ? 1 : 0;
}

/// Which layers have experts and which have rotations: all that a list names, or every n-th.
void readLlama4Layers(JsonFields &fields, const nlohmann::json &json, HfConfig &config) {
  std::vector<int64_t> experts = fields.sizes("moe_layers");
  if (auto said = json.find("moe_layers"); said != json.end() && said->is_array()) {
    config.expertsEvery = 1;
    for (int64_t layer = 0; layer < config.layers; ++layer)
      if (std::ranges::find(experts, layer) == experts.end())
        config.denseLayers.push_back(layer);
  }
  std::vector<int64_t> rotated = fields.sizes("no_rope_layers");
  int64_t every = std::max<int64_t>(fields.size({"no_rope_layer_interval"}, 4), 1);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    config.isRotated.push_back(rotated.empty()
                                   ? (layer + 1) % every != 0
                                   : layer < std::ssize(rotated) && rotated[layer] != 0);
  if (!rotated.empty() && std::ssize(rotated) != config.layers)
    fields.refuse("no_rope_layers", json["no_rope_layers"],
                  fmt::format("one number for each of {} layers", config.layers));
}

} // namespace

Result<HfConfig> readHfConfig(const std::string &folder) {
  std::string path = folder + "/config.json";
  ASSIGN_OR_RETURN(std::string text, readFile(path, kHfConfigBytesMax));
  return parseHfConfig(text, path);
}

bool HfConfig::hasExperts(int64_t layer) const {
  if (family == HfFamily::Dense || family == HfFamily::Gpt2)
    return false;
  return layer >= firstDenseLayers && (layer + 1) % expertsEvery == 0 &&
         !std::ranges::binary_search(denseLayers, layer);
}

Result<HfConfig> parseHfConfig(std::string_view text, const std::string &path, std::string *place) {
  nlohmann::json json = parseJson(text);
  if (!json.is_object())
    return cannotConvert("'{}' is not a JSON object", path);
  HfConfig config;
  JsonFields fields(json, path, place);
  config.modelType = fields.text("model_type");
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(checkHfFields(json, path, place));
  const HfArchitecture &known = *findHfArchitecture(config.modelType);
  config.arch = known.arch;
  config.family = known.family;
  config.layers = fields.size({"num_hidden_layers", "n_layer"});
  config.hidden = fields.size({"hidden_size", "n_embd"});
  config.heads = fields.size({"num_attention_heads", "n_head"});
  auto otherwise = [&](const char *key, int64_t derived) {
    int64_t fallback = hfFallback(config.arch, key);
    return fallback != 0 ? fallback : derived;
  };
  config.groups =
      fields.size({"num_key_value_heads"}, otherwise("num_key_value_heads", config.heads));
  int64_t share = config.heads > 0 ? config.hidden / config.heads : 0;
  config.headDim = fields.size({"head_dim"}, otherwise("head_dim", share));
  config.vocab = fields.size({"vocab_size"});
  config.ffn = fields.size({"intermediate_size"});
  config.experts = fields.size({"num_experts", "num_local_experts", "n_routed_experts"},
                               hfFallback(config.arch, "num_local_experts"));
  config.expertFfn = fields.size({"moe_intermediate_size"}, config.ffn);
  if (config.arch == HfArch::Llama4) // whose experts have the size that other models' layers have
    config.ffn = fields.size({"intermediate_size_mlp"}, otherwise("intermediate_size_mlp", 0));
  config.sharedFfn = fields.size(
      {"shared_expert_intermediate_size"},
      productOf(fields.size({"n_shared_experts"}, sharedOf(config.arch)), config.expertFfn));
  config.firstDenseLayers = fields.size({"first_k_dense_replace"}, firstDenseOf(config.arch));
  config.mtpLayers = fields.size({"num_nextn_predict_layers", "num_mtp_layers"});
  config.qLoraRank = fields.size(
      {"q_lora_rank"}, json.contains("q_lora_rank") ? 0 : hfFallback(config.arch, "q_lora_rank"));
  config.expertsEvery = fields.size({"decoder_sparse_step", "interleave_moe_layer_step"}, 1);
  config.denseLayers = fields.sizes("mlp_only_layers");
  std::ranges::sort(config.denseLayers);
  for (const char *key : {"dtype", "torch_dtype"}) // new and old spelling
    if (std::optional<Element> type = elementOfTorchName(fields.text(key));
        type == Element::F32 || type == Element::BF16 || type == Element::F16)
      config.weightType = type;
  config.hasMlpBias = fields.flag("mlp_bias", false);
  config.isTied = fields.flag("tie_word_embeddings", known.isTiedBySilence());
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(checkSizes(config, path));
  if (config.arch == HfArch::Llama4)
    readLlama4Layers(fields, json, config);
  RETURN_IF_ERROR(fields.status());
  return config;
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
  if (config.family == HfFamily::GptOss && config.experts == 1 &&
      name.find(".mlp.router.") != std::string_view::npos)
    return true; // gives all tokens to the only expert
  if (config.family == HfFamily::Gpt2)
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name == "lm_head.weight";
  for (int64_t index = 0; index < config.mtpLayers; ++index) {
    std::string layer = fmt::format("model.layers.{}.", config.layers + index);
    if (name == layer + "embed_tokens.weight" || name == layer + "shared_head.head.weight")
      return true;
  }
  return config.isTied && name == "lm_head.weight";
}

std::string scaleNameOf(std::string_view name) { return fmt::format("{}_scale_inv", name); }

} // namespace shardc::checkpoint
