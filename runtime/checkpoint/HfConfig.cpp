// Reads the settings of a `config.json` that determine which rows of which tensors form each
// parameter, and checks that they are within the limits of a model.
#include "runtime/checkpoint/HfModel.h"

#include <algorithm>
#include <limits>

#include "runtime/base/Json.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 31;
constexpr int64_t kSizeTaken = std::numeric_limits<int64_t>::max();
constexpr int64_t kHeadsMax = 65'536;
/// Limit on the names of tensors and segments in a model, each of which takes hundreds of bytes.
constexpr int64_t kPartsMax = 1 << 18;

/// Reads the fields of a `config.json` and checks their types. Reports the first field with a wrong
/// type.
class JsonFields {
public:
  explicit JsonFields(const HfFile &file) : json_(file.fields), file_(file) {}

  /// The value of the first of these keys that is set; `fallback` if none is.
  int64_t size(std::initializer_list<const char *> keys, int64_t fallback = 0) {
    for (const char *key : keys) {
      const nlohmann::json *value = find(key);
      bool isSize = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || *value <= kSizeTaken);
      if (isSize) // checkBounds() checks its range
        return value->get<int64_t>();
      if (value != nullptr)
        refuse(key, *value, "a whole number");
    }
    return fallback;
  }
  /// A list of layer numbers.
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
  const HfFaults &faults() const { return faults_; }
  void refuse(const char *key, const nlohmann::json &value, const std::string &needed) {
    if (!faults_.empty())
      return;
    std::string field = file_.prefix + key;
    Status status = cannotConvert("'{}': {} is {}; {} is needed", file_.path, field,
                                  shownHfValue(value), needed);
    faults_.push_back({std::move(field), std::move(status)});
  }

private:
  /// Returns null for a field that is null, since hubs write unset fields as null.
  const nlohmann::json *find(const char *key) const {
    auto found = json_.find(key);
    return found != json_.end() && !found->is_null() ? &*found : nullptr;
  }

  const nlohmann::json &json_;
  const HfFile &file_;
  HfFaults faults_;
};

/// The total size of `count` experts; -1 if an argument is out of range.
int64_t productOf(int64_t count, int64_t size) {
  bool isSmall = count >= 0 && count <= kSizeMax && size >= 0 && size <= kSizeMax;
  return isSmall ? count * size : -1;
}

/// Checks that each number is within the limits of a model, and that the model's lists do not take
/// too much memory.
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
      {"linear_num_key_heads", config.keyHeads, 0, kHeadsMax},
      {"linear_num_value_heads", config.valueHeads, 0, kHeadsMax},
      {"linear_key_head_dim", config.keyDim, 0, kHeadsMax},
      {"linear_value_head_dim", config.valueDim, 0, kHeadsMax},
  };
  for (const Bound &bound : bounds)
    if (bound.value < bound.least || bound.value > bound.most)
      return cannotConvert("'{}': {} is {}; {} to {} is needed", path, bound.what, bound.value,
                           bound.least, bound.most);
  int64_t layers = config.layers + config.mtpLayers,
          parts = std::max({config.experts, config.groups, config.keyHeads});
  if (layers * parts > kPartsMax)
    return cannotConvert(
        "'{}': {} layers of {} experts and {} key/value heads; the limit of either is "
        "{} in all layers together",
        path, layers, config.experts, config.groups, kPartsMax);
  return Status::ok();
}

