#include "runtime/checkpoint/PeftFolder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/HfSource.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kConfigBytesMax = 4 << 20;
constexpr size_t kExpressionMax = 4096;
constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight", *kBias = ".lora_B.bias";

/// What the value of a field needs to be.
struct Needs {
  const char *words;
  bool (*isMet)(const json &value);
};

template <auto is> bool areAll(const json &value) { return std::ranges::all_of(value, is); }
bool isWhole(const json &value) { return value.is_number_integer(); }
bool isText(const json &value) { return value.is_string(); }
bool isPositive(const json &value) { return value.is_number() && value.get<double>() > 0; }
bool isCount(const json &value) { return isWhole(value) && isPositive(value); }
bool areWhole(const json &value) { return value.is_array() && areAll<isWhole>(value); }
bool areTexts(const json &value) { return value.is_array() && areAll<isText>(value); }
/// Whether PEFT writes this value for a field that is not set.
bool isUnset(const json &value) {
  return value == false || ((value.is_structured() || value.is_string()) && value.empty());
}

/// The fields of PEFT 0.21's LoraConfig by what they need. Those of the first row may have any
/// value: they do not change what adapters compute, or do so only for values of `init_lora_weights`
/// that check() refuses. Those of the second row have no counterpart here.
constexpr std::pair<std::string_view, Needs> kFields[] = {
    {"task_type auto_mapping peft_version base_model_name_or_path revision inference_mode "
     "runtime_config megatron_config megatron_core qalora_group_size init_lora_weights "
     "loftq_config eva_config corda_config lora_ga_config",
     {"", [](const json &) { return true; }}},
    {"layer_replication alora_invocation_tokens use_qalora use_bdlora velora_config kasa_config "
     "arrow_config monteclora_config",
     {"no value", isUnset}},
    {"use_rslora use_dora lora_bias fan_in_fan_out ensure_weight_tying",
     {"true or false", [](const json &value) { return value.is_boolean(); }}},
    {"peft_type bias", {"a text", isText}},
    {"r", {"a whole number above 0", isCount}},
    {"lora_alpha", {"a number above 0", isPositive}},
    {"lora_dropout",
     {"a number from 0 to below 1",
      [](const json &value) { return value.is_number() && value >= 0 && value < 1; }}},
    {"modules_to_save target_parameters", {"a list of texts", areTexts}},
    {"target_modules exclude_modules layers_pattern",
     {"a text, or a list of texts",
      [](const json &value) { return isText(value) || areTexts(value); }}},
    {"layers_to_transform",
     {"a whole number, or a list of such",
      [](const json &value) { return isWhole(value) || areWhole(value); }}},
    {"rank_pattern",
     {"an object of whole numbers above 0",
      [](const json &value) { return value.is_object() && areAll<isCount>(value); }}},
    {"alpha_pattern",
     {"an object of numbers above 0",
      [](const json &value) { return value.is_object() && areAll<isPositive>(value); }}},
    {"trainable_token_indices",
     {"a list of whole numbers, or an object of such",
      [](const json &value) {
        return areWhole(value) || (value.is_object() && areAll<areWhole>(value));
      }}},
};

/// The row of a field; null if PEFT has none with this name.
const Needs *needsOf(const std::string &field) {
  for (const auto &[names, needs] : kFields)
    if (fmt::format(" {} ", names).find(fmt::format(" {} ", field)) != std::string::npos)
      return &needs;
  return nullptr;
}

/// The end of a path, from a dot or from its start.
bool isEndOf(const std::string &path, const std::string &word) {
  return path == word || path.ends_with("." + word);
}

/// The expression of the paths that PEFT finds by a key of `rank_pattern` or `alpha_pattern`.
std::string expressionOf(const std::string &key) { return fmt::format("(.*\\.)?({})", key); }

/// Compiles a regular expression of Python. Matches take no longer than the product of the lengths
/// of expression and text.
bool compile(const std::string &text, std::regex &out) {
  for (const char *other : {"\\A", "\\Z", "[]", "[^]", "[["}) // which Python reads otherwise
    if (text.find(other) != text.npos)
      return false;
  auto flags = std::regex_constants::ECMAScript;
#ifdef __GLIBCXX__
  flags |= std::regex_constants::__polynomial;
#endif
  try {
    out.assign(text.substr(0, kExpressionMax + 1), flags);
  } catch (const std::regex_error &) {
    return false;
  }
  return text.size() <= kExpressionMax;
}

} // namespace

