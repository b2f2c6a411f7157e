#include "runtime/checkpoint/PeftAdapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "runtime/base/Json.h"
#include "runtime/checkpoint/BaseRecord.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/checkpoint/PeftFolder.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {
namespace {

/// The base's config.json as the run's model is: an output layer of its own unties it.
Result<HfConfig> configOfTrained(const ParamSource &trained, const PeftSettings &settings,
                                 const std::string &folder) {
  ASSIGN_OR_RETURN(HfConfig config, configOf(&trained.reader(), folder));
  config.isTied = config.isTied && !settings.isUntied && !trained.shapeOf(kOutputLayer);
  return config;
}

SafeTensorSource tensorOf(std::string name, Element type, Shape shape, std::vector<float> values) {
  auto write = [type, values = std::move(values)](ByteSink &sink) {
    std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(elementBits(type) / 8));
    convertElements(Element::F32, reinterpret_cast<const uint8_t *>(values.data()), type,
                    bytes.data(), static_cast<int64_t>(values.size()));
    return sink.write(bytes.data(), bytes.size());
  };
  return {std::move(name), type, std::move(shape), std::move(write)};
}

/// The `target_modules` of an adapter: the last name of each module, or its full name if other
/// modules with that last name have no adapter.
nlohmann::json targetsOf(const HfConfig &config, const std::vector<std::string> &adapted,
                         const std::vector<HfParam> &params) {
  std::set<std::string> with(adapted.begin(), adapted.end()), words, mixed;
  for (const HfParam &param : params)
    for (const HfSegment &segment : param.segments)
      if (std::string module = moduleOf(segment.hf); !with.contains(module))
        mixed.insert(lastWordOf(module));
  for (const std::string &module : adapted)
    words.insert(mixed.contains(lastWordOf(module)) ? peftPath(config, module)
                                                    : lastWordOf(module));
  return words;
}

/// Adds the parameters that a run has trained in full in addition to its adapters, as tensors in
/// the hub's format. PEFT has two copies of a matrix that stays tied.
Status addSaved(const ParamSource &in, const HfConfig &config, const std::vector<HfParam> &params,
                Element type, std::vector<SafeTensorSource> &tensors,
                std::set<std::string> &words) {
  struct Whole {
    std::vector<float> values;
    Shape shape;
    bool isVocab = false;
  };
  std::map<std::string, Whole> wholes; // several parameters may be rows of one tensor
  std::map<std::string_view, std::string_view> lacking; // the first of them that is not trained
  for (const HfParam &param : params)
    if (!param.isOnlyWritten && !param.isOptional && !in.shapeOf(param.name))
      for (const HfSegment &part : param.segments)
        lacking.emplace(part.hf, param.name);
  for (const HfParam &param : params) {
    std::optional<Shape> shape = in.shapeOf(param.name);
    if (!shape || param.isOnlyWritten)
      continue;
    if (param.isTransposed || param.segments[0].slab >= 0)
      return cannotConvert("'{}' is trained whole, and PEFT's format that shardc writes has no "
                           "place for it; 'shardc ckpt merge' takes it",
                           param.name);
    Shape cut = *shape;
    if (param.isVocab)
      cut[0] = std::min(cut[0], config.vocab);
    ASSIGN_OR_RETURN(std::vector<float> values, readAll(in, param.name, cut));
    const int64_t width = cut[0] > 0 ? std::ssize(values) / cut[0] : 0;
    if (param.isFilter)
      cut.insert(cut.begin() + 1, 1);
    for (const HfSegment &part : param.segments) {
      const int64_t rows = part.rows < 0 ? cut[0] : part.rows;
      if (auto other = lacking.find(part.hf); other != lacking.end())
        return cannotConvert("'{}' is trained whole and '{}' is not; PEFT's format has both in "
                             "'{}'; 'shardc ckpt merge' takes them",
                             param.name, other->second, part.hf);
      Whole &whole = wholes[part.hf];
      whole.shape = cut, whole.isVocab = param.isVocab;
      whole.values.resize(
          std::max(whole.values.size(),
                   static_cast<size_t>((part.hfRow + (rows - 1) * part.step + 1) * width)));
      whole.shape[0] = width > 0 ? std::ssize(whole.values) / width : 0;
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(values.begin() + (part.row + i) * width, width,
                    whole.values.begin() + (part.hfRow + i * part.step) * width);
    }
    if (config.isTied && param.name == kEmbeddingTable)
      wholes[std::string(hfTensors(config.arch, "output_layer").front()) + ".weight"] = {
          std::move(values), cut, true};
  }
  for (auto &[stored, whole] : wholes) {
    const std::string name = moduleName(config, stored);
    tensors.push_back(
        tensorOf(kPeftPrefix + peftPath(config, name), type, whole.shape, std::move(whole.values)));
    // PEFT compares ends of paths, and other paths may end with a norm's name.
    const std::string path = peftPath(config, moduleOf(name));
    words.insert(whole.isVocab ? lastWordOf(path) : path);
  }
  return Status::ok();
}

