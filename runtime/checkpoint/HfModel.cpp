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

struct ModelType {
  std::string_view name;
  HfFamily family;
};
constexpr ModelType kModelTypes[] = {
    {"llama", HfFamily::Dense}, {"mistral", HfFamily::Dense},        {"qwen2", HfFamily::Dense},
    {"qwen3", HfFamily::Dense}, {"qwen2_moe", HfFamily::Moe},        {"qwen3_moe", HfFamily::Moe},
    {"mixtral", HfFamily::Moe}, {"deepseek_v3", HfFamily::Deepseek}, {"gpt2", HfFamily::Gpt2},
};

/// Reads the fields of a `config.json` and checks their types. Reports the first field with a wrong
/// type.
class JsonFields {
public:
  JsonFields(const nlohmann::json &json, const std::string &path) : json_(json), path_(path) {}

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

private:
  /// Null says nothing, as hubs write it.
  const nlohmann::json *find(const char *key) const {
    auto found = json_.find(key);
    return found != json_.end() && !found->is_null() ? &*found : nullptr;
  }
  void refuse(const char *key, const nlohmann::json &value, const std::string &needed) {
    constexpr size_t kShown = 40;
    std::string shown = toText(value, /*indent=*/-1, /*isAscii=*/true);
    if (shown.size() > kShown)
      shown = shown.substr(0, kShown) + "...";
    if (status_.isOk())
      status_ = cannotConvert("'{}': {} is {}; {} is needed", path_, key, shown, needed);
  }

  const nlohmann::json &json_;
  const std::string &path_;
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
  bool hasExperts = config.family == HfFamily::Moe || config.family == HfFamily::Deepseek;
  if (hasExperts && (config.experts == 0 || config.expertFfn == 0))
    return cannotConvert("'{}' does not set the number and the size of experts", path);
  if (config.family != HfFamily::Gpt2 && config.ffn == 0)
    return cannotConvert("'{}' does not set the intermediate size", path);
  return Status::ok();
}

/// Builds the list of parameters, family by family.
class Mapper {
public:
  explicit Mapper(const HfConfig &config) : config_(config) {}

  std::vector<HfParam> run();

private:
  HfParam &add(std::string name, std::string hf, bool isOptional = false) {
    params_.push_back({std::move(name), {{std::move(hf)}}, {}, isOptional});
    return params_.back();
  }
  void addGated(const std::string &name, const std::string &gate, const std::string &up,
                int64_t rows);
  void addQkv(const std::string &name, const std::string &hf, const char *kind, bool isOptional);
  void addEnds();
  void addAttention(const std::string &mine, const std::string &hf);
  void addMla(const std::string &mine, const std::string &hf);
  void addDenseMlp(const std::string &mine, const std::string &hf);
  void addExperts(const std::string &mine, const std::string &hf);
  void addSharedExperts(const std::string &mine, const std::string &hf);
  void addDeepseekLayer(const std::string &mine, const std::string &hf, bool isDense);
  void addDeepseekMtp(int64_t index);
  void addGpt2();
  void addGpt2Layer(int64_t layer);

  const HfConfig &config_;
  std::vector<HfParam> params_;
};

/// Rows of the gate, then those of the up projection.
void Mapper::addGated(const std::string &name, const std::string &gate, const std::string &up,
                      int64_t rows) {
  params_.push_back({name, {{gate, 0, 0, rows}, {up, 0, rows, rows}}});
}

/// For each group its query heads, then its key, then its value head. GPT-2 has all three in one.
void Mapper::addQkv(const std::string &name, const std::string &hf, const char *kind,
                    bool isOptional) {
  int64_t d = config_.headDim, perGroup = config_.heads / config_.groups;
  bool isJoined = config_.family == HfFamily::Gpt2;
  HfParam param{name, {}, {}, isOptional};
  int64_t row = 0;
  for (int64_t group = 0; group < config_.groups; ++group) {
    const std::pair<const char *, int64_t> parts[] = {{"q", perGroup}, {"k", 1}, {"v", 1}};
    int64_t joinedAt = 0;
    for (const auto &[part, heads] : parts) {
      std::string from = isJoined ? fmt::format("{}.attn.c_attn.{}", hf, kind)
                                  : fmt::format("{}.self_attn.{}_proj.{}", hf, part, kind);
      param.segments.push_back({std::move(from), joinedAt + group * heads * d, row, heads * d});
      row += heads * d;
      joinedAt += isJoined ? config_.hidden : 0;
    }
  }
  params_.push_back(std::move(param));
}