/// GPT-2's modules, which a text model names without a root, are in `transformer`; those of the
/// text part of a model with several, in `language_model`. Files of Nemotron-H call `model`
/// `backbone`.
std::string peftPath(const HfConfig &config, const std::string &name) {
  constexpr std::string_view kRoot = "model.", kOther = "backbone.";
  if (name.starts_with("lm_head"))
    return name;
  const bool isOther = name.starts_with(kOther);
  if (!isOther && !name.starts_with(kRoot))
    return "transformer." + name;
  return std::string(kRoot) + (config.file.prefix.empty() ? "" : "language_model.") +
         name.substr(isOther ? kOther.size() : kRoot.size());
}

Result<PeftFolder> PeftFolder::open(const std::string &path, const HfConfig &model,
                                    const ReportSink &emit) {
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(path));
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end;
       !in.has(kPeftConfigFile) && !error && at != end; at.increment(error))
    if (std::filesystem::exists(at->path() / kPeftConfigFile, error)) // an adapter with a name
      return cannotConvert("'{}' has no {}, and its folder '{}' has one: name that", path,
                           kPeftConfigFile, at->path().filename().string());
  ASSIGN_OR_RETURN(std::string text, in.read(kPeftConfigFile, kConfigBytesMax));
  if (!in.has(kPeftTensors) && in.has("adapters.safetensors"))
    return cannotConvert("'{}' has adapters of MLX; convert them to the form of PEFT", path);
  if (!in.has(kPeftTensors) && in.has("adapter_model.bin"))
    return cannotConvert("the tensors of '{}' are in 'adapter_model.bin', which is not read; load "
                         "the adapter in PEFT, and save it again, as safetensors",
                         path);
  ASSIGN_OR_RETURN(SafeTensorsFile tensors, SafeTensorsFile::open(in, kPeftTensors));
  PeftFolder folder(path, model, std::move(tensors));
  RETURN_IF_ERROR(folder.readConfig(text));
  RETURN_IF_ERROR(folder.check(emit));
  for (const SafeTensor &tensor : folder.tensors_.header().tensors)
    if (std::string_view name = tensor.name; name.starts_with(kPeftPrefix)) {
      // PEFT may store its wrappers' tensors too, and reads only the others.
      for (std::string_view end : {".modules_to_save.weight", ".original_module.weight"})
        if (name.ends_with(end) &&
            folder.tensors_.find(tensor.name.substr(0, name.size() - end.size()) + ".weight"))
          folder.taken_.insert(tensor.name);
      const std::string own(name.substr(std::string_view(kPeftPrefix).size()));
      if (model.file.prefix.empty() && own.find("language_model.") != own.npos)
        return cannotConvert("'{}' has '{}', and the model has no part 'language_model': PEFT "
                             "would load nothing of it; rename its tensors",
                             path, own);
      std::string plain = plainHfName(own);
      constexpr std::string_view kDefault = ".default"; // as in the state of a model
      for (std::string_view end : {".lora_A.default.weight", ".lora_B.default.weight"})
        if (plain.ends_with(end))
          plain.erase(plain.rfind(kDefault), kDefault.size());
      if (plain.starts_with("model.") &&
          hfTensors(model.arch, "layer").front().starts_with("backbone."))
        plain.replace(0, std::string_view("model").size(), "backbone");
      folder.plain_.emplace(std::move(plain), &tensor);
    }
  return folder;
}

