#include "runtime/checkpoint/HfDerive.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/RunOptions.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

/// The pattern of layers as a list of 0 and 1. A single number n means that every n-th layer,
/// counted from one, has `every`, and other layers have the other number. Other lists are returned
/// unchanged.
std::vector<int64_t> patternOf(std::vector<int64_t> said, int64_t layers, int64_t every = 1) {
  if (said.size() != 1 || said[0] < 1 || (layers == 1 && every == 1))
    return said;
  std::vector<int64_t> list;
  for (int64_t layer = 1; layer <= layers; ++layer)
    list.push_back(layer % said[0] == 0 ? every : 1 - every);
  return list;
}

/// For each layer, whether it has experts if the model has any; true for layers that have no
/// feed-forward part.
std::vector<bool> expertLayers(const RunOptions &model) {
  std::vector<int64_t> said = model.list("moe_layer_freq");
  int64_t layers = model.integerOr("num_layers", 0);
  std::vector<bool> has(static_cast<size_t>(std::max<int64_t>(layers, 0)), true);
  if (const std::string symbols = model.word("hybrid_layer_pattern"); symbols.size() == has.size())
    for (size_t layer = 0; layer < has.size(); ++layer)
      has[layer] = symbols[layer] != '-';
  else if (said.size() == has.size())
    for (size_t layer = 0; layer < has.size(); ++layer)
      has[layer] = said[layer] != 0;
  else if (said.size() == 1 && said[0] > 0) // the first of every n layers
    for (size_t layer = 0; layer < has.size(); ++layer)
      has[layer] = layer % static_cast<size_t>(said[0]) == 0;
  return has;
}

int64_t expertWidth(const RunOptions &model) {
  return model.integerOr("moe_ffn_hidden_size", model.integerOr("ffn_hidden_size", 0));
}

/// Derives the fields of one architecture.
class Deriver {
public:
  Deriver(RunOptions &model, HfArch arch) : model_(model), arch_(arch) {}

  json run();

private:
  bool isLatent() const { return infoOf(arch_).layout == HfLayout::Deepseek; }
  bool reads(const char *field) const { return readsHfField(arch_, field); }
  /// Sets a field if the architecture has it.
  void set(const char *field, json value) {
    if (findHfField(arch_, field) != nullptr)
      config_[field] = std::move(value);
  }
  void addCopies();
  void addActivation();
  void addRotation();
  void addRotatedLayers();
  json yarn();
  void addWindow();
  void addExperts();
  void addBiases();
  void addListedLayers(bool hasExperts, const std::vector<bool> &experts);
  void addPairs(const std::string &symbols);

  RunOptions &model_;
  HfArch arch_;
  json config_ = json::object();
};

/// Adds fields that correspond to one option.
void Deriver::addCopies() {
  for (const char *needed :
       {"num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size"})
    model_.integer(needed);
  model_.number("layernorm_epsilon");
  // Options of features that are absent if the option is not set. The library would enable them by
  // default, so the fields are written in any case.
  constexpr std::string_view kSwitches[] = {"q_lora_rank", "attn_logit_softcapping",
                                            "final_logit_softcapping", "attention_chunk_size"};
  for (const HfField &row : hfFields()) {
    if (!row.isOf(arch_) || row.use != HfUse::Copy)
      continue;
    if (row.type == HfType::Flag)
      config_[std::string(row.name)] = model_.isOn(std::string(row.text).c_str());
    else if (const json *value = model_.find(row.text); value != nullptr)
      config_[std::string(row.name)] = *value;
    else if (row.text == "embedding_dropout")
      config_[std::string(row.name)] = model_.numberOr("hidden_dropout", 0);
    else if (std::ranges::find(kSwitches, row.text) != std::end(kSwitches))
      config_[std::string(row.name)] = nullptr;
  }
}

void Deriver::addActivation() {
  std::string name = model_.word("activation_func");
  bool isTanh = name == "gelu" && model_.isOn("bias_activation_fusion");
  std::string theirs = isTanh ? "gelu_new" : name == "squared_relu" ? "relu2" : name;
  if (const char *field = hfActivationField(arch_); field != nullptr)
    config_[field] = theirs;
}

