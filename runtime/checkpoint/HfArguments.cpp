#include "runtime/checkpoint/HfArguments.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

/// Builds the options; the first field that no recipe has ends it.
class Arguments {
public:
  Arguments(const HfConfig &config, const HfBiases &biases, const json &file,
            const std::string &path)
      : config_(config), biases_(biases), file_(file), path_(path) {}

  Result<PlainEntries> build();

private:
  bool is(std::string_view type) const { return config_.modelType.starts_with(type); }
  bool isGpt2() const { return config_.family == HfFamily::Gpt2; }
  void add(const char *name, PlainValue value) { entries_.emplace_back(name, std::move(value)); }
  void refuse(const std::string &key, const json &value, const std::string &needed);

  static const json *find(const json &object, const char *key);
  const json *find(const char *key) const { return find(file_, key); }
  double number(const json &object, const std::string &prefix, const char *key, double otherwise);
  double number(const char *key, double otherwise) { return number(file_, "", key, otherwise); }
  int64_t whole(const json &object, const std::string &prefix, const char *key, int64_t otherwise);
  int64_t whole(const char *key, int64_t otherwise) { return whole(file_, "", key, otherwise); }
  std::string word(const json &object, const std::string &prefix, const char *key);
  bool flag(const char *key, bool otherwise = false);
  /// Refuses any other value of a field that may be missing.
  void needFlag(const char *key, bool needed);

  void addSizes();
  void addNorms();
  void addActivation();
  void addBiases();
  void addRotation();
  void addScaling(const json &rope, const std::string &prefix);
  void addLlama3(const json &rope, const std::string &prefix);
  void addYarn(const json &rope, const std::string &prefix);
  void addMagnitude(const json &rope, const std::string &prefix);
  void addWindow();
  void addExperts();
  void addLatent();

  const HfConfig &config_;
  const HfBiases &biases_;
  const json &file_;
  const std::string &path_;
  PlainEntries entries_;
  Status failure_;
};

void Arguments::refuse(const std::string &key, const json &value, const std::string &needed) {
  constexpr size_t kShown = 60;
  std::string shown = toText(value, /*indent=*/-1, /*isAscii=*/true);
  if (shown.size() > kShown)
    shown = shown.substr(0, kShown) + "...";
  if (failure_.isOk())
    failure_ = makeStatus(report::HfSettingRefused, path_, key, shown, needed);
}

const json *Arguments::find(const json &object, const char *key) {
  auto found = object.find(key);
  return found != object.end() && !found->is_null() ? &*found : nullptr;
}

double Arguments::number(const json &object, const std::string &prefix, const char *key,
                         double otherwise) {
  const json *value = find(object, key);
  if (value != nullptr && !value->is_number())
    refuse(prefix + key, *value, "a number");
  return value != nullptr && value->is_number() ? value->get<double>() : otherwise;
}

int64_t Arguments::whole(const json &object, const std::string &prefix, const char *key,
                         int64_t otherwise) {
  constexpr double kMax = 1e15; // doubles below it tell whole numbers apart
  const json *value = find(object, key);
  if (value == nullptr)
    return otherwise;
  double found = value->is_number() ? value->get<double>() : -1;
  bool isWhole = found >= 0 && found <= kMax && std::floor(found) == found;
  if (!isWhole)
    refuse(prefix + key, *value, "a whole number of at least 0");
  return isWhole ? static_cast<int64_t>(found) : otherwise;
}