Status PeftFolder::readConfig(const std::string &text) {
  std::string outer;
  using Event = json::parse_event_t;
  config_ = parsePythonJson(text, [&](int depth, Event event, json &parsed) {
    if (event == Event::key && depth == 1)
      outer = parsed.get<std::string>();
    if (event == Event::key && depth == 2)
      keysOf_[outer].push_back(parsed.get<std::string>());
    return true;
  });
  if (!config_.is_object())
    return cannotConvert("'{}/{}' is not a JSON object", path_, kPeftConfigFile);
  for (auto at = config_.begin(); at != config_.end();)
    at = at->is_null() ? config_.erase(at) : std::next(at);
  std::vector<std::string> expressions;
  for (const char *field : {"rank_pattern", "alpha_pattern"})
    for (const std::string &key : keysOf_[field])
      expressions.push_back(expressionOf(key));
  for (const char *field : {"target_modules", "exclude_modules"})
    if (auto found = config_.find(field); found != config_.end() && found->is_string())
      expressions.push_back(found->get<std::string>());
  for (const std::string &expression : expressions)
    if (!compile(expression, expressions_[expression]))
      return cannotConvert("'{}/{}': '{}' is a regular expression that cannot be read", path_,
                           kPeftConfigFile, expression);
  return Status::ok();
}

Status PeftFolder::check(const ReportSink &emit) const {
  const json kind = config_.value("peft_type", json("LORA"));
  if (kind.is_string() && kind != "LORA")
    return cannotConvert("'{}' has adapters of kind '{}'; it needs to be LORA", path_,
                         kind.get<std::string>());
  std::vector<std::string> unread;
  for (const auto &[name, value] : config_.items()) {
    const Needs *needs = needsOf(name);
    if (needs == nullptr && !isUnset(value))
      unread.push_back(name);
    if (needs != nullptr && !needs->isMet(value))
      return cannotConvert("'{}/{}': '{}' is {}; {} is needed", path_, kPeftConfigFile, name,
                           shownHfValue(value), needs->words);
  }
  if (!unread.empty())
    emit(makeReport(report::HfFieldsUnread, fmt::format("{}/{}", path_, kPeftConfigFile),
                    shownHfNames(unread), "LoraConfig of PEFT 0.21"));
  const bool hasBias = std::ranges::any_of(
      tensors_.header().tensors, [](const auto &tensor) { return tensor.name.ends_with(".bias"); });
  if (std::string bias = config_.value("bias", "none"); bias != "none" && hasBias)
    return cannotConvert("'{}' has trained biases ('bias' is '{}'); it needs to be none", path_,
                         bias);
  const json init = config_.value("init_lora_weights", json(true));
  const std::string word = init.is_string() ? init.get<std::string>() : "";
  constexpr std::string_view kPlain[] = {"gaussian", "eva", "orthogonal", "mica"};
  if (init.is_boolean() || std::ranges::find(kPlain, word) != std::end(kPlain))
    return Status::ok();
  for (std::string_view other : {"pissa", "olora", "corda", "lora_ga", "loftq"})
    if (word.starts_with(other))
      return cannotConvert("'{}' was started by '{}', which changes the base weights; save it with "
                           "'path_initial_model_for_weight_conversion' first",
                           path_, word);
  return cannotConvert("'{}/{}': 'init_lora_weights' is {}, which PEFT 0.21 does not have", path_,
                       kPeftConfigFile, shownHfValue(init));
}

std::string moduleName(const HfConfig &config, const std::string &name) {
  constexpr std::string_view kStored = ".block_sparse_moe.", kModule = ".mlp.";
  std::string loaded = loadedHfName(config.arch, name);
  const bool keepsName = config.arch == HfArch::GraniteMoe || config.arch == HfArch::GraniteHybrid;
  size_t at = keepsName ? name.npos : loaded.find(kStored);
  return at == name.npos ? loaded : loaded.replace(at, kStored.size(), kModule);
}

std::string stackName(const HfConfig &config, const PeftModule &module) {
  return moduleOf(moduleName(config, module.name + ".weight"));
}

const SafeTensor *PeftFolder::find(const std::string &name) const {
  auto found = plain_.find(name);
  if (found == plain_.end())
    found = plain_.find(moduleName(model_, name));
  return found != plain_.end() ? found->second : nullptr;
}