/// The options have other names for latent attention than for other attention, and only the latter
/// can truncate.
json Deriver::yarn() {
  bool latent = isLatent();
  json rope = {{"rope_type", "yarn"}};
  struct Row {
    const char *field, *latent, *other;
  };
  const Row rows[] = {{"factor", "rotary_scaling_factor", "yarn_rotary_scaling_factor"},
                      {"beta_fast", "beta_fast", "yarn_beta_fast"},
                      {"beta_slow", "beta_slow", "yarn_beta_slow"},
                      {"original_max_position_embeddings", "original_max_position_embeddings",
                       "yarn_original_max_position_embeddings"},
                      {"mscale", "mscale", "yarn_mscale"},
                      {"mscale_all_dim", "mscale_all_dim", "yarn_mscale_all_dim"}};
  for (const Row &row : rows)
    if (const json *value = model_.find(latent ? row.latent : row.other); value != nullptr)
      rope[row.field] = *value;
  if (findHfField(arch_, "rope_scaling.llama_4_scaling_beta") != nullptr)
    rope["llama_4_scaling_beta"] = 0.0;
  if (!latent)
    rope["truncate"] = model_.isOn("yarn_correction_range_round_to_int");
  return rope;
}

/// Lists which layers have rotary embeddings.
void Deriver::addRotatedLayers() {
  int64_t layers = model_.integerOr("num_layers", 0);
  std::vector<int64_t> unrotated = patternOf(model_.list("no_rope_freq"), layers);
  json rotated = json::array();
  for (int64_t layer = 0; layer < layers; ++layer) {
    bool isListed = layer < std::ssize(unrotated);
    rotated.push_back(isListed && unrotated[static_cast<size_t>(layer)] != 0 ? 0 : 1);
  }
  config_["no_rope_layers"] = std::move(rotated);
}

/// Writes the fields of rotary position embedding that the architecture reads, with the kind of
/// scaling that the run used: YaRN, Llama 3.1's, linear, or none.
void Deriver::addRotation() {
  if (!reads("rope_theta"))
    return;
  set("max_position_embeddings",
      model_.integerOr("max_position_embeddings", model_.integerOr("seq_length", 4096)));
  config_["rope_theta"] = model_.numberOr("rotary_base", 1e4);
  if (reads("no_rope_layers"))
    addRotatedLayers();
  if (reads("partial_rotary_factor"))
    config_["partial_rotary_factor"] = model_.numberOr("rotary_percent", 1);
  double interpolation = model_.numberOr("seq_len_interpolation_factor", 1);
  bool isYarn = model_.word(isLatent() ? "rope_type" : "position_embedding_type") == "yarn";
  if (isYarn)
    config_["rope_scaling"] = yarn();
  else if (model_.isOn("rope_scaling")) // Llama 3.1's scaling; the rotation has these constants
    config_["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", model_.number("rope_scaling_factor")},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  else if (interpolation != 1)
    config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", interpolation}};
  else if (!hfFallback(arch_, "rope_scaling").is_null()) // by default, the library would scale
    config_["rope_scaling"] = {{"rope_type", "default"}};
}

/// Writes the window of sliding-window attention, which counts the own position in config.json and
/// not in `window_size`. Architectures whose layers differ get a list with the kind of each layer,
/// also of those with short convolutions, which have no windows.
void Deriver::addWindow() {
  const bool areLinear = reads("full_attention_interval"),
             areConvs = areLinear || reads("full_attn_idxs");
  std::vector<int64_t> window = model_.list("window_size"),
                       pattern = model_.list(areLinear  ? "linear_attention_freq"
                                             : areConvs ? "short_conv_freq"
                                                        : "window_attn_skip_freq");
  bool isAlike = pattern.empty() || (pattern.size() == 1 && pattern[0] < 1);
  bool isOn = areConvs ? !isAlike : window.size() == 2 && window[0] >= 0;
  set("use_sliding_window", isOn);
  // Without a list of layers, all layers are alike. Classes whose layers differ always need a
  // window size, even if no layer has a window.
  bool isAlternating =
      areConvs || reads("sliding_window_pattern") || !hfFallback(arch_, "layer_types").is_null();
  if (!areConvs && (isOn || !isAlternating || hfOption(arch_, "no_rope_freq") == "full_attention"))
    set("sliding_window", isOn ? json(window[0] + 1) : json());
  if (isOn)
    set("max_window_layers", 0);
  if (!isAlternating && (!isOn || isAlike))
    return;
  json types = json::array();
  for (int64_t layer = 0; layer < model_.integerOr("num_layers", 0); ++layer) {
    bool hasWindow =
        isOn && (isAlike || (pattern.size() == 1 ? (layer + 1) % pattern[0] != 0
                                                 : layer < std::ssize(pattern) &&
                                                       pattern[static_cast<size_t>(layer)] != 0));
    types.push_back(!hasWindow  ? "full_attention"
                    : areLinear ? "linear_attention"
                    : areConvs  ? "conv"
                                : "sliding_attention");
  }
  set("layer_types", std::move(types));
}

