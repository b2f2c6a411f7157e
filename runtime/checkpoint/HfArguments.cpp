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
            const std::string &path, std::string *place)
      : config_(config), biases_(biases), file_(file), path_(path), place_(place) {}

  Result<PlainEntries> build();

private:
  bool is(HfArch arch) const { return config_.arch == arch; }
  bool isGpt2() const { return is(HfArch::Gpt2); }
  bool isLatent() const { return config_.family == HfFamily::Deepseek; }
  bool isGemma() const { return is(HfArch::Gemma2) || is(HfArch::Gemma3); }
  /// Experts by sigmoids and a bias, some dense layers first, and predictors of further tokens.
  bool hasSigmoids() const { return is(HfArch::DeepseekV3) || is(HfArch::Glm4Moe); }
  bool isLlama4() const { return is(HfArch::Llama4); }
  bool isQwen() const { return config_.modelType.starts_with("qwen"); }
  void add(std::string name, PlainValue value) {
    entries_.emplace_back(std::move(name), std::move(value));
  }
  void refuse(const std::string &key, const json &value, const std::string &needed);

  static const json *find(const json &object, const char *key);
  const json *find(const char *key) const { return find(file_, key); }
  double number(const json &object, const std::string &prefix, const char *key, double otherwise);
  double number(const char *key, double otherwise) { return number(file_, "", key, otherwise); }
  int64_t whole(const json &object, const std::string &prefix, const char *key, int64_t otherwise);
  int64_t whole(const char *key, int64_t otherwise) { return whole(file_, "", key, otherwise); }
  std::string word(const json &object, const std::string &prefix, const char *key);
  bool flag(const char *key, bool otherwise = false);
  void addSizes();
  void addNorms();
  void addScales();
  void addActivation();
  void addBiases();
  void addRotation();
  const json &ofFullLayers(const json &rope, const json &unscaled, std::string &prefix);
  void addScaling(const json &rope, const std::string &prefix);
  void addLlama3(const json &rope, const std::string &prefix);
  void addYarn(const json &rope, const std::string &prefix);
  void addMagnitude(const json &rope, const std::string &prefix);
  void addUnrotatedLayers();
  void addWindow();
  void addWindowOf(int64_t width, int64_t fullEvery);
  void addWindowLayers(int64_t width, const json &types);
  void addExperts();
  void addExpertLayers();
  void addRouter();
  void addGroups();
  void addDropout();
  void addCopies();
  void addSilent();

  const HfConfig &config_;
  const HfBiases &biases_;
  const json &file_;
  const std::string &path_;
  std::string *place_;
  PlainEntries entries_;
  Status failure_;
};