/// PEFT adapts a stack of experts as a parameter of its module. If the module has several such
/// parameters, wrappers enclose each other; shapes say which is which.
PeftFolder::Found PeftFolder::foundOf(const PeftModule &module) const {
  Found found;
  auto take = [&](const std::string &stem, const std::string &end) {
    found.a = find(stem + kA), found.b = find(stem + kB);
    if (found.a == nullptr || found.b == nullptr || found.a->shape.size() != 2 ||
        found.b->shape.size() != 2)
      return false;
    std::string_view path = found.a->name;
    path.remove_prefix(std::string_view(kPeftPrefix).size());
    path = path.substr(0, path.rfind(".lora_A."));
    found.path = path.substr(0, path.find(".base_layer"));
    found.path += end;
    return true;
  };
  if (module.slab < 0)
    return take(module.name, "") ? found : Found();
  constexpr int kDeepest = 4;
  const std::string name = stackName(model_, module);
  const size_t dot = std::min(name.rfind('.'), name.size());
  std::string stem = name.substr(0, dot);
  found.isSwapped = model_.layout == HfLayout::Stacked;
  for (int depth = 0; depth < kDeepest; ++depth, stem += ".base_layer") {
    if (!take(stem, name.substr(dot)))
      continue;
    int64_t rows = found.b->shape[0], columns = found.a->shape[1];
    if (found.isSwapped)
      std::swap(rows, columns);
    if (rows == module.rows && columns == module.columns &&
        found.a->shape[0] == found.b->shape[1] && found.a->shape[0] % model_.experts == 0)
      return found;
  }
  return {};
}

int64_t PeftFolder::lookUp(PeftModule &module) const {
  Found found = foundOf(module);
  if (found.a == nullptr)
    return 0;
  module.rank = found.a->shape[0] / (module.slab < 0 ? 1 : model_.experts);
  module.alpha = alphaOf(found);
  return module.slab >= 0 ? module.rows : found.b->shape[0];
}

double PeftFolder::patternOr(const char *field, const std::string &path, double otherwise) const {
  if (auto keys = keysOf_.find(field); keys != keysOf_.end())
    for (const std::string &key : keys->second)
      if (std::regex_match(path, expressions_.at(expressionOf(key))))
        return config_.at(field).at(key).get<double>();
  return otherwise;
}

double PeftFolder::alphaOf(const Found &found) const {
  constexpr double kDefault = 8;
  return patternOr("alpha_pattern", found.path, config_.value("lora_alpha", kDefault));
}

/// Whether a list or an expression names the path. A missing list is a default of PEFT's for the
/// model.
bool PeftFolder::names(const char *field, const std::string &path) const {
  const json &words = config_.at(field);
  if (words == "all-linear")
    return true;
  if (words.is_string())
    return std::regex_match(path, expressions_.at(words.get<std::string>()));
  return std::ranges::any_of(
      words, [&](const json &word) { return isEndOf(path, word.get<std::string>()); });
}

/// Whether the layers of the file contain that of a path: as in PEFT, the last number behind a name
/// that `layers_pattern` allows.
bool PeftFolder::namesLayer(const std::string &path) const {
  auto layers = config_.find("layers_to_transform");
  if (layers == config_.end() || (layers->is_array() && layers->empty()))
    return true;
  json patterns = config_.value("layers_pattern", json::array());
  patterns = patterns.is_string() ? json::array({patterns}) : patterns;
  if (patterns.empty())
    patterns.push_back("[^.]*");
  for (const json &pattern : patterns) {
    std::regex expression;
    std::smatch found;
    if (compile(".*\\." + pattern.get<std::string>() + "\\.([0-9]{1,9})\\..*", expression) &&
        std::regex_match(path, found, expression)) {
      const json layer = std::stoll(found[1]);
      return layers->is_array() ? std::ranges::find(*layers, layer) != layers->end()
                                : *layers == layer;
    }
  }
  return false;
}

/// PEFT does not load factors of modules that the file does not name, or of another rank. A plain
/// layer may also be named by its parameter.
Status PeftFolder::checkModule(const PeftModule &module, const Found &found) const {
  const char *field = module.slab < 0 ? "target_modules" : "target_parameters";
  const bool isParameter =
      config_.contains("target_parameters") && names("target_parameters", found.path + ".weight");
  if ((config_.contains(field) && !names(field, found.path) && !isParameter) ||
      (module.slab < 0 && config_.contains("exclude_modules") &&
       names("exclude_modules", found.path)))
    return cannotConvert("'{}' has factors of '{}', which '{}' of {} does not name", path_,
                         found.path, field, kPeftConfigFile);
  if (module.slab < 0 && !namesLayer(found.path))
    return cannotConvert("'{}' has factors of '{}', whose layer 'layers_to_transform' of {} does "
                         "not name",
                         path_, found.path, kPeftConfigFile);
  constexpr int64_t kDefault = 8;
  auto rank = static_cast<int64_t>(
      patternOr("rank_pattern", found.path, static_cast<double>(config_.value("r", kDefault))));
  if (rank != module.rank)
    return cannotConvert("the factors of '{}' have rank {}; {} says {}", found.path, module.rank,
                         kPeftConfigFile, rank);
  return Status::ok();
}