/// Writes the fields of mixture-of-experts layers. Families differ in what they call them: DeepSeek
/// counts dense layers at the beginning, others list dense or expert layers.
void Deriver::addExperts() {
  bool hasExperts = model_.has("num_moe_experts");
  std::vector<bool> layers = expertLayers(model_);
  if (isLatent())
    config_["num_key_value_heads"] = model_.integer("num_attention_heads");
  if (reads("norm_topk_prob"))
    config_["norm_topk_prob"] = !model_.isOn("moe_router_pre_softmax");
  bool isGrouped = model_.has("moe_router_group_topk");
  set("n_group", isGrouped ? model_.integerOr("moe_router_num_groups", 1) : 1);
  set("topk_group", isGrouped ? model_.integerOr("moe_router_group_topk", 1) : 1);
  if (reads("n_shared_experts")) {
    auto first = std::ranges::find(layers, hasExperts);
    set("first_k_dense_replace", hasExperts ? first - layers.begin() : std::ssize(layers));
    json types = json::array();
    for (bool isSparse : layers)
      types.push_back(hasExperts && isSparse ? "sparse" : "dense");
    set("mlp_layer_types", std::move(types));
    if (!hasExperts) { // sizes that no layer uses
      config_["n_routed_experts"] = 1;
      config_["moe_intermediate_size"] = model_.integer("ffn_hidden_size");
    }
    int64_t width = model_.integerOr("moe_ffn_hidden_size", 0);
    int64_t shared = model_.integerOr("moe_shared_expert_intermediate_size", 0);
    config_["n_shared_experts"] = width > 0 ? shared / width : 0;
    if (reads("topk_method"))
      config_["topk_method"] = isGrouped ? "group_limited_greedy" : "greedy";
    set("num_nextn_predict_layers", model_.integerOr("mtp_num_layers", 0));
    return;
  }
  if (infoOf(arch_).layout == HfLayout::GptOss && !hasExperts) { // a dense layer has one expert
    config_["num_local_experts"] = 1;
    config_["num_experts_per_tok"] = 1;
  }
  if (reads("moe_layers"))
    return addListedLayers(hasExperts, layers);
  if (hasExperts && std::ranges::count(layers, false) == 0) // the width of experts, if it is any
    set("intermediate_size", expertWidth(model_));
  set("shared_expert_intermediate_size",
      model_.integerOr("moe_shared_expert_intermediate_size", 0));
  json dense = json::array();
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (!layers[layer])
      dense.push_back(layer);
  set("mlp_only_layers", std::move(dense));
}

/// Lists the layers with experts.
void Deriver::addListedLayers(bool hasExperts, const std::vector<bool> &experts) {
  config_["intermediate_size"] = expertWidth(model_);
  if (!hasExperts) { // a size that no layer uses
    config_["num_local_experts"] = 1;
    config_["num_experts_per_tok"] = 1;
  }
  json withExperts = json::array();
  for (size_t layer = 0; layer < experts.size(); ++layer)
    if (hasExperts && experts[layer])
      withExperts.push_back(layer);
  config_["moe_layers"] = std::move(withExperts);
}