void Arguments::refuse(const std::string &key, const json &value, const std::string &needed) {
  constexpr size_t kShown = 60;
  std::string shown = toText(value, /*indent=*/-1, /*isAscii=*/true);
  if (shown.size() > kShown)
    shown = shown.substr(0, kShown) + "...";
  if (!failure_.isOk())
    return;
  failure_ = makeStatus(report::HfSettingRefused, path_, key, shown, needed);
  if (place_ != nullptr)
    *place_ = key;
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

void Arguments::addSizes() {
  add("num_layers", config_.layers);
  add("hidden_size", config_.hidden);
  add("num_attention_heads", config_.heads);
  // Latent attention has keys for each head, whatever the file says.
  int64_t groups = isLatent() ? config_.heads : config_.groups;
  add("group_query_attention", groups != config_.heads);
  add("num_query_groups", groups);
  add("kv_channels", config_.headDim);
  add("ffn_hidden_size", isGpt2() ? whole("n_inner", 4 * config_.hidden) : config_.ffn);
  add("vocab_size", config_.vocab);
  add("mask_padded_vocab", true); // rows of padding are made by the import
  add("share_embeddings_and_output_weights", config_.isTied);
  add("untie_embeddings_and_output_weights", !config_.isTied);
  if (find("max_position_embeddings") != nullptr)
    add("max_position_embeddings", whole("max_position_embeddings", 0));
}

void Arguments::addNorms() {
  add("normalization", isGpt2() || is(HfArch::Nemotron) ? "LayerNorm" : "RMSNorm");
  add("layernorm_zero_centered_gamma", is(HfArch::Nemotron) || isGemma());
  bool isOlmo = is(HfArch::Olmo2), isChosen = is(HfArch::Glm4Moe) && flag("use_qk_norm");
  add("qk_layernorm", is(HfArch::Qwen3) || is(HfArch::Qwen3Moe) || isLatent() || isOlmo ||
                          is(HfArch::Gemma3) || isChosen);
  add("qk_layernorm_full_width", isOlmo);
  add("qk_l2_norm", isLlama4() && flag("use_qk_norm", true));
  add("pre_layernorm", !isOlmo);
  bool isBehindToo = is(HfArch::Glm4) || isGemma();
  add("post_self_attn_layernorm", isOlmo || isBehindToo);
  add("post_mlp_layernorm", isOlmo || isBehindToo);
}

/// Gemma scales embeddings, and scores by a number that need not be the size of a head.
void Arguments::addScales() {
  add("scale_embeddings", isGemma());
  constexpr double kSilent = 256; // what the library takes where the file is silent
  if (!isGemma())
    return;
  double scalar = number("query_pre_attn_scalar", kSilent);
  if (scalar <= 0)
    refuse("query_pre_attn_scalar", scalar, "a number above 0");
  else if (scalar != static_cast<double>(config_.headDim))
    add("softmax_scale", std::pow(scalar, -0.5));
}

/// "gelu_new" is the approximation by tanh, which a recipe computes where bias and activation are
/// fused.
void Arguments::addActivation() {
  if (is(HfArch::GptOss)) {
    add("activation_func", "quick_gelu");
    add("gated_linear_unit", true);
    add("glu_linear_offset", 1.0);
    return add("softmax_type", "learnable");
  }
  const char *key = isGpt2()    ? "activation_function"
                    : isGemma() ? "hidden_activation"
                                : "hidden_act";
  std::string name = word(file_, "", key);
  if (name.empty())
    name = isGpt2()               ? "gelu_new"
           : isGemma()            ? "gelu_pytorch_tanh"
           : is(HfArch::Nemotron) ? "relu2"
                                  : "silu";
  bool isTanh = name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast";
  std::string ours = isTanh            ? "gelu"
                     : name == "swish" ? "silu"
                     : name == "relu2" ? "squared_relu"
                                       : name;
  constexpr std::string_view kKnown[] = {"gelu", "silu", "relu", "squared_relu", "quick_gelu"};
  if (std::ranges::find(kKnown, ours) == std::end(kKnown))
    refuse(key, name, "one of silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2, quick_gelu");
  add("activation_func", ours);
  bool isGated = !isGpt2() && !is(HfArch::Nemotron);
  add("gated_linear_unit", isGated);
  add("swiglu", isGated && ours == "silu");
  add("squared_relu", ours == "squared_relu");
  if (ours == "gelu")
    add("bias_activation_fusion", isTanh);
}

/// A recipe has biases in all linear layers, or in those of queries, keys and values alone.
void Arguments::addBiases() {
  bool isInAll =
      isGpt2() || is(HfArch::GptOss) || (biases_.ofQkv && biases_.ofProjection && biases_.ofMlp);
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
  double weight = number(rope, prefix, "mscale", 0);
  double divisor = number(rope, prefix, "mscale_all_dim", 0);
  bool hasBoth = weight != 0 && divisor != 0;
  if (isLatent() && !hasBoth && divisor != 0)
    refuse(prefix + "mscale_all_dim", divisor, "0, or a number beside a 'mscale' that is not 0,");
  if (isLatent()) {
    add("mscale", hasBoth ? weight : 1.0);
    add("mscale_all_dim", divisor);
  } else if (hasBoth) {
    add("yarn_mscale", weight);
    add("yarn_mscale_all_dim", divisor);
  }
}

/// Latent attention has options of its own for it.
void Arguments::addYarn(const json &rope, const std::string &prefix) {
  add(isLatent() ? "rotary_scaling_factor" : "yarn_rotary_scaling_factor",
      number(rope, prefix, "factor", 1));
  struct Field {
    const char *key, *latent, *other;
    double otherwise;
  };
  const Field fields[] = {{"beta_fast", "beta_fast", "yarn_beta_fast", 32},
                          {"beta_slow", "beta_slow", "yarn_beta_slow", 1}};
  for (const Field &field : fields)
    if (find(rope, field.key) != nullptr || isLatent())
      add(isLatent() ? field.latent : field.other,
          number(rope, prefix, field.key, field.otherwise));
  addMagnitude(rope, prefix);
  const json *truncates = find(rope, "truncate");
  bool isWhole = truncates == nullptr || !truncates->is_boolean() || truncates->get<bool>();
  if (!isWhole && isLatent())
    refuse(prefix + "truncate", *truncates, "true, as latent attention has it");
  else if (!isLatent())
    add("yarn_correction_range_round_to_int", isWhole);
  int64_t positions = whole(rope, prefix, "original_max_position_embeddings",
                            whole("max_position_embeddings", 4096));
  add(isLatent() ? "original_max_position_embeddings" : "yarn_original_max_position_embeddings",
      positions);
  if (const json *factor = find(rope, "attention_factor"); factor != nullptr)
    refuse(prefix + "attention_factor", *factor, "none");
}

void Arguments::addScaling(const json &rope, const std::string &prefix) {
  const char *key = find(rope, "rope_type") != nullptr ? "rope_type" : "type";
  std::string type = word(rope, prefix, key);
  if (is(HfArch::Phi3) && !type.empty() && type != "default")
    return refuse(prefix + key, type, "default");
  if (type == "yarn") {
    add("position_embedding_type", isLatent() ? "rope" : "yarn");
    if (isLatent())
      add("rope_type", "yarn");
    return addYarn(rope, prefix);
  }
  add("position_embedding_type", "rope");
  if (isLatent()) { // the scale of its scores has the weight whatever the rotation
    add("rope_type", "rope");
    add("mscale", 1.0);
    add("mscale_all_dim", 0.0);
  }
  if (type == "llama3")
    return addLlama3(rope, prefix);
  add("rope_scaling", false);
  add("use_rope_scaling", false);
  if (type == "linear")
    add("seq_len_interpolation_factor", number(rope, prefix, "factor", 1));
  else if (!type.empty() && type != "default")
    refuse(prefix + key, type, "one of default, llama3, linear, yarn");
}

/// Newer files of Gemma 3 have an object for each kind of layers in place of one for all.
const json &Arguments::ofFullLayers(const json &rope, const json &unscaled, std::string &prefix) {
  const json *windows = find(rope, "sliding_attention"), *full = find(rope, "full_attention");
  const std::pair<const char *, const json *> parts[] = {{"sliding_attention", windows},
                                                         {"full_attention", full}};
  for (const auto &[key, part] : parts)
    if (part != nullptr && !part->is_object())
      refuse(prefix + key, *part, "an object");
  if (windows != nullptr && windows->is_object()) {
    std::string own = prefix + "sliding_attention.", type = word(*windows, own, "rope_type");
    if (!type.empty() && type != "default")
      refuse(own + "rope_type", type, "default");
    add("window_rotary_base",
        number(*windows, own, "rope_theta", number("rope_local_base_freq", 1e4)));
  }
  if (windows == nullptr && full == nullptr) {
    if (prefix == "rope_parameters." && !rope.empty()) // the library would not read it
      refuse("rope_parameters", rope, "an object for each kind of layers");
    return rope;
  }
  prefix += "full_attention.";
  return full != nullptr && full->is_object() ? *full : unscaled;
}

/// Newer files have the base and the scaling in one object.
void Arguments::addRotation() {
  if (isGpt2()) {
    add("position_embedding_type", "learned_absolute");
    return add("add_position_embedding", true);
  }
  add("add_position_embedding", false);
  json unscaled = json::object();
  if (is(HfArch::GptOss)) // what the library takes where the file is silent
    unscaled = {{"rope_type", "yarn"}, {"factor", 32.0},
                {"beta_fast", 32.0},   {"beta_slow", 1.0},
                {"truncate", false},   {"original_max_position_embeddings", 4096}};
  const json *scaling = find("rope_scaling"); // an empty one says nothing
  bool isScaled = scaling != nullptr && !(scaling->is_object() && scaling->empty());
  const char *name = isScaled ? "rope_scaling" : "rope_parameters";
  const json *rope = find(name);
  if (rope != nullptr && !rope->is_object())
    return refuse(name, *rope, "an object");
  rope = rope != nullptr ? rope : &unscaled;
  std::string prefix = fmt::format("{}.", name);
  if (is(HfArch::Gemma3))
    rope = &ofFullLayers(*rope, unscaled, prefix);
  bool isMillion = is(HfArch::Mixtral) || is(HfArch::Gemma3);
  double base = number("rope_theta", isMillion            ? 1e6
                                     : isLlama4()         ? 5e5
                                     : is(HfArch::GptOss) ? 1.5e5
                                                          : 1e4);
  add("rotary_base", number(*rope, prefix, "rope_theta", base));
  bool isHalf = is(HfArch::Nemotron) || is(HfArch::Glm4) || is(HfArch::Glm4Moe);
  double share = number("partial_rotary_factor", isHalf ? 0.5 : 1);
  add("rotary_percent", number(*rope, prefix, "partial_rotary_factor", share));
  bool isByPairs = is(HfArch::Glm4) || isLlama4();
  add("rotary_interleaved", isByPairs);
  bool isWhole = findEntry(entries_, "rotary_percent")->number() == 1 && !isByPairs;
  const char *key = find(*rope, "rope_type") != nullptr ? "rope_type" : "type";
  if (!isWhole && word(*rope, prefix, key) == "yarn") // turns whole heads in halves in a recipe
    refuse(prefix + key, "yarn", "one of default, llama3, linear, as parts of heads are rotated,");
  addScaling(*rope, prefix);
}

/// Layers without rotations as a number for every n-th, or as a list. The others are those whose
/// attention is limited to chunks.
void Arguments::addUnrotatedLayers() {
  if (!isLlama4())
    return;
  const std::vector<bool> &rotated = config_.isRotated;
  auto first = std::ranges::find(rotated, false) - rotated.begin();
  bool isEvery = true;
  PlainItems list;
  for (size_t layer = 0; layer < rotated.size(); ++layer) {
    isEvery &= rotated[layer] == ((static_cast<int64_t>(layer) + 1) % (first + 1) != 0);
    list.push_back(static_cast<int64_t>(!rotated[layer]));
  }
  if (first == std::ssize(rotated))
    add("no_rope_freq", PlainValue());
  else
    add("no_rope_freq", isEvery && first > 0 ? PlainItems{first + 1} : std::move(list));
  add("attn_temperature_tuning", flag("attn_temperature_tuning", true));
  const json *types = find("layer_types");
  if (types == nullptr)
    return;
  bool hasChunks = !file_.contains("attention_chunk_size") || find("attention_chunk_size");
  bool isKnown = types->is_array() && types->size() == rotated.size();
  for (size_t layer = 0; isKnown && layer < rotated.size(); ++layer)
    isKnown =
        (*types)[layer] == (rotated[layer] && hasChunks ? "chunked_attention" : "full_attention");
  if (!isKnown)
    refuse("layer_types", *types,
           "\"chunked_attention\" for each layer with rotations and \"full_attention\" for others");
}

/// A window of W positions has W - 1 before the own one.
void Arguments::addWindow() {
  if (isLlama4())
    return addWindowOf(0, 0);
  constexpr int64_t kSilentLayers = 28; // what the library takes where the file is silent
  bool isOn = !isQwen() || flag("use_sliding_window");
  bool isLong = is(HfArch::Mistral) || isQwen() || isGemma();
  int64_t silent = isLong ? 4096 : is(HfArch::GptOss) ? 128 : 0;
  bool isSaid = file_.contains("sliding_window");
  int64_t width = isOn ? whole("sliding_window", isSaid ? 0 : silent) : 0;
  const json *types = find("layer_types");
  bool isFromLayer = (is(HfArch::Qwen2) || is(HfArch::Qwen3)) && types == nullptr;
  int64_t from = isFromLayer ? whole("max_window_layers", kSilentLayers) : 0;
  if (from >= config_.layers)
    width = 0;
  if (width > 0 && from > 0)
    refuse("max_window_layers", from,
           "0 (a window in all layers) or the number of layers (in none)");
  if (types != nullptr && !types->is_array())
    return refuse("layer_types", *types, "a list");
  bool readsTypes = is(HfArch::Qwen2) || is(HfArch::Qwen3) || is(HfArch::Qwen2Moe) ||
                    is(HfArch::GptOss) || isGemma();
  if (types != nullptr && readsTypes)
    return addWindowLayers(width, *types);
  const char *word = width > 0 ? "sliding_attention" : "full_attention";
  if (types != nullptr && std::ranges::any_of(*types, [&](const json &t) { return t != word; }))
    return refuse("layer_types", *types, fmt::format("{} in every layer", word));
  int64_t every = is(HfArch::Gemma3) ? whole("sliding_window_pattern", 6) : 2;
  bool isAlternating = is(HfArch::GptOss) || isGemma();
  if (isAlternating && every == 1) // no layer has one
    width = 0;
  addWindowOf(width, isAlternating ? every : 0);
}

/// Layers without a window are every n-th, or all or none.
void Arguments::addWindowLayers(int64_t width, const json &types) {
  constexpr const char *kWindow = "sliding_attention", *kFull = "full_attention";
  auto isFull = [&](size_t layer) { return width == 0 || types[layer] == json(kFull); };
  size_t every = 0;
  while (every < types.size() && !isFull(every))
    ++every;
  every = every < types.size() ? every + 1 : 0; // 0: none is without
  bool isKnown = static_cast<int64_t>(types.size()) == config_.layers;
  for (size_t layer = 0; isKnown && layer < types.size(); ++layer) {
    isKnown = types[layer] == json(kFull) || (types[layer] == json(kWindow) && width > 0);
    isKnown &= isFull(layer) == (every != 0 && (layer + 1) % every == 0);
  }
  if (!isKnown)
    return refuse("layer_types", types,
                  fmt::format("one of {} layers, of which every n-th or none or all are '{}'{}",
                              config_.layers, kFull,
                              width > 0 ? fmt::format(" and the others '{}'", kWindow) : ""));
  addWindowOf(every == 1 ? 0 : width, static_cast<int64_t>(every));
}

void Arguments::addWindowOf(int64_t width, int64_t fullEvery) {
  if (width > 0)
    add("window_size", PlainItems{width - 1, 0});
  else
    add("window_size", PlainValue());
  if (width > 0 && fullEvery > 1)
    add("window_attn_skip_freq", fullEvery);
  else
    add("window_attn_skip_freq", PlainValue());
}

/// Which layers have experts: all, or a list.
void Arguments::addExpertLayers() {
  PlainItems layers;
  bool areAll = true;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    layers.push_back(static_cast<int64_t>(config_.hasExperts(layer)));
    areAll &= config_.hasExperts(layer);
  }
  if (!areAll)
    add("moe_layer_freq", std::move(layers));
}