Result<std::vector<float>> PeftFolder::numbersOf(const SafeTensor &tensor) const {
  if (!isConvertible(tensor.type, Element::F32))
    return cannotConvert("'{}' is of type {}; adapters are float32, bfloat16 or float16",
                         tensor.name, torchName(tensor.type));
  int64_t count = elementCount(tensor.shape).value_or(0);
  std::vector<float> values(static_cast<size_t>(count));
  convertElements(tensor.type, tensors_.bytes(tensor).data(), Element::F32,
                  reinterpret_cast<uint8_t *>(values.data()), count);
  auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end())
    return cannotConvert("'{}' has {} as number {}; adapters need finite numbers", tensor.name,
                         *bad, bad - values.begin());
  return values;
}

/// Expert e has rows e·r to e·r + r of A, and columns j·experts + e of B.
Status PeftFolder::takeExpert(const PeftModule &module, const Found &found, PeftFactors &factors) {
  constexpr size_t kStacks = 4; // both factors of both layers of experts
  if (stacks_.size() >= kStacks && !(stacks_.contains(found.a) && stacks_.contains(found.b)))
    stacks_.clear();
  for (const SafeTensor *tensor : {found.a, found.b})
    if (!stacks_.contains(tensor)) {
      ASSIGN_OR_RETURN(stacks_[tensor], numbersOf(*tensor));
    }
  const std::vector<float> &a = stacks_[found.a], &b = stacks_[found.b];
  const int64_t r = factors.rank, width = r * model_.experts;
  auto ofA = [&](int64_t j, int64_t i) {
    return a[static_cast<size_t>((module.slab * r + j) * found.a->shape[1] + i)];
  };
  auto ofB = [&](int64_t i, int64_t j) {
    return b[static_cast<size_t>(i * width + j * model_.experts + module.slab)];
  };
  if (found.isSwapped)
    std::swap(factors.rows, factors.columns);
  factors.a.resize(static_cast<size_t>(r * factors.columns));
  factors.b.resize(static_cast<size_t>(factors.rows * r));
  for (int64_t j = 0; j < r; ++j) {
    for (int64_t i = 0; i < factors.columns; ++i)
      factors.a[static_cast<size_t>(j * factors.columns + i)] =
          found.isSwapped ? ofB(i, j) : ofA(j, i);
    for (int64_t i = 0; i < factors.rows; ++i)
      factors.b[static_cast<size_t>(i * r + j)] = found.isSwapped ? ofA(j, i) : ofB(i, j);
  }
  return Status::ok();
}

Result<PeftFactors> PeftFolder::factorsOf(const PeftModule &module) {
  Found found = foundOf(module);
  PeftFactors factors;
  const Shape &a = found.a->shape, &b = found.b->shape;
  if (a[0] != b[1] || b[0] != (found.isSwapped ? module.columns : module.rows))
    return cannotConvert("the factors of '{}' are {} and {}; the second one needs {} rows",
                         module.name, shapeText(a), shapeText(b), module.rows);
  RETURN_IF_ERROR(checkModule(module, found));
  taken_.insert({found.a->name, found.b->name});
  factors.rank = module.rank, factors.rows = b[0], factors.columns = a[1];
  auto rank = static_cast<double>(factors.rank);
  factors.scale = alphaOf(found) / (isRslora() ? std::sqrt(rank) : rank);
  if (module.slab >= 0) {
    RETURN_IF_ERROR(takeExpert(module, found, factors));
    return factors;
  }
  ASSIGN_OR_RETURN(factors.a, numbersOf(*found.a));
  ASSIGN_OR_RETURN(factors.b, numbersOf(*found.b));
  for (auto [end, isOn, values] : {std::tuple(kBias, hasBiases(), &factors.bias),
                                   std::tuple(kPeftMagnitude, isDora(), &factors.magnitudes)}) {
    const SafeTensor *tensor = isOn ? take(module.name + end) : nullptr;
    if (isOn && tensor == nullptr) // as PEFT names it in memory, which it also reads
      tensor = take(module.name + end + ".weight");
    if (isOn && (tensor == nullptr || tensor->shape != Shape{module.rows}))
      return cannotConvert("'{}{}' is {}; it needs to be {}", module.name, end,
                           tensor ? shapeText(tensor->shape) : "missing",
                           shapeText(Shape{module.rows}));
    if (isOn) {
      ASSIGN_OR_RETURN(*values, numbersOf(*tensor));
    }
  }
  return factors;
}