std::string Arguments::word(const json &object, const std::string &prefix, const char *key) {
  const json *value = find(object, key);
  if (value != nullptr && !value->is_string())
    refuse(prefix + key, *value, "a string");
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

bool Arguments::flag(const char *key, bool otherwise) {
  const json *value = find(key);
  if (value != nullptr && !value->is_boolean())
    refuse(key, *value, "true or false");
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

void Arguments::needFlag(const char *key, bool needed) {
  if (flag(key, needed) != needed)
    refuse(key, *find(key), needed ? "true" : "false");
}

void Arguments::addSizes() {
  add("num_layers", config_.layers);
  add("hidden_size", config_.hidden);
  add("num_attention_heads", config_.heads);
  // Latent attention has keys for each head, whatever the file says.
  int64_t groups = config_.family == HfFamily::Deepseek ? config_.heads : config_.groups;
  add("group_query_attention", groups != config_.heads);
  add("num_query_groups", groups);
  add("kv_channels", config_.headDim);
  add("ffn_hidden_size", isGpt2() ? whole("n_inner", 4 * config_.hidden) : config_.ffn);
  add("vocab_size", config_.vocab);
  add("mask_padded_vocab", true); // rows of padding are made by the import
  add("share_embeddings_and_output_weights", config_.isTied);
  add("untie_embeddings_and_output_weights", !config_.isTied);
  const char *positions = isGpt2() ? "n_positions" : "max_position_embeddings";
  if (find(positions) != nullptr)
    add("max_position_embeddings", whole(positions, 0));
}

void Arguments::addNorms() {
  bool isLarge = isGpt2() || is("mixtral"); // what the library takes where the file does not say
  add("normalization", isGpt2() ? "LayerNorm" : "RMSNorm");
  add("layernorm_epsilon",
      number(isGpt2() ? "layer_norm_epsilon" : "rms_norm_eps", isLarge ? 1e-5 : 1e-6));
  add("layernorm_zero_centered_gamma", false);
  add("qk_layernorm", is("qwen3") || config_.family == HfFamily::Deepseek);
}

/// "gelu_new" is the approximation by tanh, which a recipe computes where bias and activation are
/// fused.
void Arguments::addActivation() {
  const char *key = isGpt2() ? "activation_function" : "hidden_act";
  std::string name = word(file_, "", key);
  if (name.empty())
    name = isGpt2() ? "gelu_new" : "silu";
  bool isTanh = name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast";
  std::string ours = isTanh            ? "gelu"
                     : name == "swish" ? "silu"
                     : name == "relu2" ? "squared_relu"
                                       : name;
  constexpr std::string_view kKnown[] = {"gelu", "silu", "relu", "squared_relu", "quick_gelu"};
  if (std::ranges::find(kKnown, ours) == std::end(kKnown))
    refuse(key, name, "one of silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2, quick_gelu");
  add("activation_func", ours);
  add("gated_linear_unit", !isGpt2());
  add("swiglu", !isGpt2() && ours == "silu");
  add("squared_relu", ours == "squared_relu");
  if (ours == "gelu")
    add("bias_activation_fusion", isTanh);
}

/// A recipe has biases in all linear layers, or in those of queries, keys and values alone.
void Arguments::addBiases() {
  bool isInAll = isGpt2() || (biases_.ofQkv && biases_.ofProjection && biases_.ofMlp);
  if (!isInAll && biases_.ofProjection)
    refuse("attention_bias", true,
           "biases in all linear layers ('mlp_bias' too), or in those of queries, keys and values "
           "only");
  if (!isInAll && biases_.ofMlp)
    refuse("mlp_bias", true, "biases in all linear layers ('attention_bias' too), or false");
  add("add_bias_linear", isInAll);
  add("add_qkv_bias", isInAll || biases_.ofQkv);
}

void Arguments::addLlama3(const json &rope, const std::string &prefix) {
  add("rope_scaling", true);
  add("use_rope_scaling", true);
  add("rope_scaling_factor", number(rope, prefix, "factor", 8));
  const std::pair<const char *, double> constants[] = {
      {"low_freq_factor", 1}, {"high_freq_factor", 4}, {"original_max_position_embeddings", 8192}};
  for (const auto &[key, needed] : constants)
    if (number(rope, prefix, key, needed) != needed)
      refuse(prefix + key, rope[key], fmt::format("{}, the constant of Llama 3.1,", needed));
}

/// The library scales by the factor alone unless both weights are there and are not zero.
void Arguments::addMagnitude(const json &rope, const std::string &prefix) {
  bool isLatent = config_.family == HfFamily::Deepseek;
  double weight = number(rope, prefix, "mscale", 0);
  double divisor = number(rope, prefix, "mscale_all_dim", 0);
  bool hasBoth = weight != 0 && divisor != 0;
  if (isLatent && !hasBoth && divisor != 0)
    refuse(prefix + "mscale_all_dim", divisor, "0, or a number beside a 'mscale' that is not 0,");
  if (isLatent) {
    add("mscale", hasBoth ? weight : 1.0);
    add("mscale_all_dim", divisor);
  } else if (hasBoth) {
    add("yarn_mscale", weight);
    add("yarn_mscale_all_dim", divisor);
  }
}

/// Latent attention has options of its own for it.
void Arguments::addYarn(const json &rope, const std::string &prefix) {
  bool isLatent = config_.family == HfFamily::Deepseek;
  add(isLatent ? "rotary_scaling_factor" : "yarn_rotary_scaling_factor",
      number(rope, prefix, "factor", 1));
  struct Field {
    const char *key, *latent, *other;
    double otherwise;
  };
  const Field fields[] = {{"beta_fast", "beta_fast", "yarn_beta_fast", 32},
                          {"beta_slow", "beta_slow", "yarn_beta_slow", 1}};
  for (const Field &field : fields)
    if (find(rope, field.key) != nullptr || isLatent)
      add(isLatent ? field.latent : field.other, number(rope, prefix, field.key, field.otherwise));
  addMagnitude(rope, prefix);
  const json *truncates = find(rope, "truncate");
  bool isWhole = truncates == nullptr || !truncates->is_boolean() || truncates->get<bool>();
  if (!isWhole && isLatent)
    refuse(prefix + "truncate", *truncates, "true, as latent attention has it");
  else if (!isLatent)
    add("yarn_correction_range_round_to_int", isWhole);
  int64_t positions = whole(rope, prefix, "original_max_position_embeddings",
                            whole("max_position_embeddings", 4096));
  add(isLatent ? "original_max_position_embeddings" : "yarn_original_max_position_embeddings",
      positions);
  if (const json *factor = find(rope, "attention_factor"); factor != nullptr)
    refuse(prefix + "attention_factor", *factor, "none");
}

void Arguments::addScaling(const json &rope, const std::string &prefix) {
  const char *key = find(rope, "rope_type") != nullptr ? "rope_type" : "type";
  std::string type = word(rope, prefix, key);
  bool isLatent = config_.family == HfFamily::Deepseek;
  if (type == "yarn") {
    add("position_embedding_type", isLatent ? "rope" : "yarn");
    if (isLatent)
      add("rope_type", "yarn");
    return addYarn(rope, prefix);
  }
  add("position_embedding_type", "rope");
  if (isLatent)
    add("rope_type", "rope");
  if (type == "llama3")
    return addLlama3(rope, prefix);
  add("rope_scaling", false);
  add("use_rope_scaling", false);
  if (type == "linear")
    add("seq_len_interpolation_factor", number(rope, prefix, "factor", 1));
  else if (!type.empty() && type != "default")
    refuse(prefix + key, type, "one of default, llama3, linear, yarn");
}

/// Newer files have the base and the scaling in one object.
void Arguments::addRotation() {
  if (isGpt2()) {
    add("position_embedding_type", "learned_absolute");
    add("add_position_embedding", true);
    needFlag("scale_attn_weights", true);
    return needFlag("scale_attn_by_inverse_layer_idx", false);
  }
  add("add_position_embedding", false);
  const json none = json::object();
  const char *name = find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json *rope = find(name);
  if (rope != nullptr && !rope->is_object())
    return refuse(name, *rope, "an object");
  rope = rope != nullptr ? rope : &none;
  std::string prefix = fmt::format("{}.", name);
  double base = number("rope_theta", is("mixtral") ? 1e6 : 1e4);
  add("rotary_base", number(*rope, prefix, "rope_theta", base));
  add("rotary_percent",
      number(*rope, prefix, "partial_rotary_factor", number("partial_rotary_factor", 1)));
  add("rotary_interleaved", false);
  addScaling(*rope, prefix);
}

/// A window of W positions has W - 1 before the own one.
void Arguments::addWindow() {
  bool isOn = !is("qwen") || flag("use_sliding_window");
  int64_t width = isOn ? whole("sliding_window", 0) : 0;
  int64_t from = is("qwen") ? whole("max_window_layers", config_.layers) : 0;
  if (from >= config_.layers)
    width = 0;
  if (width > 0 && from > 0)
    refuse("max_window_layers", from,
           "0 (a window in all layers) or the number of layers (in none)");
  if (const json *types = find("layer_types"); types != nullptr && types->is_array())
    for (const json &type : *types)
      if (type != json(width > 0 ? "sliding_attention" : "full_attention"))
        return refuse("layer_types", *types,
                      width > 0 ? "sliding_attention in every layer"
                                : "full_attention in every layer");
  if (width > 0)
    add("window_size", PlainItems{width - 1, 0});
  else
    add("window_size", PlainValue());
}

void Arguments::addExperts() {
  bool isDense = config_.family == HfFamily::Deepseek && config_.mtpLayers == 0 &&
                 config_.firstDenseLayers >= config_.layers;
  if (config_.experts == 0 || isDense)
    return;
  add("num_moe_experts", config_.experts);
  add("num_experts", config_.experts);
  add("moe_ffn_hidden_size", config_.expertFfn);
  if (config_.sharedFfn > 0)
    add("moe_shared_expert_intermediate_size", config_.sharedFfn);
  add("moe_router_topk", whole("num_experts_per_tok", 2));
  bool isDeepseek = config_.family == HfFamily::Deepseek;
  add("moe_router_score_function", isDeepseek ? "sigmoid" : "softmax");
  // The chosen probabilities add up to one if the softmax is over them alone.
  bool isNormed = is("mixtral") || flag("norm_topk_prob", isDeepseek);
  if (!isDeepseek)
    add("moe_router_pre_softmax", !isNormed);
  if (!isDeepseek)
    return;
  needFlag("norm_topk_prob", true);
  add("moe_router_topk_scaling_factor", number("routed_scaling_factor", 1));
  add("moe_router_num_groups", whole("n_group", 1));
  add("moe_router_group_topk", whole("topk_group", 1));
}

void Arguments::addLatent() {
  bool isLatent = config_.family == HfFamily::Deepseek;
  add("multi_latent_attention", isLatent);
  if (!isLatent)
    return;
  needFlag("rope_interleave", true);
  if (config_.qLoraRank > 0)
    add("q_lora_rank", config_.qLoraRank);
  for (auto [key, name] : {std::pair("kv_lora_rank", "kv_lora_rank"),
                           {"qk_nope_head_dim", "qk_head_dim"},
                           {"qk_rope_head_dim", "qk_pos_emb_head_dim"},
                           {"v_head_dim", "v_head_dim"}})
    if (find(key) != nullptr)
      add(name, whole(key, 0));
}

Result<PlainEntries> Arguments::build() {
  addSizes();
  addNorms();
  addActivation();
  addBiases();
  addRotation();
  addWindow();
  addExperts();
  addLatent();
  RETURN_IF_ERROR(failure_);
  return std::move(entries_);
}

} // namespace

Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 std::string_view text, const std::string &path) {
  const json file = parseJson(text);
  SHARDC_CHECK(file.is_object(), "'{}' was parsed before", path);
  return Arguments(config, biases, file, path).build();
}

} // namespace shardc::checkpoint