void Mapper::addEnds() {
  add("embedding.word_embeddings.weight", "model.embed_tokens.weight").isVocab = true;
  add("decoder.final_layernorm.weight", "model.norm.weight");
  if (!config_.isTied)
    add("output_layer.weight", "lm_head.weight").isVocab = true;
}

void Mapper::addAttention(const std::string &mine, const std::string &hf) {
  std::string attention = mine + ".self_attention.";
  add(attention + "linear_qkv.layer_norm_weight", hf + ".input_layernorm.weight");
  addQkv(attention + "linear_qkv.weight", hf, "weight", false);
  addQkv(attention + "linear_qkv.bias", hf, "bias", true);
  add(attention + "q_layernorm.weight", hf + ".self_attn.q_norm.weight", true);
  add(attention + "k_layernorm.weight", hf + ".self_attn.k_norm.weight", true);
  add(attention + "linear_proj.weight", hf + ".self_attn.o_proj.weight");
  add(attention + "linear_proj.bias", hf + ".self_attn.o_proj.bias", true);
}

void Mapper::addDenseMlp(const std::string &mine, const std::string &hf) {
  add(mine + ".mlp.linear_fc1.layer_norm_weight", hf + ".post_attention_layernorm.weight");
  addGated(mine + ".mlp.linear_fc1.weight", hf + ".mlp.gate_proj.weight",
           hf + ".mlp.up_proj.weight", config_.ffn);
  add(mine + ".mlp.linear_fc2.weight", hf + ".mlp.down_proj.weight");
  if (!config_.hasMlpBias)
    return;
  addGated(mine + ".mlp.linear_fc1.bias", hf + ".mlp.gate_proj.bias", hf + ".mlp.up_proj.bias",
           config_.ffn);
  add(mine + ".mlp.linear_fc2.bias", hf + ".mlp.down_proj.bias");
}

void Mapper::addExperts(const std::string &mine, const std::string &hf) {
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
}

void Mapper::addSharedExperts(const std::string &mine, const std::string &hf) {
  if (config_.sharedFfn == 0)
    return;
  std::string from =
      hf + (config_.family == HfFamily::Deepseek ? ".mlp.shared_experts" : ".mlp.shared_expert");
  std::string to = mine + ".mlp.shared_experts";
  addGated(to + ".linear_fc1.weight", from + ".gate_proj.weight", from + ".up_proj.weight",
           config_.sharedFfn);
  add(to + ".linear_fc2.weight", from + ".down_proj.weight");
  if (config_.family == HfFamily::Moe)
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

void Mapper::addDeepseekLayer(const std::string &mine, const std::string &hf, bool isDense) {
  add(mine + ".input_layernorm.weight", hf + ".input_layernorm.weight");
  addMla(mine, hf);
  if (isDense)
    return addDenseMlp(mine, hf);
  addExperts(mine, hf);
  add(mine + ".mlp.router.expert_bias", hf + ".mlp.gate.e_score_correction_bias", true);
  addSharedExperts(mine, hf);
}

/// Predictors of further tokens are numbered after the layers in the hub's files.
void Mapper::addDeepseekMtp(int64_t index) {
  std::string from = fmt::format("model.layers.{}", config_.layers + index);
  std::string to = fmt::format("mtp.layers.{}", index);
  add(to + ".enorm.weight", from + ".enorm.weight");
  add(to + ".hnorm.weight", from + ".hnorm.weight");
  add(to + ".eh_proj.weight", from + ".eh_proj.weight");
  add(to + ".final_layernorm.weight", from + ".shared_head.norm.weight");
  addDeepseekLayer(to + ".transformer_layer", from, false);
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
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    std::string mine = fmt::format("decoder.layers.{}", layer),
                hf = fmt::format("model.layers.{}", layer);
    if (config_.family == HfFamily::Deepseek) {
      addDeepseekLayer(mine, hf, layer < config_.firstDenseLayers);
      continue;
    }
    addAttention(mine, hf);
    if (config_.family == HfFamily::Dense) {
      addDenseMlp(mine, hf);
    } else {
      addExperts(mine, hf);
      addSharedExperts(mine, hf);
    }
  }
  for (int64_t index = 0; index < config_.mtpLayers; ++index)
    addDeepseekMtp(index);
  return std::move(params_);
}

} // namespace