void Arguments::addExperts() {
  bool isDense = true;
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    isDense &= !config_.hasExperts(layer);
  bool isOnly = is(HfArch::GptOss) && config_.experts == 1; // which is a dense layer
  if (isDense || isOnly)
    return add("num_moe_experts", PlainValue());
  add("num_moe_experts", config_.experts);
  add("num_experts", config_.experts);
  add("moe_ffn_hidden_size", config_.expertFfn);
  if (config_.sharedFfn > 0)
    add("moe_shared_expert_intermediate_size", config_.sharedFfn);
  if (is(HfArch::Qwen2Moe))
    add("moe_shared_expert_gate", true);
  if (const json *topk = find("experts_per_token"); topk != nullptr)
    add("moe_router_topk", whole("experts_per_token", 0));
  addExpertLayers();
  addRouter();
}

void Arguments::addRouter() {
  add("moe_router_score_function", hasSigmoids() || isLlama4() ? "sigmoid" : "softmax");
  if (hasSigmoids())
    add("moe_router_enable_expert_bias", true);
  // The chosen probabilities add up to one if the softmax is over them alone.
  bool isOfAll = is(HfArch::DeepseekV2) ||
                 ((is(HfArch::Qwen2Moe) || is(HfArch::Qwen3Moe)) && !flag("norm_topk_prob"));
  if (!hasSigmoids())
    add("moe_router_pre_softmax", isOfAll);
  if (isLatent() || hasSigmoids())
    addGroups();
  if (!isLlama4())
    return;
  add("moe_apply_probs_on_input", true);
  if (int64_t topk = whole("num_experts_per_tok", 1); topk != 1)
    refuse("num_experts_per_tok", topk, "1, as scores multiply the input of experts,");
}