/// The rows of a module in a value with `width` elements for each row of the layer.
std::vector<float> rowsOf(const PeftModule &module, const std::vector<float> &values,
                          int64_t width) {
  std::vector<float> rows(static_cast<size_t>(module.rows * width));
  for (const HfSegment &segment : module.segments)
    for (int64_t i = 0; i < segment.rows; ++i)
      std::copy_n(values.begin() + (segment.row + i) * width, width,
                  rows.begin() + (segment.hfRow + i * segment.step) * width);
  return rows;
}

} // namespace

double PeftSettings::scaleOf(double ofAlpha) const {
  auto columns = static_cast<double>(rank);
  return ofAlpha / (isRslora ? std::sqrt(columns) : columns);
}

namespace {

/// The adapters of all experts of a layer in PEFT's form; see PeftFolder::takeExpert.
struct Stack {
  int64_t rank = 0, rows = 0, columns = 0;
  std::vector<float> a, b;

  void set(int64_t expert, int64_t experts, const std::vector<float> &ofA,
           const std::vector<float> &ofB) {
    a.resize(static_cast<size_t>(experts * rank * columns));
    b.resize(static_cast<size_t>(rows * experts * rank));
    std::ranges::copy(ofA, a.begin() + expert * rank * columns);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rank; ++j)
        b[static_cast<size_t>((i * rank + j) * experts + expert)] =
            ofB[static_cast<size_t>(i * rank + j)];
  }
};
using Stacks = std::map<std::string, Stack>; ///< by parameter

std::vector<float> transposed(const std::vector<float> &values, int64_t columns) {
  std::vector<float> out(values.size());
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = values[static_cast<size_t>(i * columns + j)];
  return out;
}

/// PEFT wraps the parameters of a module in the order of the module, so the first one is inside.
void addStacks(const Stacks &stacks, const HfConfig &config, Element type,
               std::vector<SafeTensorSource> &tensors, std::vector<std::string> &parameters) {
  for (const auto &[name, stack] : stacks) {
    std::string module = name.substr(0, name.rfind('.'));
    bool isInside = name.ends_with("gate_up_proj") && stacks.contains(module + ".down_proj");
    std::string stem = kPeftPrefix + peftPath(config, module) + (isInside ? ".base_layer" : "");
    int64_t width = config.experts * stack.rank;
    tensors.push_back(tensorOf(stem + ".lora_A.weight", type, {width, stack.columns}, stack.a));
    tensors.push_back(tensorOf(stem + ".lora_B.weight", type, {stack.rows, width}, stack.b));
    parameters.push_back(peftPath(config, name));
  }
}

/// What an export has of a run's adapters.
struct Exported {
  std::vector<SafeTensorSource> tensors;
  std::vector<std::string> adapted, parameters; ///< modules, and weights of which PEFT has more
  Stacks stacks;
  bool hasBiases = false;
  nlohmann::json alphas = nlohmann::json::object(); ///< other ones than that of most, by path
};

/// A number as PEFT writes it.
nlohmann::json alphaJson(double alpha) {
  return alpha == std::floor(alpha) ? nlohmann::json(static_cast<int64_t>(alpha))
                                    : nlohmann::json(alpha);
}

/// Whether PEFT needs the module's weight as a parameter: in models with routed experts it takes
/// modules of these names for parts of them. Parameters have neither magnitudes nor biases.
bool isParameter(const HfConfig &config, const PeftSettings &settings, const PeftModule &module) {
  const std::string word = lastWordOf(module.name);
  return config.experts > 0 && !settings.isDora() && !settings.hasBiases && module.slab < 0 &&
         module.name.find(".experts.") == std::string::npos &&
         (word == "gate_proj" || word == "up_proj" || word == "down_proj");
}

