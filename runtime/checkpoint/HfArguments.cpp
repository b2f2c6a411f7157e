#include "runtime/checkpoint/HfArguments.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

/// The value of a table row as a plain value.
PlainValue plainValueOf(const json &value) {
  if (value.is_boolean())
    return value.get<bool>();
  if (value.is_number_integer())
    return value.get<int64_t>();
  if (value.is_number())
    return value.get<double>();
  return value.is_string() ? PlainValue(value.get<std::string>()) : PlainValue();
}

/// Builds the options of a recipe, and collects the fields that no recipe supports.
class Arguments {
public:
  Arguments(const HfConfig &config, const HfBiases &biases)
      : config_(config), biases_(biases), file_(config.file.fields) {}

  PlainEntries build();
  const HfFaults &faults() const { return faults_; }

private:
  /// Whether this architecture has the field, and the field affects options.
  bool reads(const char *field) const { return readsHfField(config_.arch, field); }
  json fallback(const char *field) const { return hfFallback(config_.arch, field); }
  /// The value in the file, or the library's default.
  json valueOf(const HfField &row) const {
    auto found = file_.find(row.name);
    return found != file_.end() ? *found : hfFallback(config_.arch, row.name);
  }
  int64_t wholeFallback(const char *field) const { return hfWholeFallback(config_.arch, field); }
  /// Whether layers without a window have no rotations if others may have a window.
  bool rotatesWindows() const { return hfOption(config_.arch, "no_rope_freq") == "full_attention"; }
  bool isLatent() const { return config_.layout == HfLayout::Deepseek; }
  /// Whether the option is about experts, but the model has none.
  bool isOff(std::string_view option) const {
    const PlainValue *experts = findEntry(entries_, "num_moe_experts");
    bool hasExperts = experts != nullptr && experts->wholeNumber().has_value();
    return option.starts_with("moe_") && !hasExperts;
  }
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
  void addScales();
  void addActivation();
  void addBiases();
  void addRotation();
  const json &ofFullLayers(const json &rope, const json &unscaled, std::string &prefix);
  void addScaling(const json &rope, const std::string &prefix);
  void addLlama3(const json &rope, const std::string &prefix);
  void addYarn(const json &rope, const std::string &prefix);
  void addAmax(const json &rope, const std::string &prefix);
  void addUnrotatedLayers();
  void addUnrotated(const std::vector<bool> &rotated);
  void addWindow();
  int64_t fullEvery();
  void addWindowOf(int64_t width, PlainValue pattern);
  void addWindowLayers(int64_t width, const json &types);
  void addShortConvs();
  void addExperts();
  void addExpertLayers();
  void addRouter();
  void addGroups();
  void addCopies();
  void agree(const HfField &row);
  void addOptions();

  const HfConfig &config_;
  const HfBiases &biases_;
  const json &file_; ///< fields of the text model
  PlainEntries entries_;
  HfFaults faults_;
};

/// Records one error per field, since several options may read it.
void Arguments::refuse(const std::string &key, const json &value, const std::string &needed) {
  std::string field = config_.file.prefix + key;
  if (std::ranges::find(faults_, field, &HfFault::field) == faults_.end())
    faults_.push_back({field, makeStatus(report::HfSettingRefused, config_.file.path, field,
                                         shownHfValue(value), needed)});
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
  constexpr double kMax = 1e15; // below this limit, doubles represent whole numbers exactly
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
  // Latent attention has keys for each head, regardless of the file.
  int64_t groups = isLatent() ? config_.heads : config_.groups;
  add("group_query_attention", groups != config_.heads);
  add("num_query_groups", groups);
  add("kv_channels", config_.headDim);
  add("ffn_hidden_size", config_.ffn);
  add("vocab_size", config_.vocab);
  add("share_embeddings_and_output_weights", config_.isTied);
  add("untie_embeddings_and_output_weights", !config_.isTied);
  if (find("max_position_embeddings") != nullptr)
    add("max_position_embeddings", whole("max_position_embeddings", 0));
}

/// Adds the scale of attention scores, which may be derived from a number other than the head size,
/// the factor of logits from its reciprocal, and the constant of norms in latent attention.
void Arguments::addScales() {
  constexpr double kLatentEps = 1e-6;
  if (isLatent() && number("rms_norm_eps", fallback("rms_norm_eps").get<double>()) != kLatentEps)
    add("latent_layernorm_epsilon", kLatentEps);
  if (reads("logits_scaling"))
    add("logits_multiplier", 1 / number("logits_scaling", 1));
  constexpr const char *kField = "query_pre_attn_scalar";
  if (!reads(kField))
    return;
  double scalar = number(kField, fallback(kField).get<double>());
  if (scalar <= 0)
    refuse(kField, scalar, "a number above 0");
  else if (scalar != static_cast<double>(config_.headDim))
    add("softmax_scale", std::pow(scalar, -0.5));
}