/// A recipe adds up the best scores of a group, as many as each chosen group gives experts.
void Arguments::addGroups() {
  bool isOfSigmoids = hasSigmoids(), isGrouped = is(HfArch::DeepseekV3);
  int64_t topk = whole("num_experts_per_tok", hfFallback(config_.arch, "num_experts_per_tok"));
  std::string method = word(file_, "", "topk_method");
  bool isGreedy = !isOfSigmoids && (method.empty() || method == "greedy");
  if (!isOfSigmoids && !isGreedy && method != "group_limited_greedy")
    refuse("topk_method", method, "greedy or group_limited_greedy");
  if (topk < 1 || (isOfSigmoids && topk == 1)) // one sigmoid divided by itself
    refuse("num_experts_per_tok", topk, fmt::format("{} or more", isOfSigmoids ? 2 : 1));
  int64_t groups = isGreedy ? 1 : whole("n_group", isGrouped ? 8 : 1);
  int64_t chosen = isGreedy ? 1 : whole("topk_group", isGrouped ? 4 : 1);
  int64_t summed = isOfSigmoids ? 2 : 1; // by the library
  if (groups > 1 && chosen != groups && topk != summed * chosen)
    refuse(
        "topk_group", chosen,
        fmt::format("{} (with another, a recipe judges a group by other scores than the library)",
                    topk / summed));
  if (groups > 1 && chosen != groups) {
    add("moe_router_num_groups", groups);
    return add("moe_router_group_topk", chosen);
  }
  add("moe_router_num_groups", PlainValue());
  add("moe_router_group_topk", PlainValue());
}