Status checkSizes(const HfConfig &config, const std::string &path) {
  const std::pair<const char *, int64_t> needed[] = {{"number of layers", config.layers},
                                                     {"hidden size", config.hidden},
                                                     {"number of attention heads", config.heads},
                                                     {"size of the vocabulary", config.vocab}};
  for (const auto &[what, size] : needed)
    if (size == 0)
      return cannotConvert("'{}' does not set the {}", path, what);
  RETURN_IF_ERROR(checkBounds(config, path));
  if (config.heads % config.groups != 0)
    return cannotConvert("'{}': {} heads are not divisible by {} key/value heads", path,
                         config.heads, config.groups);
  const bool hasLinear = readsHfField(config.arch, "linear_key_head_dim") ||
                         readsHfField(config.arch, "ssm_state_size") ||
                         readsHfField(config.arch, "mamba_d_state");
  if (hasLinear && (std::min({config.keyHeads, config.keyDim, config.valueDim}) < 1 ||
                    config.valueHeads % config.keyHeads != 0 || config.valueHeads < 1))
    return cannotConvert("'{}': {} value heads of linear attention are not divisible by {} key "
                         "heads, or a head has no channels",
                         path, config.valueHeads, config.keyHeads);
  bool hasExperts = config.layout != HfLayout::Dense;
  if (hasExperts && (config.experts == 0 || config.expertFfn == 0))
    return cannotConvert("'{}' does not set the number and the size of experts", path);
  if (config.ffn == 0)
    return cannotConvert("'{}' does not set the intermediate size", path);
  return Status::ok();
}

/// Reads which layers have experts if a list names them.
void readExpertLayers(JsonFields &fields, const nlohmann::json &json, HfConfig &config) {
  if (config.hasOnePart) // readOneParts has read them
    return;
  config.denseLayers = fields.sizes("mlp_only_layers");
  std::ranges::sort(config.denseLayers);
  if (constexpr const char *kTypes = "mlp_layer_types"; readsHfField(config.arch, kTypes)) {
    nlohmann::json types = json.contains(kTypes) ? json[kTypes] : hfFallback(config.arch, kTypes);
    for (size_t layer = 0; layer < types.size(); ++layer)
      if (types[layer] != "sparse")
        config.denseLayers.push_back(static_cast<int64_t>(layer));
  }
  std::vector<int64_t> experts = fields.sizes("moe_layers");
  if (auto said = json.find("moe_layers"); said == json.end() || !said->is_array())
    return;
  config.expertsEvery = 1;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (std::ranges::find(experts, layer) == experts.end())
      config.denseLayers.push_back(layer);
}

/// Reads which layers have rotary embeddings: those in a list, or all but every n-th.
void readRotatedLayers(JsonFields &fields, const nlohmann::json &json, HfConfig &config) {
  if (!readsHfField(config.arch, "no_rope_layers"))
    return;
  std::vector<int64_t> rotated = fields.sizes("no_rope_layers");
  constexpr const char *kEvery = "no_rope_layer_interval";
  int64_t every = std::max<int64_t>(fields.size({kEvery}, hfWholeFallback(config.arch, kEvery)), 1);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    config.isRotated.push_back(rotated.empty()
                                   ? (layer + 1) % every != 0
                                   : layer < std::ssize(rotated) && rotated[layer] != 0);
  if (!rotated.empty() && std::ssize(rotated) != config.layers)
    fields.refuse("no_rope_layers", json["no_rope_layers"],
                  fmt::format("one number for each of {} layers", config.layers));
}