/// "gelu_new" is the tanh approximation. A recipe uses that if bias and activation are fused.
void Arguments::addActivation() {
  const char *key = hfActivationField(config_.arch);
  if (key == nullptr)
    return;
  std::string name = word(file_, "", key);
  if (name.empty())
    name = fallback(key).get<std::string>();
  bool isTanh = name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast";
  std::string ours = isTanh            ? "gelu"
                     : name == "swish" ? "silu"
                     : name == "relu2" ? "squared_relu"
                                       : name;
  constexpr std::string_view kKnown[] = {"gelu", "silu", "relu", "squared_relu", "quick_gelu"};
  if (std::ranges::find(kKnown, ours) == std::end(kKnown))
    refuse(key, name, "one of silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2, quick_gelu");
  add("activation_func", ours);
  bool isGated = hfOption(config_.arch, "gated_linear_unit") == true;
  add("swiglu", isGated && ours == "silu");
  add("squared_relu", ours == "squared_relu");
  if (ours == "gelu")
    add("bias_activation_fusion", isTanh);
}

void Arguments::addBiases() {
  bool areInAll = biases_.ofQkv && biases_.ofProjection && biases_.ofMlp;
  add("add_bias_linear", areInAll);
  add("add_qkv_bias", biases_.ofQkv && !areInAll);
  add("add_attn_proj_bias", biases_.ofProjection && !areInAll);
  add("add_mlp_bias", biases_.ofMlp && !areInAll);
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

/// Adds the factors that scale attention. The library uses them only if both are present and not
/// zero; otherwise it scales by the factor alone.
void Arguments::addAmax(const json &rope, const std::string &prefix) {
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

/// Adds YaRN's settings. Latent attention has options of its own for them.
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
  addAmax(rope, prefix);
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
  const json *factor = find(rope, "attention_factor");
  double usual = 0.1 * std::log(number(rope, prefix, "factor", 1)) + 1;
  bool isUsual = !isLatent() && findEntry(entries_, "yarn_mscale") == nullptr;
  bool isThat = isUsual && factor != nullptr && factor->is_number() &&
                std::abs(factor->get<double>() - usual) < 1e-9;
  if (factor != nullptr && !isThat)
    refuse(prefix + "attention_factor", *factor, isUsual ? fmt::format("{}", usual) : "none");
}

void Arguments::addScaling(const json &rope, const std::string &prefix) {
  const char *key = find(rope, "rope_type") != nullptr ? "rope_type" : "type";
  std::string type = word(rope, prefix, key);
  if (type == "yarn") {
    add("position_embedding_type", isLatent() ? "rope" : "yarn");
    if (isLatent())
      add("rope_type", "yarn");
    return addYarn(rope, prefix);
  }
  add("position_embedding_type", "rope");
  if (isLatent()) { // the weight scales its scores regardless of the rotation
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

/// The settings for layers without a window. Newer files of some architectures have one object per
/// kind of layer instead of one for all layers.
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
    double base = hfOption(config_.arch, "window_rotary_base").get<double>();
    add("window_rotary_base",
        number(*windows, own, "rope_theta", number("rope_local_base_freq", base)));
  }
  if (windows == nullptr && full == nullptr) {
    if (prefix == "rope_parameters." && !rope.empty()) // the library would ignore it
      refuse("rope_parameters", rope, "an object for each kind of layers");
    return rope;
  }
  prefix += "full_attention.";
  return full != nullptr && full->is_object() ? *full : unscaled;
}

/// Adds rotary embedding settings. Newer files have base and scaling in one object.
void Arguments::addRotation() {
  constexpr const char *kKind = "position_embedding_type";
  const bool isChosen = reads(kKind), isOn = !isChosen || word(file_, "", kKind) == "rope";
  if (!reads("rope_theta") || !isOn)
    return isOn ? void() : add(kKind, "none");
  json unscaled = fallback("rope_scaling");
  if (unscaled.is_null())
    unscaled = json::object();
  const json *scaling = find("rope_scaling"); // an empty object counts as missing
  bool isScaled = scaling != nullptr && !(scaling->is_object() && scaling->empty());
  const char *name = isScaled ? "rope_scaling" : "rope_parameters";
  const json *rope = find(name);
  if (rope != nullptr && !rope->is_object())
    return refuse(name, *rope, "an object");
  rope = rope != nullptr ? rope : &unscaled;
  std::string prefix = fmt::format("{}.", name);
  if (reads("rope_scaling.full_attention"))
    rope = &ofFullLayers(*rope, unscaled, prefix);
  double base = number("rope_theta", fallback("rope_theta").get<double>());
  base = number(*rope, prefix, "rope_theta", base);
  const char *key = find(*rope, "rope_type") != nullptr ? "rope_type" : "type";
  double alpha = reads("rope_scaling.alpha") ? number(*rope, prefix, "alpha", 0) : 0;
  bool isStretched = alpha > 0 && config_.headDim > 2 && word(*rope, prefix, key) == "dynamic";
  auto size = static_cast<double>(config_.headDim);
  add("rotary_base", isStretched ? base * std::pow(alpha, size / (size - 2)) : base);
  const HfField *whole = findHfField(config_.arch, "partial_rotary_factor");
  json usual = whole == nullptr             ? json()
               : whole->use == HfUse::Needs ? parseJson(whole->text)
                                            : fallback("partial_rotary_factor");
  double share = usual.is_null() ? 1 : usual.get<double>();
  if (reads("rotary_dim"))
    share = number("rotary_dim", share * size) / size;
  share = number("partial_rotary_factor", share);
  if (reads("rope_scaling.partial_rotary_factor"))
    share = number(*rope, prefix, "partial_rotary_factor", share);
  add("rotary_percent", share);
  bool isByPairs = hfOption(config_.arch, "rotary_interleaved") == true;
  bool isWhole = findEntry(entries_, "rotary_percent")->number() == 1 && !isByPairs;
  if (!isWhole && word(*rope, prefix, key) == "yarn") // a recipe rotates halves of whole heads
    refuse(prefix + key, "yarn", "one of default, llama3, linear, as parts of heads are rotated,");
  addScaling(isStretched ? json::object() : *rope, prefix);
}

/// Adds the layers without rotary embeddings: a number n for every n-th, or a list.
void Arguments::addUnrotated(const std::vector<bool> &rotated) {
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
}

/// Adds the layers without rotary embeddings that the file names. If attention is chunked, the
/// other layers are limited to chunks.
void Arguments::addUnrotatedLayers() {
  const std::vector<bool> &rotated = config_.isRotated;
  if (!rotated.empty())
    addUnrotated(rotated);
  const json *types = find("layer_types");
  if (rotated.empty() || types == nullptr || !reads("attention_chunk_size"))
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

/// The period of layers without a window if the file does not list them; 0 if all layers are alike.
int64_t Arguments::fullEvery() {
  constexpr const char *kPattern = "sliding_window_pattern";
  if (reads(kPattern))
    return whole(kPattern, wholeFallback(kPattern));
  return std::ssize(fallback("layer_types"));
}

/// Adds the window. A window of W positions covers W - 1 positions before the query.
void Arguments::addWindow() {
  if (reads("attention_chunk_size") || !config_.mixers.empty())
    return addWindowOf(0, PlainValue());
  bool isOn = findHfField(config_.arch, "use_sliding_window") == nullptr ||
              flag("use_sliding_window", fallback("use_sliding_window") == true);
  bool isSaid = file_.contains("sliding_window");
  int64_t width = isOn ? whole("sliding_window", isSaid ? 0 : wholeFallback("sliding_window")) : 0;
  const json *types = find("layer_types");
  bool isFromLayer = reads("max_window_layers") && types == nullptr;
  int64_t from = isFromLayer ? whole("max_window_layers", wholeFallback("max_window_layers")) : 0;
  if (from >= config_.layers)
    width = 0;
  int64_t every = types == nullptr ? fullEvery() : 0;
  if (width > 0 && (from > 0 || (every > 1 && rotatesWindows()))) {
    json list = json::array();
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      bool isFull = layer < from || (every > 1 && (layer + 1) % every == 0);
      list.push_back(isFull ? "full_attention" : "sliding_attention");
    }
    return addWindowLayers(width, list);
  }
  if (types != nullptr && !types->is_array())
    return refuse("layer_types", *types, "a list");
  if (types != nullptr && reads("layer_types"))
    return addWindowLayers(width, *types);
  const char *word = width > 0 ? "sliding_attention" : "full_attention";
  if (types != nullptr && std::ranges::any_of(*types, [&](const json &t) { return t != word; }))
    return refuse("layer_types", *types, fmt::format("{} in every layer", word));
  addWindowOf(every == 1 ? 0 : width, // every == 1: no layer has a window
              every > 1 ? PlainValue(PlainItems{every}) : PlainValue());
}

/// Adds which layers have a window. If exactly every n-th layer has none, this is the number n.
void Arguments::addWindowLayers(int64_t width, const json &types) {
  constexpr const char *kWindow = "sliding_attention", *kFull = "full_attention";
  PlainItems list;
  std::vector<bool> rotated; // if that depends on the window
  bool isKnown = static_cast<int64_t>(types.size()) == config_.layers;
  for (size_t layer = 0; isKnown && layer < types.size(); ++layer) {
    bool hasWindow = types[layer] == kWindow;
    isKnown = hasWindow ? width > 0 : types[layer] == kFull;
    list.push_back(static_cast<int64_t>(hasWindow));
    rotated.push_back(hasWindow || width == 0);
  }
  if (!isKnown)
    return refuse("layer_types", types,
                  fmt::format("a list of {} layers of '{}'{}", config_.layers, kFull,
                              width > 0 ? fmt::format(" or '{}'", kWindow) : ""));
  if (rotatesWindows())
    addUnrotated(rotated);
  int64_t every = 1;
  while (every <= config_.layers && list[static_cast<size_t>(every - 1)].wholeNumber() == 1)
    ++every;
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    if (list[static_cast<size_t>(layer)].wholeNumber() != ((layer + 1) % every != 0 ? 1 : 0))
      return addWindowOf(width, std::move(list));
  addWindowOf(every == 1 ? 0 : width,
              every <= config_.layers ? PlainValue(PlainItems{every}) : PlainValue());
}

/// `pattern` is n if every n-th layer has no window, or a list of layers, or empty if all layers
/// have a window.
void Arguments::addWindowOf(int64_t width, PlainValue pattern) {
  add("window_size", width > 0 ? PlainValue(PlainItems{width - 1, 0}) : PlainValue());
  add("window_attn_skip_freq", width > 0 ? std::move(pattern) : PlainValue());
}

/// Adds which parts layers have, or the layers that have short convolutions or linear attention. Of
/// a single layer, 1 would be the number n of every n-th layer with attention.
void Arguments::addShortConvs() {
  PlainItems layers;
  std::string symbols;
  for (HfMixer mixer : config_.mixers) {
    const bool hasAttention = mixer == HfMixer::Attention;
    const auto layer = static_cast<int64_t>(symbols.size());
    layers.push_back(static_cast<int64_t>(!hasAttention) * (config_.layers == 1 ? 2 : 1));
    symbols += hasAttention                ? '*'
               : mixer == HfMixer::Mamba   ? 'M'
               : config_.hasExperts(layer) ? 'E'
                                           : '-';
  }
  if (config_.hasOnePart) {
    add("mamba_head_dim", config_.valueDim);
    return add("hybrid_layer_pattern", symbols);
  }
  if (symbols.find_first_not_of('*') == std::string::npos)
    return;
  if (config_.keyHeads == 0)
    return add("short_conv_freq", std::move(layers));
  add("linear_attention_freq", std::move(layers));
  add("experimental_attention_variant", "gated_delta_net");
}

/// Adds the layers that have experts, unless all layers have them.
void Arguments::addExpertLayers() {
  PlainItems layers;
  bool areAll = true;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    layers.push_back(static_cast<int64_t>(config_.hasExperts(layer)));
    areAll &= config_.hasExperts(layer);
  }
  if (!areAll && !config_.hasOnePart)
    add("moe_layer_freq", std::move(layers));
}

