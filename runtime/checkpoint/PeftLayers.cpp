#include "runtime/checkpoint/PeftLayers.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/BaseRecord.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RunOptions.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr uint64_t kTextBytesMax = uint64_t{64} << 20;

/// The name of a weight in two parts: the layer, and the text after `.weight`.
struct WeightName {
  std::string stem, end;
  std::string factor(const char *which) const {
    return fmt::format("{}.adapter.{}.weight{}", stem, which, end);
  }
  std::string magnitude() const { return stem + ".adapter.weight_magnitude" + end; }
  std::string ownBias() const { return stem + ".bias" + end; }
  std::string bias() const { return stem + ".adapter.linear_out.bias" + end; }
};

std::optional<WeightName> weightName(const std::string &name) {
  size_t at = name.rfind(kWeight);
  if (at == std::string::npos)
    return std::nullopt;
  std::string end = name.substr(at + kWeight.size());
  bool isNumber = std::ranges::all_of(end, [](char c) { return c >= '0' && c <= '9'; });
  return isNumber ? std::optional(WeightName{name.substr(0, at), end}) : std::nullopt;
}

/// The number of the decoder layer, and the rest of the name; nothing for other names.
std::optional<std::pair<int64_t, std::string>> inLayer(const std::string &stem) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!stem.starts_with(kLayers))
    return std::nullopt;
  int64_t layer = 0;
  const char *end = stem.data() + stem.size();
  auto [rest, error] = std::from_chars(stem.data() + kLayers.size(), end, layer);
  if (error != std::errc() || rest == end || *rest != '.')
    return std::nullopt;
  return std::pair(layer, std::string(rest + 1, end));
}

/// The modules of a parameter with `rows` rows, sorted by first row.
std::vector<PeftModule> modulesOf(const HfParam &param, int64_t rows) {
  std::vector<PeftModule> modules;
  std::vector<HfSegment> segments = param.segments;
  for (HfSegment &segment : segments)
    if (segment.rows < 0)
      segment.rows = rows;
  std::ranges::sort(segments, {}, &HfSegment::row);
  for (const HfSegment &segment : segments) {
    std::string name = moduleOf(segment.hf);
    auto found = std::ranges::find(modules, name, &PeftModule::name);
    if (found == modules.end())
      found = modules.insert(modules.end(), {name, {}, 0, -1, 0, 0, segment.slab});
    found->segments.push_back(segment);
    found->rows = std::max(found->rows, segment.hfRow + (segment.rows - 1) * segment.step + 1);
  }
  return modules;
}

/// The number of a parameter's rows according to its segments; 0 if a single segment covers all
/// rows.
int64_t rowsOf(const HfParam &param) {
  int64_t rows = 0;
  for (const HfSegment &segment : param.segments)
    rows = segment.rows < 0 ? rows : std::max(rows, segment.row + segment.rows);
  return rows;
}

/// The parameter in the tensors of all experts, if there are such.
HfParam inStack(HfParam param) {
  if (!param.stacked.empty() && !param.isOnlyWritten)
    param.segments = std::exchange(param.stacked, {});
  return param;
}

PeftLinear linearOf(const HfParam &param, const WeightName &name) {
  PeftLinear linear;
  linear.name = param.name, linear.magnitudeName = name.magnitude();
  linear.biasName = name.bias(), linear.ownBiasName = name.ownBias();
  linear.aName = name.factor("linear_in"), linear.bName = name.factor("linear_out");
  if (auto place = inLayer(name.stem))
    std::tie(linear.layer, linear.stem) = *std::move(place);
  return linear;
}

} // namespace