/// A recipe has one dropout after embeddings and in layers.
void Arguments::addDropout() {
  if (!isGpt2())
    return add("hidden_dropout", 0.0);
  double inLayers = number("resid_pdrop", 0.1), ofEmbedding = number("embd_pdrop", 0.1);
  if (inLayers != ofEmbedding)
    refuse("embd_pdrop", ofEmbedding, fmt::format("{}, that of resid_pdrop,", inLayers));
}

/// Fields that are options as they are; what is there already follows from several.
void Arguments::addCopies() {
  const PlainValue *experts = findEntry(entries_, "num_moe_experts");
  bool hasExperts = experts != nullptr && experts->wholeNumber().has_value();
  for (const HfField &row : hfFields()) {
    bool isOff = row.text.starts_with("moe_") && !hasExperts;
    if (!row.isOf(config_.arch) || row.use != HfUse::Copy || isOff ||
        findEntry(entries_, row.text) != nullptr)
      continue;
    const std::string field(row.name), option(row.text);
    json from = parseJson(row.fallback.empty() ? "null" : row.fallback);
    if (auto found = file_.find(field); found != file_.end())
      from = *found;
    if (from.is_null()) // as the library's own null: none
      add(option, PlainValue());
    else if (row.type == HfType::Whole)
      add(option, whole(json{{field, from}}, "", field.c_str(), 0));
    else
      add(option, number(json{{field, from}}, "", field.c_str(), 0));
  }
}