void Arguments::addExperts() {
  bool isDense = true;
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    isDense &= !config_.hasExperts(layer);
  bool isOnly =
      // With a single expert, the layer is dense.
      config_.layout == HfLayout::GptOss && config_.experts == 1;
  if (isDense || isOnly)
    return add("num_moe_experts", PlainValue());
  add("num_moe_experts", config_.experts);
  add("num_experts", config_.experts);
  add("moe_ffn_hidden_size", config_.expertFfn);
  if (config_.sharedFfn > 0)
    add("moe_shared_expert_intermediate_size", config_.sharedFfn);
  if (const json *topk = find("experts_per_token"); topk != nullptr)
    add("moe_router_topk", whole("experts_per_token", 0));
  addExpertLayers();
  addRouter();
}

void Arguments::addRouter() {
  // The chosen probabilities add up to one if the softmax is computed over them only.
  constexpr const char *kTopk = "num_experts_per_tok", *kNorm = "norm_topk_prob";
  bool isOfSigmoids = hfOption(config_.arch, "moe_router_score_function") == "sigmoid";
  bool areDivided = flag(kNorm, fallback(kNorm) == true);
  if (reads(kNorm) && isOfSigmoids && !areDivided)
    refuse(kNorm, areDivided, "true, as sigmoids are divided by their sum,");
  if (reads(kNorm))
    add("moe_router_pre_softmax", !areDivided);
  if (reads("n_group"))
    addGroups();
  bool isOnInput = hfOption(config_.arch, "moe_apply_probs_on_input") == true;
  int64_t topk = whole(kTopk, wholeFallback(kTopk));
  if (isOnInput && topk != 1)
    refuse(kTopk, topk, "1, as scores multiply the input of experts,");
  if (isOfSigmoids && !isOnInput && topk < 2) // a single sigmoid would be divided by itself
    refuse(kTopk, topk, "2 or more");
}

