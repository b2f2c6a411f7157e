#include "runtime/checkpoint/HfDerive.h"

#include <cstdlib>
#include <map>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

/// The options of one section, as in the file: `  name: value` lines under `section:`.
class Options {
public:
  Options(std::string_view text, std::string_view section) {
    bool isInside = false;
    while (!text.empty()) {
      std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (!line.empty() && line[0] != ' ' && line[0] != '#')
        isInside = line == std::string(section) + ":";
      size_t name = line.find_first_not_of(' '), colon = line.find(": ");
      // Deeper lines belong to lists and other objects.
      if (isInside && name == 2 && colon != std::string_view::npos)
        values_.emplace(line.substr(name, colon - name), valueOf(line.substr(colon + 2)));
    }
  }

  bool isEmpty() const { return values_.empty(); }

  /// The value if it has that type; otherwise reports what is missing.
  int64_t integer(const char *name) {
    const json *found = find(name);
    return found && found->is_number_integer() ? found->get<int64_t>() : lack(name);
  }
  double number(const char *name) {
    const json *found = find(name);
    return found && found->is_number() ? found->get<double>() : static_cast<double>(lack(name));
  }
  bool isOn(const char *name) const {
    const json *found = find(name);
    return found && found->is_boolean() && found->get<bool>();
  }
  std::string word(const char *name) const {
    const json *found = find(name);
    return found && found->is_string() ? found->get<std::string>() : "";
  }
  double numberOr(const char *name, double fallback) const {
    const json *found = find(name);
    return found && found->is_number() ? found->get<double>() : fallback;
  }
  bool has(const char *name) const {
    const json *found = find(name);
    return found && !found->is_null();
  }
  const std::vector<std::string> &missing() const { return missing_; }

private:
  static json valueOf(std::string_view text) {
    json value = parseJson(text);
    return value.is_discarded() ? json(std::string(text)) : value; // YAML needs no quotes
  }
  const json *find(const char *name) const {
    auto found = values_.find(name);
    return found != values_.end() ? &found->second : nullptr;
  }
  int64_t lack(const char *name) {
    missing_.emplace_back(name);
    return 0;
  }

  std::map<std::string, json, std::less<>> values_;
  std::vector<std::string> missing_;
};