std::string moduleOf(const std::string &tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

std::string lastWordOf(const std::string &module) { return module.substr(module.rfind('.') + 1); }

Result<std::vector<PeftLinear>> peftLinears(const ParamSource &saved, const PeftSettings &settings,
                                            const HfConfig &config,
                                            const std::vector<HfParam> &params,
                                            const PeftPartsOf &partsOf) {
  std::vector<PeftLinear> linears;
  std::vector<std::string> left = saved.names();
  std::erase_if(left, [](const std::string &name) {
    return name.find(".adapter.linear_in.") == std::string::npos;
  });
  for (const HfParam &param : params) {
    std::optional<WeightName> name = weightName(param.name);
    if (!name)
      continue;
    PeftLinear linear = linearOf(param, *name);
    std::optional<Shape> a = saved.shapeOf(linear.aName), b = saved.shapeOf(linear.bName);
    if (!a || !b)
      continue;
    std::erase(left, linear.aName);
    if (a->size() != 2 || b->size() != 2 || (*b)[1] == 0 || (*a)[0] % (*b)[1] != 0)
      return cannotConvert("the factors of '{}' are {} and {}", param.name, shapeText(*a),
                           shapeText(*b));
    if (linear.layer < 0)
      return cannotConvert("the adapter of '{}' has no place in PEFT's format that shardc writes",
                           param.name);
    linear.aShape = *a, linear.bShape = *b, linear.rows = (*b)[0];
    linear.modules = modulesOf(inStack(param), linear.rows);
    PeftParts parts = partsOf(settings, config, linear.stem, linear.layer);
    int64_t slices = (*a)[0] / (*b)[1];
    for (size_t i = 0; i < linear.modules.size(); ++i) {
      uint64_t bit = uint64_t{1} << i;
      linear.modules[i].slice = parts.isJoint             ? 0
                                : (parts.kept & bit) != 0 ? std::popcount(parts.kept & (bit - 1))
                                                          : -1;
      if (linear.modules[i].slice >= 0)
        linear.modules[i].alpha =
            parts.alphas.empty() ? settings.alpha : parts.alphas.at(parts.isJoint ? 0 : i);
      if (linear.modules[i].slice >= slices)
        return cannotConvert("'{}' has {} parts; the run's 'peft.targets' name more", linear.aName,
                             slices);
    }
    linears.push_back(std::move(linear));
  }
  if (!left.empty())
    return cannotConvert("the model of config.json has no place for {} adapters of '{}':{}",
                         left.size(), saved.reader().folder(), listed(left));
  if (linears.empty())
    return cannotConvert("'{}' has no adapters", saved.reader().folder());
  return linears;
}

std::vector<PeftLinear> peftLinears(const HfConfig &config, const std::vector<HfParam> &params,
                                    const std::function<int64_t(PeftModule &)> &rowsIn) {
  std::vector<PeftLinear> linears;
  auto find = [&](const HfParam &param, const WeightName &name) {
    PeftLinear linear = linearOf(param, name);
    linear.rows = rowsOf(param);
    if (linear.rows == 0 && !param.segments.empty()) { // one module has all rows
      PeftModule whole{moduleOf(param.segments[0].hf), {}, 0};
      linear.rows = rowsIn(whole);
    }
    linear.modules = modulesOf(param, linear.rows);
    int slices = 0;
    for (PeftModule &module : linear.modules) {
      module.columns = name.stem.ends_with("linear_fc1") ? config.hidden : config.expertFfn;
      module.slice = rowsIn(module) > 0 ? slices++ : -1;
    }
    if (slices > 0)
      linears.push_back(std::move(linear));
    return slices > 0;
  };
  auto canHave = [](const WeightName &name) { // no recipe adapts routers
    const std::string word = lastWordOf(name.stem);
    return inLayer(name.stem) &&
           (word.starts_with("linear_") || word == "in_proj" || word == "out_proj");
  };
  for (const HfParam &param : params)
    if (std::optional<WeightName> name = weightName(param.name); name && canHave(*name))
      if (!find(inStack(param), *name) && !param.stacked.empty())
        find(param, *name);
  return linears;
}

Result<HfConfig> configOf(const CheckpointReader *reader, const std::string &folder) {
  std::string text, path;
  if (!folder.empty()) {
    path = folder + "/config.json";
    ASSIGN_OR_RETURN(text, UntrustedFolder::readIn(folder, "config.json", kHfConfigBytesMax));
  } else {
    ASSIGN_OR_RETURN(std::vector<HfModelFile> files, hfFilesOf(*reader));
    auto found = std::ranges::find(files, "config.json", &HfModelFile::name);
    if (found == files.end())
      return cannotConvert("'{}' keeps no config.json of its base model; name the model's folder "
                           "with --config",
                           reader->folder());
    path = reader->folder() + "/config.json", text = found->contents;
  }
  return parseHfConfig(text, path, {{}, folder.empty()});
}

Result<std::vector<float>> readAll(const ParamSource &from, const std::string &name,
                                   const Shape &shape) {
  std::vector<float> values(static_cast<size_t>(elementCount(shape).value_or(0)));
  RETURN_IF_ERROR(from.read(name, Box::whole(shape), Element::F32, values.data()));
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    return cannotConvert("'{}' of '{}' has numbers that are not finite", name, from.folder());
  return values;
}

Result<PeftSettings> readPeftSettings(const CheckpointReader &reader) {
  std::string text;
  if (reader.files().has(kRunConfigFile)) {
    ASSIGN_OR_RETURN(text, reader.files().read(kRunConfigFile, kTextBytesMax));
  }
  const RunOptions peft(text, "peft");
  PeftSettings settings;
  settings.scheme = peft.word("scheme");
  settings.base = peft.word("base_model_name_or_path");
  settings.rank = peft.integerOr("rank", 0);
  settings.alpha = peft.numberOr("alpha", 0);
  settings.dropout = peft.numberOr("dropout", 0);
  settings.isRslora = peft.isOn("rslora");
  settings.hasBiases = peft.isOn("lora_bias");
  settings.isUntied =
      !RunOptions(text, "model").valueOr("share_embeddings_and_output_weights", true);
  settings.targets = peft.words("targets");
  settings.exclude = peft.words("exclude");
  settings.modulesToSave = peft.words("modules_to_save");
  settings.targetAlphas = peft.list<double>("target_alphas", 0);
  if (!settings.targetAlphas.empty() && settings.targetAlphas.size() != settings.targets.size())
    return cannotConvert("'{}' has {} 'peft.targets' and {} 'peft.target_alphas'", reader.folder(),
                         settings.targets.size(), settings.targetAlphas.size());
  if (settings.scheme.empty() || settings.rank <= 0)
    return cannotConvert("'{}' is not a checkpoint of adapters: its {} has no '{}'",
                         reader.folder(), kRunConfigFile,
                         settings.scheme.empty() ? "peft.scheme" : "peft.rank");
  return settings;
}

std::string peftSettingsText(const PeftSettings &settings) {
  auto json = [](const auto &value) { return toText(nlohmann::json(value)); };
  return fmt::format(
      "{}peft:\n  scheme: {}\n  rank: {}\n  alpha: {}\n  dropout: {}\n  rslora: {}\n"
      "  lora_bias: {}\n"
      "  targets: {}\n  target_alphas: {}\n  modules_to_save: {}\n"
      "  base_model_name_or_path: {}\n",
      settings.isUntied ? "model:\n  share_embeddings_and_output_weights: false\n" : "",
      json(settings.scheme), settings.rank, json(settings.alpha), json(settings.dropout),
      settings.isRslora, settings.hasBiases, json(settings.targets), json(settings.targetAlphas),
      json(settings.modulesToSave), json(settings.base));
}

std::string peftBaseOf(const CheckpointReader &reader) {
  Result<BaseRecord> record = readBaseRecord(reader);
  return record.isOk() ? record->folder : "";
}

} // namespace shardc::checkpoint