/// Adds groups of experts. A recipe judges a group by the sum of its best scores; it adds as many
/// as each chosen group contributes experts.
void Arguments::addGroups() {
  bool isOfSigmoids = hfOption(config_.arch, "moe_router_score_function") == "sigmoid";
  int64_t topk = whole("num_experts_per_tok", wholeFallback("num_experts_per_tok"));
  std::string method = word(file_, "", "topk_method");
  bool isGreedy = !isOfSigmoids && (method.empty() || method == "greedy");
  if (!isOfSigmoids && !isGreedy && method != "group_limited_greedy")
    refuse("topk_method", method, "greedy or group_limited_greedy");
  if (topk < 1)
    refuse("num_experts_per_tok", topk, fmt::format("{} or more", isOfSigmoids ? 2 : 1));
  int64_t groups = isGreedy ? 1 : whole("n_group", wholeFallback("n_group"));
  int64_t chosen = isGreedy ? 1 : whole("topk_group", wholeFallback("topk_group"));
  int64_t summed = isOfSigmoids ? 2 : 1; // number of scores that the library adds
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

/// Checks that fields for the same option have the same value.
void Arguments::agree(const HfField &row) {
  const HfField &first = *findHfCopy(config_.arch, row.text);
  json own = valueOf(row), other = valueOf(first);
  if (own != other)
    refuse(std::string(row.name), own, fmt::format("{}, that of {},", toText(other), first.name));
}

/// Adds fields that correspond to one option, unless the option is already set because it follows
/// from several fields.
void Arguments::addCopies() {
  for (const HfField &row : hfFields()) {
    if (!row.isOf(config_.arch) || row.use != HfUse::Copy || isOff(row.text))
      continue;
    if (findEntry(entries_, row.text) != nullptr) {
      agree(row);
      continue;
    }
    const std::string field(row.name), option(row.text);
    if (row.type == HfType::Flag) {
      add(option, flag(field.c_str(), fallback(field.c_str()) == true));
      continue;
    }
    json from = valueOf(row);
    if (from.is_null()) // null stays null, as in the library
      add(option, PlainValue());
    else if (row.type == HfType::Whole)
      add(option, whole(json{{field, from}}, "", field.c_str(), 0));
    else
      add(option, number(json{{field, from}}, "", field.c_str(), 0));
  }
}

/// Adds options that no field sets.
void Arguments::addOptions() {
  for (const HfOption &row : hfOptions()) {
    bool isSaid = findEntry(entries_, row.option) != nullptr;
    if (row.isOf(config_.arch) && !isOff(row.option) && !isSaid)
      add(std::string(row.option), plainValueOf(parseJson(row.value)));
  }
}

PlainEntries Arguments::build() {
  addSizes();
  addScales();
  addActivation();
  addBiases();
  addRotation();
  addUnrotatedLayers();
  addWindow();
  addShortConvs();
  if (rotatesWindows() && findEntry(entries_, "no_rope_freq") == nullptr)
    add("no_rope_freq", PlainValue());
  addExperts();
  add("mtp_num_layers", config_.mtpLayers > 0 ? PlainValue(config_.mtpLayers) : PlainValue());
  addCopies();
  addOptions();
  const PlainValue *hidden = findEntry(entries_, "hidden_dropout");
  for (auto &[name, value] : entries_)
    if (name == "embedding_dropout" && value.number() == hidden->number()) // equal to its default
      value = PlainValue();
  return std::move(entries_);
}

} // namespace

const char *hfActivationField(HfArch arch) {
  for (const char *field :
       {"hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act"})
    if (readsHfField(arch, field))
      return field;
  return nullptr;
}

Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases, HfFaults *faults) {
  Arguments arguments(config, biases);
  PlainEntries entries = arguments.build();
  if (faults != nullptr)
    *faults = arguments.faults();
  RETURN_IF_ERROR(statusOf(arguments.faults()));
  return entries;
}

} // namespace shardc::checkpoint