/// Adds the factors of a layer for the modules of Hugging Face that the layer joins, such as
/// q_proj, k_proj and v_proj. Their A is a slice of the layer's A, their B some rows of its B.
Status addLinear(const ParamSource &saved, const PeftSettings &settings, const HfConfig &config,
                 const PeftLinear &linear, Element type, Exported &out) {
  ASSIGN_OR_RETURN(std::vector<float> a, readAll(saved, linear.aName, linear.aShape));
  ASSIGN_OR_RETURN(std::vector<float> b, readAll(saved, linear.bName, linear.bShape));
  std::vector<float> magnitudes, biases;
  if (settings.isDora()) {
    ASSIGN_OR_RETURN(magnitudes, readAll(saved, linear.magnitudeName, {linear.rows}));
  }
  if (saved.shapeOf(linear.biasName)) {
    ASSIGN_OR_RETURN(biases, readAll(saved, linear.biasName, {linear.rows}));
    out.hasBiases = true;
  }
  int64_t columns = linear.aShape[1], rank = linear.bShape[1];
  for (const PeftModule &module : linear.modules) {
    // The adapter of a joined layer may be only on some of its modules.
    if (module.slice < 0)
      continue;
    const std::string name = module.slab < 0 ? module.name : stackName(config, module);
    const std::string path = peftPath(config, name), parameter = path + ".weight";
    const bool isOne = isParameter(config, settings, module);
    if (module.alpha != settings.alpha)
      out.alphas[isOne ? parameter : path] = alphaJson(module.alpha);
    if (module.slab >= 0) {
      bool isSwapped = config.layout == HfLayout::Stacked; // see PeftFolder::foundOf
      std::vector<float> rows = rowsOf(module, b, rank);
      Stack &stack = out.stacks[name];
      stack.rank = rank, stack.rows = isSwapped ? columns : module.rows;
      stack.columns = isSwapped ? module.rows : columns;
      stack.set(module.slab, config.experts, isSwapped ? transposed(rows, rank) : a,
                isSwapped ? transposed(a, columns) : rows);
      continue;
    }
    auto first = a.begin() + module.slice * rank * columns;
    auto add = [&](const char *end, Shape shape, std::vector<float> values) {
      out.tensors.push_back(
          tensorOf(kPeftPrefix + path + end, type, std::move(shape), std::move(values)));
    };
    add(".lora_A.weight", {rank, columns}, {first, first + rank * columns});
    add(".lora_B.weight", {module.rows, rank}, rowsOf(module, b, rank));
    if (settings.isDora())
      add(kPeftMagnitude, {module.rows}, rowsOf(module, magnitudes, 1));
    if (!biases.empty())
      add(".lora_B.bias", {module.rows}, rowsOf(module, biases, 1));
    if (isOne)
      out.parameters.push_back(parameter);
    else
      out.adapted.push_back(module.name);
  }
  return Status::ok();
}

} // namespace

Status exportPeft(const std::string &in, const std::string &out, const PeftOptions &options) {
  ASSIGN_OR_RETURN(auto source, ParamSource::openCheckpoint(in, options.emit));
  const ParamSource &saved = *source;
  ASSIGN_OR_RETURN(PeftSettings settings, readPeftSettings(saved.reader()));
  ASSIGN_OR_RETURN(HfConfig config, configOfTrained(saved, settings, options.configFolder));
  std::vector<HfParam> params = hfParams(config);
  ASSIGN_OR_RETURN(std::vector<PeftLinear> linears,
                   peftLinears(saved, settings, config, params, options.partsOf));
  Exported found;
  for (const PeftLinear &linear : linears)
    RETURN_IF_ERROR(addLinear(saved, settings, config, linear, options.weightType, found));
  addStacks(found.stacks, config, options.weightType, found.tensors, found.parameters);
  std::set<std::string> trained;
  RETURN_IF_ERROR(addSaved(saved, config, params, options.weightType, found.tensors, trained));
  std::string base = settings.base.empty() ? options.configFolder : settings.base;
  if (base.empty()) // perhaps a checkpoint, which other programs do not read
    base = peftBaseOf(saved.reader());
  nlohmann::json text = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base},
      {"r", settings.rank},
      {"lora_alpha", alphaJson(settings.alpha)},
      {"lora_dropout", settings.dropout},
      {"lora_bias", found.hasBiases},
      {"use_rslora", settings.isRslora},
      {"use_dora", settings.isDora()},
      {"bias", "none"},
      {"fan_in_fan_out", infoOf(config.arch).isTransposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"rank_pattern", nlohmann::json::object()},
      {"alpha_pattern", found.alphas},
      {"target_modules", targetsOf(config, found.adapted, params)},
      {"target_parameters",
       found.parameters.empty() ? nlohmann::json() : nlohmann::json(found.parameters)},
      {"ensure_weight_tying", config.isTied && saved.shapeOf(kEmbeddingTable).has_value()},
      {"modules_to_save", trained.empty() ? nlohmann::json() : nlohmann::json(trained)}};
  return putFolder(options.observers, out, [&](const std::string &staging) -> Status {
    RETURN_IF_ERROR(
        replaceFile(options.observers, staging + "/" + kPeftConfigFile, toText(text, 2) + "\n"));
    return writeSafeTensors(staging + "/" + kPeftTensors, std::move(found.tensors),
                            {{"format", "pt"}}, options.observers);
  });
}