/// Writes fields of models of which a layer is two of a recipe: a Mamba-2 mixer or attention, and a
/// feed-forward part. Of other recipes, the import of these fields gives another pattern.
void Deriver::addPairs(const std::string &symbols) {
  json types = json::array(), numbers = json::array();
  for (size_t at = 0; at < symbols.size(); at += 2) {
    if (symbols[at] == '*')
      numbers.push_back(types.size());
    types.push_back(symbols[at] == '*' ? "full_attention" : "linear_attention");
  }
  config_["num_hidden_layers"] = types.size();
  config_["mamba_expand"] = model_.integer("mamba_num_heads") * model_.integer("mamba_head_dim") /
                            std::max<int64_t>(model_.integer("hidden_size"), 1);
  set("position_embedding_type",
      model_.word("position_embedding_type") == "none" ? json() : json("rope"));
  const bool hasExperts = model_.has("num_moe_experts");
  if (reads("shared_intermediate_size") && !hasExperts)
    config_["num_local_experts"] = 0;
  set("shared_intermediate_size",
      model_.integer(hasExperts ? "moe_shared_expert_intermediate_size" : "ffn_hidden_size"));
  set("layer_types", std::move(types));
  set("attn_layer_indices", std::move(numbers));
}

/// Adds biases. Each field covers several linear layers, so all or none of them may have biases.
void Deriver::addBiases() {
  bool inAll = model_.isOn("add_bias_linear");
  bool ofQkv = inAll || model_.isOn("add_qkv_bias");
  bool ofProjection = inAll || model_.isOn("add_attn_proj_bias");
  bool ofMlp = inAll || model_.isOn("add_mlp_bias");
  for (const HfField &row : hfFields())
    if (row.isOf(arch_) && row.use == HfUse::Biases)
      config_[std::string(row.name)] = (!row.parts.ofQkv || ofQkv) &&
                                       (!row.parts.ofProjection || ofProjection) &&
                                       (!row.parts.ofMlp || ofMlp);
}

json Deriver::run() {
  const HfArchitecture &info = infoOf(arch_);
  addCopies();
  addActivation();
  addRotation();
  addWindow();
  if (reads("block_auto_adjust_ff_dim")) {
    config_["intermediate_size"] = model_.integer("ffn_hidden_size");
    config_["block_auto_adjust_ff_dim"] = false;
  }
  addExperts();
  const std::string symbols = model_.word("hybrid_layer_pattern");
  if (reads("mamba_n_heads"))
    addPairs(symbols);
  if (constexpr const char *kPattern = "hybrid_override_pattern"; reads(kPattern)) {
    config_[kPattern] = symbols;
    config_["time_step_limit"] = json::array({0.0, {{"__float__", "Infinity"}}});
    config_["time_step_min"] = 1e-9; // transformers raises steps to it, and takes its logarithm
  }
  config_["architectures"] = json::array({info.className});
  config_["model_type"] = info.modelType;
  if (!hfFallback(arch_, "pad_token_id").is_null())
    config_["pad_token_id"] = nullptr;
  if (reads("query_pre_attn_scalar")) {
    double scale = model_.numberOr("softmax_scale", 0);
    config_["query_pre_attn_scalar"] =
        scale > 0 ? std::llround(1 / (scale * scale)) : model_.integer("kv_channels");
  }
  if (reads("logits_scaling"))
    config_["logits_scaling"] = 1 / model_.numberOr("logits_multiplier", 1);
  config_["tie_word_embeddings"] = model_.isOn("share_embeddings_and_output_weights");
  addBiases();
  return config_;
}

/// A value as text for comparison: numbers by value, "none" if it is not set.
std::string comparedText(const json *value) {
  if (value == nullptr || value->is_null())
    return "none";
  if (value->is_string()) {
    json number = parseJson(value->get<std::string>()); // items of lists are texts
    return number.is_number() ? comparedText(&number) : value->get<std::string>();
  }
  if (value->is_number())
    return fmt::format("{}", value->get<double>());
  if (!value->is_array())
    return toText(*value);
  std::string text;
  for (const json &item : *value)
    text += (text.empty() ? "" : ", ") + comparedText(&item);
  return value->empty() ? "none" : value->size() == 1 ? text : fmt::format("[{}]", text);
}