/// Reads which layers have another mixer than attention: those that a list says, or all that
/// another list of layers with attention lacks, or all but every n-th. Without lists, no layer has
/// a convolution, and all have a Mamba-2 mixer. Of a layer with a Mamba-2 mixer or attention,
/// recipes make two, as each of theirs has one part.
void readMixers(JsonFields &fields, const nlohmann::json &json, HfConfig &config) {
  constexpr const char *kEvery = "full_attention_interval", *kFirst = "layers_block_type";
  const bool isFirst = json.contains(kFirst) && readsHfField(config.arch, kFirst);
  const char *const key = isFirst ? kFirst : "layer_types";
  struct Kind {
    const char *field; ///< which such an architecture has
    HfMixer mixer;
    std::string word;
  };
  const Kind kinds[] = {{"full_attn_idxs", HfMixer::ShortConv, "conv"},
                        {kEvery, HfMixer::DeltaNet, "linear_attention"},
                        {"mamba_n_heads", HfMixer::Mamba, "linear_attention"}};
  const Kind *kind = std::ranges::find_if(
      kinds, [&](const Kind &each) { return readsHfField(config.arch, each.field); });
  if (kind == std::end(kinds))
    return;
  const bool isMamba = kind->mixer == HfMixer::Mamba;
  const int64_t every = fields.size({kEvery}, hfWholeFallback(config.arch, kEvery));
  const char *numbers = isMamba ? "attn_layer_indices" : "full_attn_idxs";
  const std::vector<int64_t> attention = fields.sizes(numbers);
  nlohmann::json types = json.value(key, nlohmann::json());
  for (nlohmann::json &type : types) // older names
    type = type == "mamba" ? "linear_attention" : type == "attention" ? "full_attention" : type;
  const bool isListed = types.is_array() && std::ssize(types) == config.layers,
             hasNumbers = !json.value(numbers, nlohmann::json()).is_null();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool isAttention =
        isListed    ? types[static_cast<size_t>(layer)] != kind->word
        : every > 0 ? (layer + 1) % every == 0
                    : std::ranges::count(attention, layer) > 0 || !(hasNumbers || isMamba);
    config.mixers.push_back(isAttention ? HfMixer::Attention : kind->mixer);
    if (isMamba)
      config.mixers.push_back(HfMixer::None);
  }
  if (isMamba)
    config.layers *= 2, config.layersOfOne = 2, config.hasOnePart = true;
  auto isKnown = [&](const auto &type) { return type == kind->word || type == "full_attention"; };
  if (!types.is_null() && !(isListed && std::ranges::all_of(types, isKnown)))
    fields.refuse(key, json[key],
                  fmt::format("a list of {} layers of 'full_attention' or '{}'",
                              config.layers / config.layersOfOne, kind->word));
}

/// Reads which part each layer has, of models whose layers have one: a text of symbols, or a list.
/// The number of layers follows from it.
void readOneParts(JsonFields &fields, const nlohmann::json &json, HfConfig &config) {
  constexpr const char *kPattern = "hybrid_override_pattern", *kList = "layers_block_type";
  if (!readsHfField(config.arch, kPattern))
    return;
  config.hasOnePart = true;
  struct Kind {
    char symbol;
    std::string_view word;
    HfMixer mixer;
  };
  constexpr Kind kKinds[] = {{'M', "linear_attention", HfMixer::Mamba},
                             {'*', "full_attention", HfMixer::Attention},
                             {'-', "mlp", HfMixer::None},
                             {'E', "moe", HfMixer::None}};
  const char *key = json.contains(kList)           ? kList
                    : json.contains("layer_types") ? "layer_types"
                                                   : kPattern;
  const std::string symbols = key == kPattern ? fields.text(kPattern) : "";
  const nlohmann::json list = json.value(key, nlohmann::json());
  const size_t count = key == kPattern ? symbols.size() : list.size();
  for (size_t i = 0; i < count; ++i) {
    auto kind = std::ranges::find_if(kKinds, [&](const Kind &each) {
      return key == kPattern ? symbols[i] == each.symbol : list[i] == each.word;
    });
    if (kind == std::end(kKinds))
      return fields.refuse(key, list,
                           "a layer of 'M' or linear_attention, '*' or full_attention, "
                           "'-' or mlp, 'E' or moe for each");
    config.mixers.push_back(kind->mixer);
    if (kind->symbol != 'E')
      config.denseLayers.push_back(static_cast<int64_t>(i));
  }
  if (count == 0 || (config.layers != 0 && config.layers != static_cast<int64_t>(count)))
    return fields.refuse(key, list, fmt::format("the parts of {} layers", config.layers));
  config.layers = static_cast<int64_t>(count);
}