namespace {

/// The scale of each row's adapter; 0 for rows without one.
std::vector<float> scalesOf(const PeftLinear &linear, const PeftSettings &settings) {
  std::vector<float> scales(static_cast<size_t>(linear.rows));
  for (const PeftModule &module : linear.modules)
    for (const HfSegment &segment : module.segments)
      std::fill_n(scales.begin() + segment.row, segment.rows,
                  module.slice < 0 ? 0.0f : static_cast<float>(settings.scaleOf(module.alpha)));
  return scales;
}

/// The factors of a layer, and for each of its rows the slice of A that it uses.
struct Delta {
  int64_t rank = 0, columns = 0;
  std::vector<float> scales; ///< of rows
  std::vector<float> a, b;
  std::vector<float> magnitudes; ///< of rows; empty without DoRA
  std::vector<int> sliceOf;

  void addTo(float *rows, int64_t first, int64_t count) const {
    std::vector<float> sum(static_cast<size_t>(columns));
    for (int64_t row = first; row < first + count; ++row, rows += columns) {
      int slice = sliceOf[static_cast<size_t>(row)];
      if (slice < 0)
        continue;
      std::ranges::fill(sum, 0.0f);
      for (int64_t j = 0; j < rank; ++j) {
        float factor = b[static_cast<size_t>(row * rank + j)];
        const float *from = a.data() + (slice * rank + j) * columns;
        for (int64_t c = 0; c < columns; ++c)
          sum[static_cast<size_t>(c)] += factor * from[c];
      }
      for (int64_t c = 0; c < columns; ++c)
        rows[c] += scales[static_cast<size_t>(row)] * sum[static_cast<size_t>(c)];
      if (!magnitudes.empty())
        setNorm(rows, magnitudes[static_cast<size_t>(row)]);
    }
  }

private:
  /// Gives a row this norm. One of zeros stays as it is.
  void setNorm(float *row, float norm) const {
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c)
      squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    auto root = static_cast<float>(std::sqrt(squares));
    for (int64_t c = 0; c < columns && root != 0; ++c)
      row[c] *= norm / root;
  }
};

Result<Delta> deltaOf(const ParamSource &adapters, const PeftLinear &linear,
                      const PeftSettings &settings) {
  Delta delta{linear.bShape[1], linear.aShape[1], scalesOf(linear, settings), {}, {}, {}, {}};
  ASSIGN_OR_RETURN(delta.a, readAll(adapters, linear.aName, linear.aShape));
  ASSIGN_OR_RETURN(delta.b, readAll(adapters, linear.bName, linear.bShape));
  if (settings.isDora()) {
    ASSIGN_OR_RETURN(delta.magnitudes, readAll(adapters, linear.magnitudeName, {linear.rows}));
  }
  delta.sliceOf.assign(static_cast<size_t>(linear.rows), -1);
  for (const PeftModule &module : linear.modules)
    for (const HfSegment &segment : module.segments)
      for (int64_t i = 0; i < segment.rows; ++i)
        delta.sliceOf[static_cast<size_t>(segment.row + i)] = module.slice;
  return delta;
}

/// Reads rows of a merged parameter in fp32: trained ones, or those of the base and what the
/// adapter of `linear`, if not null, adds to them. Rows are read in their order: `delta` keeps the
/// adapter's factors from the first rows to the last.
Status readMerged(const ParamSource &adapters, const ParamSource &base,
                  const PeftSettings &settings, const PeftLinear *linear, const std::string &name,
                  const Box &box, std::optional<Delta> &delta, std::vector<float> &rows) {
  if (std::optional<Shape> trained = adapters.shapeOf(name)) { // the base may have rows of padding
    Box own = clearPadding(box, (*trained)[0], Element::F32, rows.data());
    return own.isEmpty() ? Status::ok() : adapters.read(name, own, Element::F32, rows.data());
  }
  RETURN_IF_ERROR(base.read(base.tensorOf(name), box, Element::F32, rows.data()));
  if (linear != nullptr && name == linear->name) {
    if (!delta) {
      ASSIGN_OR_RETURN(delta, deltaOf(adapters, *linear, settings));
    }
    delta->addTo(rows.data(), box.offset[0], box.shape[0]);
    if (box.offset[0] + box.shape[0] == linear->rows)
      delta.reset();
  } else if (linear != nullptr) {
    ASSIGN_OR_RETURN(std::vector<float> more, readAll(adapters, linear->biasName, {linear->rows}));
    const std::vector<float> scales = scalesOf(*linear, settings);
    for (size_t i = 0, row = static_cast<size_t>(box.offset[0]); i < rows.size(); ++i, ++row)
      rows[i] += scales[row] * more[row];
  }
  return Status::ok();
}

} // namespace