std::vector<int64_t> wholeNumbers(const PlainValue &value) {
  std::vector<int64_t> numbers;
  if (const auto *items = value.as<PlainItems>())
    for (const PlainValue &item : *items)
      numbers.push_back(item.wholeNumber().value_or(-1));
  return numbers;
}

/// Whether the option changes what the model computes from its weights.
bool isCompared(const RunOptions &model, std::string_view option) {
  constexpr std::string_view kOthers[] = {
      // Megatron's names of options that also occur under another name
      "group_query_attention", "untie_embeddings_and_output_weights", "add_position_embedding",
      "swiglu", "squared_relu", "num_experts", "use_rope_scaling",
      // which linear attention, of which there is one
      "experimental_attention_variant",
      // options of training, and of the vocabulary's padding
      "mask_padded_vocab", "hidden_dropout", "embedding_dropout", "attention_dropout",
      "init_method_std", "max_position_embeddings"};
  if (std::ranges::find(kOthers, option) != std::end(kOthers))
    return false;
  if (option == "moe_router_enable_expert_bias") // without an expert bias, the bias is zero
    return model.isOn("moe_router_enable_expert_bias");
  if (option == "mtp_num_layers") // the tensors show it
    return false;
  if (option == "attn_floor_scale" || option == "attn_scale")
    return model.isOn("attn_temperature_tuning");
  if (option.starts_with("mamba_"))
    return model.has("hybrid_layer_pattern");
  if (option == "short_conv_kernel_dim")
    return model.has("short_conv_freq");
  if (option.starts_with("linear_")) // its sizes; the list of layers is compared in any case
    return option == "linear_attention_freq" || model.has("linear_attention_freq");
  if (option == "window_attn_skip_freq" || option == "window_rotary_base")
    return model.has("window_size");
  if (option == "ffn_hidden_size") // without a dense layer, none has this size
    return !model.has("num_moe_experts") || std::ranges::count(expertLayers(model), false) > 0;
  bool isLatent = model.isOn("multi_latent_attention");
  if (option == "kv_channels" || option == "num_query_groups")
    return !isLatent;
  if (option == "bias_activation_fusion")
    return model.word("activation_func") == "gelu";
  return true;
}

/// The pattern of layers that differ from others; "none" if no layer does.
std::string patternText(std::vector<int64_t> said, int64_t layers, int64_t every) {
  std::vector<int64_t> list = patternOf(std::move(said), layers, every);
  bool isAny = std::ranges::any_of(list, [](int64_t one) { return one != 0; });
  return isAny ? fmt::format("[{}]", fmt::join(list, ", ")) : "none";
}

/// One phrase per option whose value in the model differs from that of the run.
std::vector<std::string> differences(const RunOptions &model, const PlainEntries &arguments) {
  std::vector<std::string> found;
  for (const auto &[option, value] : arguments) {
    std::string theirs = comparedText(value, "none"), ours = comparedText(model.find(option));
    if (option == "no_rope_freq" || option == "short_conv_freq" ||
        option == "linear_attention_freq") { // in any of its notations
      int64_t layers = model.integerOr("num_layers", 0), every = option == "no_rope_freq" ? 1 : 0;
      theirs = patternText(wholeNumbers(value), layers, every);
      ours = patternText(model.list(option.c_str()), layers, every);
    }
    bool isFactor = option.ends_with("_scaling_factor") || option.ends_with("_multiplier") ||
                    option.ends_with("interpolation_factor");
    std::string_view usual = option == "pre_layernorm" ? "true" : "false";
    auto plain = [&](const std::string &text) { // unset options are off; unset factors are one
      return text == usual || (isFactor && text == "1") ? "none" : text;
    };
    bool isBias = option == "add_qkv_bias" && model.isOn("add_bias_linear"); // already included
    if (isCompared(model, option) && plain(theirs) != plain(ours) && !isBias)
      found.push_back(fmt::format("model.{} would be {} and is {}", option, theirs, ours));
  }
  return found;
}