const SafeTensor *PeftFolder::take(const std::string &name) {
  const SafeTensor *tensor = find(name);
  if (tensor != nullptr)
    taken_.insert(tensor->name);
  return tensor;
}

bool PeftFolder::saves(const std::string &module) const {
  const json words = config_.value("modules_to_save", json());
  return words.is_array() && std::ranges::any_of(words, [&](const json &word) {
           return isEndOf(module, word.get<std::string>());
         });
}

std::string PeftFolder::base() const {
  const json name = config_.value("base_model_name_or_path", json());
  return name.is_string() ? name.get<std::string>() : "";
}

std::vector<int64_t> PeftFolder::tokensOf(const std::string &module) const {
  const json tokens = config_.value("trainable_token_indices", json::array());
  if (tokens.is_array())
    return tokens.get<std::vector<int64_t>>();
  for (const auto &[word, list] : tokens.items())
    if (isEndOf(module, word))
      return list.get<std::vector<int64_t>>();
  return {};
}

Status PeftFolder::finish() const {
  std::vector<std::string> left;
  for (const SafeTensor &tensor : tensors_.header().tensors)
    if (!taken_.contains(tensor.name))
      left.push_back(tensor.name);
  if (left.empty())
    return Status::ok();
  const auto areOf = [&](std::initializer_list<const char *> words) {
    return std::ranges::any_of(left, [&](const std::string &name) {
      return std::ranges::any_of(words, [&](const char *w) { return name.find(w) != name.npos; });
    });
  };
  if (areOf({".vision", ".visual", ".multi_modal", ".mm_projector"}))
    return cannotConvert("{} tensors of '{}' are of the vision part, which is left out; merge them "
                         "with PEFT:{}",
                         left.size(), path_, listed(left));
  if (areOf({".score.", ".classifier.", "v_head."}))
    return cannotConvert("'{}' trains a part that a causal language model does not have:{}", path_,
                         listed(left));
  if (areOf({".lora_embedding_", "lm_head.lora_"}))
    return cannotConvert("'{}' has adapters of the embedding or of the output layer; only "
                         "those of linear layers in decoder layers can be converted; merge them "
                         "with PEFT, or train these modules whole ('modules_to_save'):{}",
                         path_, listed(left));
  if (!isDora() && left.front().find(kPeftMagnitude) != std::string::npos)
    return cannotConvert("'{}' has magnitudes of DoRA, and its settings do not say 'use_dora':{}",
                         path_, listed(left));
  if (std::ranges::none_of(left, [](auto &name) { return name.find(".lora_") != name.npos; }))
    return cannotConvert("{} tensors of '{}' are a part of what is trained whole: "
                         "'modules_to_save' needs q_proj, k_proj and v_proj together, gate_proj "
                         "and up_proj, or all experts; merge them with PEFT:{}",
                         left.size(), path_, listed(left));
  for (const std::string &name : left)
    for (auto [own, other] : {std::pair(kA, kB), std::pair(kB, kA)})
      if (name.ends_with(own) &&
          tensors_.find(name.substr(0, name.size() - std::string_view(own).size()) + other) ==
              nullptr)
        return cannotConvert("'{}' has '{}' without '{}'", path_, name,
                             std::string_view(other).substr(1));
  return cannotConvert("{} tensors of '{}' are of no layer that adapters can be for, or of a part "
                       "of one; merge them with PEFT, or train the modules "
                       "whole ('modules_to_save'):{}",
                       left.size(), path_, listed(left));
}

} // namespace shardc::checkpoint