/// Reads the width of feed-forward layers, which may be 2/3 of what the file says, rounded up.
void readAdjustedWidth(JsonFields &fields, HfConfig &config) {
  constexpr const char *kMultiple = "block_multiple_of", *kWidth = "intermediate_size";
  if (!readsHfField(config.arch, kMultiple))
    return;
  config.ffn = fields.size({"block_ff_dim", kWidth}, hfWholeFallback(config.arch, kWidth));
  int64_t multiple = fields.size({kMultiple}, hfWholeFallback(config.arch, kMultiple));
  if (multiple < 1 || multiple > kSizeMax)
    fields.refuse(kMultiple, multiple, "a number above 0");
  else if (fields.flag("block_auto_adjust_ff_dim", true) && config.ffn <= kSizeMax)
    config.ffn = (2 * config.ffn / 3 + multiple - 1) / multiple * multiple;
}

/// Reads the sizes of linear attention or of Mamba-2 mixers, which architectures call differently.
/// Some of them derive the size of a Mamba-2 head from a factor on the hidden size.
void readHeads(JsonFields &fields, HfConfig &config) {
  struct Names {
    const char *keyHeads, *valueHeads, *keyDim, *valueDim;
  };
  constexpr Names kNames[] = {{"linear_num_key_heads", "linear_num_value_heads",
                               "linear_key_head_dim", "linear_value_head_dim"},
                              {"n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim"},
                              {"mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head"}};
  const Names *names = std::ranges::find_if(
      kNames, [&](const Names &each) { return readsHfField(config.arch, each.keyDim); });
  if (names == std::end(kNames))
    return;
  auto sizeOf = [&](const char *key) {
    return fields.size({key}, hfWholeFallback(config.arch, key));
  };
  config.keyHeads = sizeOf(names->keyHeads), config.keyDim = sizeOf(names->keyDim);
  config.valueHeads = sizeOf(names->valueHeads), config.valueDim = sizeOf(names->valueDim);
  constexpr const char *kFactor = "mamba_expand";
  const int64_t factor = sizeOf(kFactor), heads = config.valueHeads;
  if (factor == 0 || heads < 1)
    return;
  const int64_t inner = productOf(factor, config.hidden);
  if (config.valueDim == 0)
    config.valueDim = inner / heads;
  if (productOf(heads, config.valueDim) != inner)
    fields.refuse(kFactor, factor,
                  fmt::format("the share of {} heads of {} channels in the hidden size", heads,
                              config.valueDim));
}

/// The biases that fields request, and those that the architecture always has.
HfBiases readBiases(JsonFields &fields, HfArch arch) {
  HfBiases biases = hfConstantBiases(arch);
  for (const HfField &row : hfFields())
    if (row.isOf(arch) && row.use == HfUse::Biases &&
        fields.flag(std::string(row.name).c_str(), hfFallback(arch, row.name) == true))
      biases = biases | row.parts;
  return biases;
}

/// Reads sizes of experts, and which layers have experts.
void readExperts(JsonFields &fields, HfConfig &config) {
  auto sizeOf = [&](const char *key) {
    return fields.size({key}, hfWholeFallback(config.arch, key));
  };
  config.experts = fields.size({"num_experts", "num_local_experts", "n_routed_experts"},
                               hfWholeFallback(config.arch, "num_local_experts",
                                               hfWholeFallback(config.arch, "n_routed_experts")));
  constexpr const char *kWidth = "moe_intermediate_size";
  config.expertFfn = fields.size({kWidth}, hfWholeFallback(config.arch, kWidth, config.ffn));
  int64_t shared = sizeOf("n_shared_experts");
  constexpr const char *kDense = "intermediate_size_mlp";
  if (readsHfField(config.arch, kDense)) { // the usual size field then is that of experts
    config.ffn = sizeOf(kDense);
    shared = 1;
  }
  constexpr const char *kShared = "moe_shared_expert_intermediate_size",
                       *kSharedMlp = "shared_intermediate_size";
  config.sharedFfn =
      fields.size({"shared_expert_intermediate_size", kShared, kSharedMlp},
                  hfWholeFallback(config.arch, kShared, productOf(shared, config.expertFfn)));
  if (readsHfField(config.arch, kSharedMlp)) { // the only feed-forward layer, or beside experts
    config.ffn = config.sharedFfn = sizeOf(kSharedMlp);
    if (config.experts == 0)
      config.layout = HfLayout::Dense;
  }
  config.firstDenseLayers = sizeOf("first_k_dense_replace");
  config.expertsEvery = fields.size({"decoder_sparse_step", "interleave_moe_layer_step"}, 1);
}

} // namespace