/// What else a recipe could have, which models of this architecture do not.
void Arguments::addSilent() {
  const PlainValue *experts = findEntry(entries_, "num_moe_experts");
  bool hasExperts = experts != nullptr && experts->wholeNumber().has_value();
  struct Silent {
    const char *option;
    PlainValue value;
    bool isOfExperts = false;
  };
  const Silent rows[] = {{"softmax_type", "vanilla"},
                         {"softmax_scale", {}},
                         {"attn_logit_softcapping", {}},
                         {"final_logit_softcapping", {}},
                         {"window_rotary_base", {}},
                         {"glu_linear_offset", 0.0},
                         {"no_rope_freq", {}},
                         {"attention_chunk_size", {}},
                         {"attn_temperature_tuning", false},
                         {"moe_apply_probs_on_input", false, true},
                         {"activation_func_clamp_value", {}},
                         {"seq_len_interpolation_factor", {}},
                         {"moe_layer_freq", {}, true},
                         {"moe_shared_expert_intermediate_size", {}, true},
                         {"moe_shared_expert_gate", false, true},
                         {"moe_router_num_groups", {}, true},
                         {"moe_router_group_topk", {}, true},
                         {"moe_router_topk_scaling_factor", {}, true},
                         {"moe_router_enable_expert_bias", false, true}};
  for (const Silent &row : rows)
    if ((hasExperts || !row.isOfExperts) && findEntry(entries_, row.option) == nullptr)
      add(row.option, row.value);
}