Status mergePeft(const std::string &in, const std::string &baseFolder, const SaveTarget &out,
                 const MergeOptions &options, const ConvertRank &rank) {
  ASSIGN_OR_RETURN(auto trained, ParamSource::openCheckpoint(in, options.peft.emit));
  const ParamSource &adapters = *trained;
  ASSIGN_OR_RETURN(PeftSettings settings, readPeftSettings(adapters.reader()));
  ASSIGN_OR_RETURN(HfConfig config, configOfTrained(adapters, settings, options.peft.configFolder));
  ASSIGN_OR_RETURN(auto model, ParamSource::openModel(baseFolder, options.peft.emit));
  const ParamSource &base = *model;
  RETURN_IF_ERROR(warnOfOtherBase(adapters.reader(), base, options.peft.emit));
  std::vector<HfParam> params = hfParams(config);
  ASSIGN_OR_RETURN(std::vector<PeftLinear> linears,
                   peftLinears(adapters, settings, config, params, options.peft.partsOf));
  std::map<std::string, const PeftLinear *> linearOf; // by weight, and by bias
  for (const PeftLinear &linear : linears) {
    linearOf[linear.name] = &linear;
    if (adapters.shapeOf(linear.biasName))
      linearOf[linear.ownBiasName] = &linear;
  }
  std::vector<ConvertJob> jobs;
  std::vector<std::string> names = base.names();
  const bool unties = !config.isTied && !base.shapeOf(kOutputLayer);
  if (unties)
    names.push_back(kOutputLayer);
  for (const std::string &name : names) {
    const std::string_view ofBase = base.tensorOf(name);
    std::optional<Shape> shape = base.shapeOf(ofBase);
    if (!shape)
      return cannotConvert("'{}' has no weight '{}'", baseFolder, ofBase);
    Element type = options.weightType.value_or(base.typeOf(ofBase).value_or(Element::F32));
    ConvertJob job{name, type, *shape, {}, {}};
    auto found = linearOf.find(name);
    const PeftLinear *linear = found == linearOf.end() ? nullptr : found->second;
    if (linear != nullptr && name == linear->name &&
        *shape != Shape{linear->rows, linear->aShape[1]})
      return cannotConvert("'{}' is {} in '{}'; its adapter is for {}", name, shapeText(*shape),
                           baseFolder, shapeText(Shape{linear->rows, linear->aShape[1]}));
    if (std::optional<Shape> own = adapters.shapeOf(name); // vocabularies may be padded
        own && *own != *shape && name != kEmbeddingTable && name != kOutputLayer)
      return cannotConvert("'{}' is {} in '{}'; the trained one is {}", name, shapeText(*shape),
                           baseFolder, shapeText(*own));
    if (linear != nullptr)
      linearOf.erase(found);
    job.read = [&, name, type, linear,
                delta = std::make_shared<std::optional<Delta>>()](const Box &box, void *dst) {
      std::vector<float> rows(static_cast<size_t>(elementCount(box.shape).value_or(0)));
      RETURN_IF_ERROR(readMerged(adapters, base, settings, linear, name, box, *delta, rows));
      convertElements(Element::F32, reinterpret_cast<const uint8_t *>(rows.data()), type,
                      static_cast<uint8_t *>(dst), static_cast<int64_t>(rows.size()));
      return Status::ok();
    };
    job.isGated = hfOption(config.arch, "gated_linear_unit") == true;
    jobs.push_back(std::move(job));
  }
  if (!linearOf.empty())
    return cannotConvert("'{}' has no parameter '{}', for which there is an adapter", baseFolder,
                         linearOf.begin()->first);
  ASSIGN_OR_RETURN(std::vector<HfModelFile> files, base.modelFiles());
  if (unties)
    untie(files);
  constexpr int64_t kPieceBytes = int64_t{64} << 20;
  return runJobs(out, std::move(jobs), kPieceBytes, options.peft.progress, rank,
                 [&](RankWriter &writer) {
                   ASSIGN_OR_RETURN(PlainEntries args, hfArguments(config, config.biases));
                   return addModel(writer, out, std::move(args), files);
                 });
}

} // namespace shardc::checkpoint