Result<HfConfig> readHfConfig(const std::string &folder) {
  std::string path = folder + "/config.json";
  ASSIGN_OR_RETURN(std::string text, readFile(path, kHfConfigBytesMax));
  return parseHfConfig(text, path);
}

Result<HfConfig> parseHfConfig(std::string_view text, const std::string &path) {
  nlohmann::json json = parseJson(text);
  if (!json.is_object())
    return cannotConvert("'{}' is not a JSON object", path);
  HfConfig config;
  JsonFields fields(json, path);
  config.modelType = fields.text("model_type");
  RETURN_IF_ERROR(fields.status());
  const ModelType *known = nullptr;
  for (const ModelType &type : kModelTypes)
    known = type.name == config.modelType ? &type : known;
  if (known == nullptr)
    return cannotConvert(
        "'{}' has the model type '{}'; supported are llama, mistral, qwen2, qwen3, "
        "qwen2_moe, qwen3_moe, "
        "mixtral, deepseek_v3 and gpt2",
        path, config.modelType);
  config.family = known->family;
  config.layers = fields.size({"num_hidden_layers", "n_layer"});
  config.hidden = fields.size({"hidden_size", "n_embd"});
  config.heads = fields.size({"num_attention_heads", "n_head"});
  config.groups = fields.size({"num_key_value_heads"}, config.heads);
  config.headDim = fields.size({"head_dim"}, config.heads > 0 ? config.hidden / config.heads : 0);
  config.vocab = fields.size({"vocab_size"});
  config.ffn = fields.size({"intermediate_size"});
  config.experts = fields.size({"num_experts", "num_local_experts", "n_routed_experts"});
  config.expertFfn = fields.size({"moe_intermediate_size"}, config.ffn);
  config.sharedFfn = fields.size({"shared_expert_intermediate_size"},
                                 productOf(fields.size({"n_shared_experts"}), config.expertFfn));
  config.firstDenseLayers = fields.size({"first_k_dense_replace"});
  config.mtpLayers = fields.size({"num_nextn_predict_layers"});
  config.qLoraRank = fields.size({"q_lora_rank"});
  for (const char *key : {"dtype", "torch_dtype"}) // new and old spelling
    if (std::optional<Element> type = elementOfTorchName(fields.text(key));
        type == Element::F32 || type == Element::BF16 || type == Element::F16)
      config.weightType = type;
  config.hasMlpBias = fields.flag("mlp_bias", false);
  config.isTied = fields.flag("tie_word_embeddings", config.family == HfFamily::Gpt2);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(checkSizes(config, path));
  return config;
}

std::vector<HfParam> hfParams(const HfConfig &config) { return Mapper(config).run(); }

void dropAbsentPredictors(std::vector<HfParam> &params,
                          const std::function<bool(const HfParam &)> &isThere) {
  constexpr std::string_view kPrefix = "mtp.layers.";
  auto predictorOf = [&](const HfParam &param) {
    return param.name.starts_with(kPrefix)
               ? param.name.substr(0, param.name.find('.', kPrefix.size()))
               : std::string();
  };
  std::set<std::string> there = {""};
  for (const HfParam &param : params)
    if (isThere(param))
      there.insert(predictorOf(param));
  std::erase_if(params, [&](const HfParam &param) { return !there.contains(predictorOf(param)); });
}

bool isDroppedHfName(const HfConfig &config, std::string_view name) {
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("_scale_inv"))
    return true;
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