bool HfConfig::hasExperts(int64_t layer) const {
  if (layout == HfLayout::Dense)
    return false;
  return layer >= firstDenseLayers && (layer + 1) % expertsEvery == 0 &&
         !std::ranges::binary_search(denseLayers, layer);
}

namespace {
constexpr const char *kTied = "tie_word_embeddings";
}

bool isAlwaysTied(HfArch arch) { return findHfField(arch, kTied)->use == HfUse::Needs; }

Result<HfConfig> parseHfConfig(std::string_view text, const std::string &path,
                               const HfReading &reading, HfFaults *faults) {
  HfConfig config;
  ASSIGN_OR_RETURN(config.file, readHfFile(text, path, reading, faults));
  const nlohmann::json &json = config.file.fields;
  JsonFields fields(config.file);
  auto finish = [&] {
    if (faults != nullptr)
      *faults = fields.faults();
    return statusOf(fields.faults());
  };
  config.arch = config.file.arch;
  config.layout = infoOf(config.arch).layout;
  config.layers = fields.size({"num_hidden_layers", "n_layer"});
  readOneParts(fields, json, config);
  config.hidden = fields.size({"hidden_size", "n_embd"});
  config.heads = fields.size({"num_attention_heads", "n_head"});
  auto sizeOf = [&](const char *key, int64_t otherwise) { // null has another default
    bool isSaid = json.contains(key);
    return fields.size({key}, isSaid ? otherwise : hfWholeFallback(config.arch, key, otherwise));
  };
  config.groups = sizeOf("num_key_value_heads", config.heads);
  config.headDim = sizeOf("head_dim", config.heads > 0 ? config.hidden / config.heads : 0);
  config.vocab = fields.size({"vocab_size"});
  bool isWidened = readsHfField(config.arch, "n_inner"); // follows from hidden size by default
  config.ffn =
      fields.size({"intermediate_size", "n_inner"}, isWidened ? productOf(4, config.hidden) : 0);
  readAdjustedWidth(fields, config);
  readExperts(fields, config);
  config.mtpLayers = fields.size({"num_nextn_predict_layers", "num_mtp_layers"});
  config.qLoraRank = sizeOf("q_lora_rank", 0);
  readExpertLayers(fields, json, config);
  readHeads(fields, config);
  for (const char *key : {"dtype", "torch_dtype"}) // new and old name
    if (std::optional<Element> type = elementOfTorchName(fields.text(key));
        type == Element::F32 || type == Element::BF16 || type == Element::F16)
      config.weightType = type;
  config.biases = readBiases(fields, config.arch);
  config.isTied =
      isAlwaysTied(config.arch) || fields.flag(kTied, hfFallback(config.arch, kTied) == true);
  if (constexpr const char *kOther = "tie_embedding"; readsHfField(config.arch, kOther))
    config.isTied = fields.flag(kOther, config.isTied);
  RETURN_IF_ERROR(finish());
  RETURN_IF_ERROR(checkSizes(config, path));
  readRotatedLayers(fields, json, config);
  readMixers(fields, json, config);
  RETURN_IF_ERROR(finish());
  return config;
}

} // namespace shardc::checkpoint