std::string joinedWords(const std::vector<std::string> &words) {
  std::string text;
  for (const std::string &word : words)
    text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// What no family has, one phrase each.
std::vector<std::string> obstacles(const Options &model) {
  std::vector<std::string> found;
  auto refuse = [&](bool is, const char *what) {
    if (is)
      found.emplace_back(what);
  };
  refuse(model.has("num_moe_experts"), "experts");
  refuse(model.isOn("multi_latent_attention"), "latent attention");
  refuse(model.isOn("rotary_interleaved"), "interleaved rotary positions");
  refuse(model.numberOr("rotary_percent", 1.0) != 1.0, "rotary positions of a part of each head");
  refuse(model.isOn("layernorm_zero_centered_gamma"), "norms centred on one");
  refuse(model.has("window_size"), "sliding windows");
  return found;
}

bool isLlamaLike(const Options &model) {
  return model.word("normalization") == "RMSNorm" && model.isOn("gated_linear_unit") &&
         model.word("activation_func") == "silu" &&
         model.word("position_embedding_type") == "rope" && !model.isOn("add_bias_linear");
}

/// Llama 3.1's, with the constants that the rotation has.
json scaledRotation(Options &model) {
  return {{"rope_type", "llama3"},
          {"factor", model.number("rope_scaling_factor")},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

bool isGpt2Like(const Options &model) {
  return model.word("normalization") == "LayerNorm" && !model.isOn("gated_linear_unit") &&
         model.word("activation_func") == "gelu" &&
         model.word("position_embedding_type") == "learned_absolute" &&
         model.isOn("add_bias_linear") && model.isOn("share_embeddings_and_output_weights") &&
         !model.isOn("qk_layernorm");
}

json llamaLike(Options &model) {
  bool hasNorms = model.isOn("qk_layernorm"), hasBias = model.isOn("add_qkv_bias");
  const char *type = hasNorms ? "qwen3" : hasBias ? "qwen2" : "llama";
  const char *architecture = hasNorms  ? "Qwen3ForCausalLM"
                             : hasBias ? "Qwen2ForCausalLM"
                                       : "LlamaForCausalLM";
  json config = {{"architectures", {architecture}},
                 {"model_type", type},
                 {"hidden_act", "silu"},
                 {"hidden_size", model.integer("hidden_size")},
                 {"intermediate_size", model.integer("ffn_hidden_size")},
                 {"num_hidden_layers", model.integer("num_layers")},
                 {"num_attention_heads", model.integer("num_attention_heads")},
                 {"num_key_value_heads", model.integer("num_query_groups")},
                 {"head_dim", model.integer("kv_channels")},
                 {"vocab_size", model.integer("vocab_size")},
                 {"max_position_embeddings", model.integer("seq_length")},
                 {"rms_norm_eps", model.number("layernorm_epsilon")},
                 {"rope_theta", model.number("rotary_base")},
                 {"initializer_range", model.number("init_method_std")},
                 {"attention_dropout", model.numberOr("attention_dropout", 0)},
                 {"attention_bias", hasNorms && hasBias},
                 {"mlp_bias", false},
                 {"tie_word_embeddings", model.isOn("share_embeddings_and_output_weights")}};
  if (model.isOn("rope_scaling"))
    config["rope_scaling"] = scaledRotation(model);
  return config;
}

json gpt2Like(Options &model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          // Fused with its bias it is computed by tanh, otherwise by erf.
          {"activation_function", model.isOn("bias_activation_fusion") ? "gelu_new" : "gelu"},
          {"n_embd", model.integer("hidden_size")},
          {"n_inner", model.integer("ffn_hidden_size")},
          {"n_layer", model.integer("num_layers")},
          {"n_head", model.integer("num_attention_heads")},
          {"n_positions", model.integer("max_position_embeddings")},
          {"vocab_size", model.integer("vocab_size")},
          {"layer_norm_epsilon", model.number("layernorm_epsilon")},
          {"initializer_range", model.number("init_method_std")},
          {"attn_pdrop", model.numberOr("attention_dropout", 0)},
          {"embd_pdrop", model.numberOr("hidden_dropout", 0)},
          {"resid_pdrop", model.numberOr("hidden_dropout", 0)},
          {"tie_word_embeddings", true}};
}

std::string_view textIn(const CheckedFile &file) {
  return {reinterpret_cast<const char *>(file.bytes().data()), file.bytes().size()};
}

} // namespace

Result<std::optional<Element>> computeTypeOf(const CheckpointReader &checkpoint) {
  if (!checkpoint.files().has(kRunConfigFile))
    return std::optional<Element>();
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, checkpoint.openFile(kRunConfigFile));
  Options model(textIn(*file), "model");
  std::string type = model.word("params_dtype");
  if (model.isOn("bf16") || type == "bf16")
    return std::optional(Element::BF16);
  if (model.isOn("fp16") || type == "fp16")
    return std::optional(Element::F16);
  bool isSaid = type == "fp32" || (model.has("bf16") && model.has("fp16"));
  return isSaid ? std::optional(Element::F32) : std::nullopt;
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
  Options model(textIn(**file), "model");
  if (model.isEmpty())
    return makeStatus(report::CannotConvert,
                      "'{}' has no section 'model'; give a folder with the model's config.json "
                      "with --config",
                      path);
  std::vector<std::string> against = obstacles(model);
  bool isLlama = isLlamaLike(model);
  if (!against.empty() || (!isLlama && !isGpt2Like(model)))
    return makeStatus(report::CannotConvert,
                      "no config.json can be derived for the model in '{}': {}; give a folder that "
                      "has one with --config",
                      path,
                      !against.empty() ? "it has " + joinedWords(against)
                                       : "its architecture is neither that of llama, qwen2 and "
                                         "qwen3 nor that of GPT-2 with tied embeddings");
  json config = isLlama ? llamaLike(model) : gpt2Like(model);
  if (!model.missing().empty())
    return makeStatus(report::CannotConvert, "'{}' does not set {}", path,
                      joinedWords(model.missing()));
  config["torch_dtype"] = torchType;
  return toText(config, 2) + "\n";
}

} // namespace shardc::checkpoint