Result<PlainEntries> Arguments::build() {
  addSizes();
  addNorms();
  addScales();
  addActivation();
  addBiases();
  addRotation();
  addUnrotatedLayers();
  addWindow();
  addExperts();
  add("mtp_num_layers", config_.mtpLayers > 0 ? PlainValue(config_.mtpLayers) : PlainValue());
  add("multi_latent_attention", isLatent());
  addDropout();
  addCopies();
  addSilent();
  RETURN_IF_ERROR(failure_);
  return std::move(entries_);
}

} // namespace

HfBiases biasesSaid(const HfConfig &config, std::string_view text) {
  const json file = parseJson(text);
  SHARDC_CHECK(file.is_object(), "the file was parsed before");
  auto said = file.find("attention_bias");
  bool isSaid = said != file.end() && said->is_boolean();
  bool isInAttention = isSaid && said->get<bool>();
  bool isQwen2 = config.arch == HfArch::Qwen2 || config.arch == HfArch::Qwen2Moe;
  if (config.arch == HfArch::Glm4) // whose output projection has none
    return {.ofQkv = isInAttention || !isSaid, .ofProjection = false, .ofMlp = false};
  if (config.arch == HfArch::Glm4Moe) // neither has it
    return {.ofQkv = isInAttention, .ofProjection = false, .ofMlp = false};
  return {
      .ofQkv = isQwen2 || isInAttention, .ofProjection = isInAttention, .ofMlp = config.hasMlpBias};
}

Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 std::string_view text, const std::string &path,
                                 std::string *place) {
  const json file = parseJson(text);
  SHARDC_CHECK(file.is_object(), "'{}' was parsed before", path);
  RETURN_IF_ERROR(checkHfFields(file, path, place));
  return Arguments(config, biases, file, path, place).build();
}

} // namespace shardc::checkpoint