/// The `config.json` that expresses a run's options in one architecture.
struct Candidate {
  const HfArchitecture *arch;
  std::string config;  ///< text of config.json
  std::string refused; ///< why the candidate does not match the run; empty if it does
  size_t distance = 0; ///< number of options that differ
};

Candidate candidateOf(const HfArchitecture &arch, RunOptions model, const std::string &path,
                      const std::string &torchType) {
  constexpr size_t kFar = 1000, kFarthest = 2000;
  json config = Deriver(model, arch.arch).run();
  if (!model.missing().empty())
    return {&arch, "", fmt::format("the run does not set {}", fmt::join(model.missing(), ", ")),
            kFarthest};
  config["torch_dtype"] = torchType;
  std::string text = toText(config, 2) + "\n";
  Result<HfConfig> sizes = parseHfConfig(text, path);
  if (!sizes.isOk())
    return {&arch, "", sizes.status().message(), kFar};
  Result<PlainEntries> arguments = hfArguments(*sizes, sizes->biases);
  if (!arguments.isOk())
    return {&arch, "", arguments.status().message(), kFar};
  std::vector<std::string> others = differences(model, *arguments);
  return {&arch, std::move(text), fmt::format("{}", fmt::join(others, ", ")), others.size()};
}

std::string_view textIn(const CheckedFile &file) {
  return {reinterpret_cast<const char *>(file.bytes().data()), file.bytes().size()};
}

} // namespace

Result<std::optional<Element>> computeTypeOf(const CheckpointReader &checkpoint) {
  if (!checkpoint.files().has(kRunConfigFile))
    return std::optional<Element>();
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, checkpoint.openFile(kRunConfigFile));
  RunOptions model(textIn(*file), "model");
  std::string type = model.word("params_dtype");
  if (model.isOn("bf16") || type == "bf16")
    return std::optional(Element::BF16);
  if (model.isOn("fp16") || type == "fp16")
    return std::optional(Element::F16);
  bool isSaid = type == "fp32" || (model.has("bf16") && model.has("fp16"));
  return isSaid ? std::optional(Element::F32) : std::nullopt;
}

Status checkHfConfig(const CheckpointReader &checkpoint, const HfConfig &config) {
  if (!checkpoint.files().has(kRunConfigFile))
    return Status::ok();
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, checkpoint.openFile(kRunConfigFile));
  RunOptions model(textIn(*file), "model");
  if (model.isEmpty())
    return Status::ok();
  ASSIGN_OR_RETURN(PlainEntries arguments, hfArguments(config, config.biases));
  std::vector<std::string> others = differences(model, arguments);
  return others.empty()
             ? Status::ok()
             : makeStatus(report::CannotConvert,
                          "'{}' is of another model than the run that saved '{}': {}",
                          config.file.path, checkpoint.folder(), fmt::join(others, ", "));
}

Result<std::string> deriveHfConfig(const CheckpointReader &checkpoint,
                                   const std::string &torchType) {
  std::string path = checkpoint.folder() + "/" + kRunConfigFile;
  Result<std::unique_ptr<CheckedFile>> file = checkpoint.openFile(kRunConfigFile);
  if (!file.isOk())
    return Status(file.status())
        .withMessage(fmt::format("{}; the model's config.json cannot be derived without the run's "
                                 "options; give a folder that has one with --config",
                                 file.status().message()));
  RunOptions model(textIn(**file), "model");
  if (model.isEmpty())
    return makeStatus(report::CannotConvert,
                      "'{}' has no section 'model'; give a folder with the model's config.json "
                      "with --config",
                      path);
  // Returns the first architecture that matches the options, or reports the one with the fewest
  // differences.
  std::optional<Candidate> best;
  for (const HfArchitecture &arch : hfArchitectures()) {
    Candidate candidate = candidateOf(arch, model, path, torchType);
    if (candidate.refused.empty())
      return std::move(candidate.config);
    if (!best.has_value() || candidate.distance < best->distance)
      best = std::move(candidate);
  }
  return makeStatus(report::CannotConvert,
                    "no config.json can be derived for the model in '{}': of {}, {}; give a "
                    "folder that has one with --config",
                    path, best->arch->className, best->refused);
}

} // namespace shardc::checkpoint
