#include "runtime/checkpoint/PeftAdapter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/BaseRecord.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfDerive.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/ModelWeights.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/SafeTensors.h"
#include "runtime/checkpoint/SavedParams.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char *kConfigFile = "adapter_config.json", *kTensors = "adapter_model.safetensors";
constexpr const char *kPrefix = "base_model.model.", *kMagnitude = ".lora_magnitude_vector";
constexpr uint64_t kConfigBytesMax = 4 << 20;

/// The config.json in a folder, or without a folder the one in the checkpoint.
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

/// The values of a tensor in fp32.
std::vector<float> floatsOf(const SafeTensorsFile &file, const SafeTensor &tensor) {
  std::span<const uint8_t> bytes = file.bytes(tensor);
  int64_t count = elementCount(tensor.shape).value_or(0);
  std::vector<float> values(static_cast<size_t>(count));
  convertElements(tensor.type, bytes.data(), Element::F32,
                  reinterpret_cast<uint8_t *>(values.data()), count);
  return values;
}

Result<std::vector<float>> readAll(const SavedParams &from, const std::string &name,
                                   const Shape &shape) {
  std::vector<float> values(static_cast<size_t>(elementCount(shape).value_or(0)));
  RETURN_IF_ERROR(from.read(name, Box::whole(shape), Element::F32, values.data()));
  return values;
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
nlohmann::json targetsOf(const std::vector<std::string> &adapted,
                         const std::vector<HfParam> &params) {
  std::set<std::string> with(adapted.begin(), adapted.end()), words, mixed;
  for (const HfParam &param : params)
    for (const HfSegment &segment : param.segments)
      if (std::string module = moduleOf(segment.hf); !with.contains(module))
        mixed.insert(lastWordOf(module));
  for (const std::string &module : adapted)
    words.insert(mixed.contains(lastWordOf(module)) ? module : lastWordOf(module));
  return words;
}

/// Adds the parameters that a run has trained in full in addition to its adapters, as tensors in
/// the hub's format.
Status addSaved(const SavedParams &in, const HfConfig &config, const std::vector<HfParam> &params,
                Element type, std::vector<SafeTensorSource> &tensors,
                std::set<std::string> &words) {
  for (const HfParam &param : params) {
    std::optional<Shape> shape = in.shapeOf(param.name);
    if (!shape || param.segments.size() != 1 || param.isTransposed)
      continue;
    Shape cut = *shape;
    if (param.isVocab)
      cut[0] = std::min(cut[0], config.vocab);
    std::vector<float> values(static_cast<size_t>(elementCount(cut).value_or(0)));
    RETURN_IF_ERROR(in.read(param.name, Box::whole(cut), Element::F32, values.data()));
    tensors.push_back(tensorOf(kPrefix + param.segments[0].hf, type, cut, std::move(values)));
    words.insert(lastWordOf(moduleOf(param.segments[0].hf)));
  }
  return Status::ok();
}

/// Writes the folder under a temporary name, and renames it.
Status writeFolder(const std::string &out, std::vector<SafeTensorSource> tensors,
                   const nlohmann::json &config, const Observers &observers) {
  fs::path path = fs::path(out).lexically_normal();
  if (path.filename().empty())
    path = path.parent_path();
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_empty(path, error))
    return cannotConvert("'{}' exists already; remove it or choose another path", out);
  fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::string staging = (parent / fmt::format(".{}.saving", path.filename().string())).string();
  RETURN_IF_ERROR(makeFolders(parent.string()));
  RETURN_IF_ERROR(removeTree(observers, staging));
  RETURN_IF_ERROR(makeFolder(observers, staging));
  Status status = replaceFile(observers, staging + "/" + kConfigFile, toText(config, 2) + "\n");
  if (status.isOk())
    status = writeSafeTensors(staging + "/" + kTensors, std::move(tensors), {{"format", "pt"}},
                              observers);
  if (status.isOk())
    status = syncFolder(observers, staging);
  if (status.isOk())
    status = renamePath(observers, staging, path.string());
  if (status.isOk())
    return syncFolder(observers, parent.string());
  static_cast<void>(removeTree(observers, staging)); // report the first failure instead
  return status;
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

double PeftSettings::scale() const {
  auto columns = static_cast<double>(rank);
  return alpha / (isRslora ? std::sqrt(columns) : columns);
}

/// Writes the factors of each adapted layer for the modules of Hugging Face that the layer joins,
/// such as q_proj, k_proj and v_proj. Their A is a slice of the layer's A, their B some rows of its
/// B.
Status exportPeft(const std::string &in, const std::string &out, const PeftOptions &options) {
  ASSIGN_OR_RETURN(SavedParams saved, SavedParams::open(in, options.emit));
  ASSIGN_OR_RETURN(PeftSettings settings, readPeftSettings(saved.reader()));
  ASSIGN_OR_RETURN(HfConfig config, configOf(&saved.reader(), options.configFolder));
  std::vector<HfParam> params = hfParams(config);
  ASSIGN_OR_RETURN(std::vector<PeftLinear> linears,
                   peftLinears(saved, settings, config, params, options.partsOf));
  std::vector<SafeTensorSource> tensors;
  std::vector<std::string> adapted;
  for (const PeftLinear &linear : linears) {
    ASSIGN_OR_RETURN(std::vector<float> a, readAll(saved, linear.aName, linear.aShape));
    ASSIGN_OR_RETURN(std::vector<float> b, readAll(saved, linear.bName, linear.bShape));
    std::vector<float> magnitudes;
    if (settings.isDora()) {
      ASSIGN_OR_RETURN(magnitudes, readAll(saved, linear.magnitudeName, {linear.rows}));
    }
    int64_t columns = linear.aShape[1], rank = linear.bShape[1];
    for (const PeftModule &module : linear.modules) {
      // The adapter of a joined layer may be only on some of its modules.
      if (module.slice < 0)
        continue;
      auto first = a.begin() + module.slice * rank * columns;
      tensors.push_back(tensorOf(kPrefix + module.name + ".lora_A.weight", options.weightType,
                                 {rank, columns}, {first, first + rank * columns}));
      tensors.push_back(tensorOf(kPrefix + module.name + ".lora_B.weight", options.weightType,
                                 {module.rows, rank}, rowsOf(module, b, rank)));
      if (settings.isDora())
        tensors.push_back(tensorOf(kPrefix + module.name + kMagnitude, options.weightType,
                                   {module.rows}, rowsOf(module, magnitudes, 1)));
      adapted.push_back(module.name);
    }
  }
  std::set<std::string> trained;
  RETURN_IF_ERROR(addSaved(saved, config, params, options.weightType, tensors, trained));
  nlohmann::json text = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", peftBaseOf(saved.reader())},
      {"r", settings.rank},
      {"lora_alpha", settings.alpha == std::floor(settings.alpha)
                         ? nlohmann::json(static_cast<int64_t>(settings.alpha))
                         : nlohmann::json(settings.alpha)},
      {"lora_dropout", settings.dropout},
      {"use_rslora", settings.isRslora},
      {"use_dora", settings.isDora()},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"rank_pattern", nlohmann::json::object()},
      {"alpha_pattern", nlohmann::json::object()},
      {"target_modules", targetsOf(adapted, params)},
      {"modules_to_save", trained.empty() ? nlohmann::json() : nlohmann::json(trained)}};
  return writeFolder(out, std::move(tensors), text, options.observers);
}

namespace {

/// A PEFT folder to import.
class PeftFolder {
public:
  static Result<PeftFolder> open(const std::string &path) {
    ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(path));
    ASSIGN_OR_RETURN(std::string text, in.read(kConfigFile, kConfigBytesMax));
    nlohmann::json config = parseJson(text);
    if (!config.is_object())
      return cannotConvert("'{}/{}' is no JSON object", path, kConfigFile);
    ASSIGN_OR_RETURN(SafeTensorsFile tensors, SafeTensorsFile::open(in, kTensors));
    PeftFolder folder(path, std::move(config), std::move(tensors));
    RETURN_IF_ERROR(folder.check());
    return folder;
  }

  /// Rows of factor B of a module; 0 if it has no adapter.
  int64_t rowsOf(const std::string &module) const {
    const SafeTensor *b = tensors_.find(kPrefix + module + ".lora_B.weight");
    return b == nullptr || b->shape.size() != 2 || rankOf(module) == 0 ? 0 : b->shape[0];
  }
  int64_t rankOf(const std::string &module) const {
    const SafeTensor *a = tensors_.find(kPrefix + module + ".lora_A.weight");
    return a == nullptr || a->shape.size() != 2 ? 0 : a->shape[0];
  }
  double scaleOf(const std::string &module) const {
    auto rank = static_cast<double>(rankOf(module));
    return alphaOf(module) / (isRslora() ? std::sqrt(rank) : rank);
  }
  bool isRslora() const { return isOn("use_rslora"); }
  bool isDora() const { return isOn("use_dora"); }
  double alphaOf(const std::string &module) const {
    auto patterns = config_.find("alpha_pattern");
    if (patterns != config_.end() && patterns->is_object())
      for (const auto &[name, value] : patterns->items())
        if (value.is_number() && (module == name || module.ends_with("." + name)))
          return value.get<double>();
    return numberOr("lora_alpha", 8);
  }
  double dropout() const { return numberOr("lora_dropout", 0); }
  /// Finds a tensor by its name without the prefix, and marks it as used. Null if there is none.
  const SafeTensor *take(const std::string &name) {
    const SafeTensor *tensor = tensors_.find(kPrefix + name);
    if (tensor != nullptr)
      taken_.insert(tensor->name);
    return tensor;
  }
  const SafeTensorsFile &tensors() const { return tensors_; }
  /// Checks that all tensors are used.
  Status finish() const {
    std::vector<std::string> left;
    for (const SafeTensor &tensor : tensors_.header().tensors)
      if (!taken_.contains(tensor.name))
        left.push_back(tensor.name);
    return left.empty() ? Status::ok()
                        : cannotConvert("{} tensors of '{}' are of no layer that adapters can be "
                                        "for:{}",
                                        left.size(), path_, listed(left));
  }

private:
  PeftFolder(std::string path, nlohmann::json config, SafeTensorsFile tensors)
      : path_(std::move(path)), config_(std::move(config)), tensors_(std::move(tensors)) {}

  std::string textOr(const char *field, const char *otherwise) const {
    auto found = config_.find(field);
    return found != config_.end() && found->is_string() ? found->get<std::string>() : otherwise;
  }
  double numberOr(const char *field, double otherwise) const {
    auto found = config_.find(field);
    return found != config_.end() && found->is_number() ? found->get<double>() : otherwise;
  }
  bool isOn(const char *field) const {
    auto found = config_.find(field);
    return found != config_.end() && found->is_boolean() && found->get<bool>();
  }

  Status check() const {
    auto isSet = [&](const char *field) {
      auto found = config_.find(field);
      return found != config_.end() && *found != nlohmann::json(false) && !found->is_null() &&
             !(found->is_structured() && found->empty());
    };
    if (std::string kind = textOr("peft_type", "LORA"); kind != "LORA")
      return cannotConvert("'{}' has adapters of kind '{}'; it needs to be LORA", path_, kind);
    for (const char *field : {"lora_bias", "trainable_token_indices", "target_parameters",
                              "layer_replication", "alora_invocation_tokens"})
      if (isSet(field))
        return cannotConvert("'{}/{}' sets '{}', which no adapter of ours has", path_, kConfigFile,
                             field);
    if (std::string bias = textOr("bias", "none"); bias != "none")
      return cannotConvert("'{}' has trained biases ('bias' is '{}'); it needs to be none", path_,
                           bias);
    std::string init = textOr("init_lora_weights", "");
    if (init.starts_with("pissa") || init.starts_with("olora"))
      return cannotConvert("'{}' was started by '{}', which changes the base weights; save it with "
                           "'path_initial_model_for_weight_conversion' first",
                           path_, init);
    return Status::ok();
  }

  std::string path_;
  nlohmann::json config_;
  SafeTensorsFile tensors_;
  std::set<std::string> taken_;
};

/// The two factors of a layer, combined from those of the modules that it joins.
struct Factors {
  Shape aShape, bShape;
  std::vector<float> a, b, magnitudes;
};

/// Magnitudes of rows without an adapter count for nothing.
Status fillMagnitudes(PeftFolder &folder, const PeftLinear &linear, Factors &factors) {
  factors.magnitudes.assign(static_cast<size_t>(linear.rows), 0.0f);
  for (const PeftModule &module : linear.modules) {
    if (module.slice < 0)
      continue;
    const SafeTensor *tensor = folder.take(module.name + kMagnitude);
    if (tensor == nullptr || tensor->shape != Shape{module.rows})
      return cannotConvert("the magnitudes of '{}' are {}; they need to be {}", module.name,
                           tensor ? shapeText(tensor->shape) : "missing",
                           shapeText(Shape{module.rows}));
    std::vector<float> values = floatsOf(folder.tensors(), *tensor);
    for (const HfSegment &segment : module.segments)
      for (int64_t i = 0; i < segment.rows; ++i)
        factors.magnitudes[static_cast<size_t>(segment.row + i)] =
            values[static_cast<size_t>(segment.hfRow + i * segment.step)];
  }
  return Status::ok();
}

Status fillFactors(PeftFolder &folder, const PeftLinear &linear, const PeftSettings &settings,
                   Factors &factors) {
  int64_t rank = settings.rank, columns = 0, slices = 0;
  for (const PeftModule &module : linear.modules)
    slices += module.slice >= 0 ? 1 : 0;
  for (const PeftModule &module : linear.modules) {
    if (module.slice < 0)
      continue;
    const SafeTensor *a = folder.take(module.name + ".lora_A.weight"),
                     *b = folder.take(module.name + ".lora_B.weight");
    if (b == nullptr || a->shape.size() != 2 || b->shape != Shape{module.rows, a->shape[0]} ||
        (columns != 0 && columns != a->shape[1]))
      return cannotConvert("the factors of '{}' are {} and {}; the second one needs {} rows",
                           module.name, shapeText(a->shape), b ? shapeText(b->shape) : "missing",
                           module.rows);
    if (columns == 0) {
      columns = a->shape[1];
      factors.aShape = {slices * rank, columns}, factors.bShape = {linear.rows, rank};
      factors.a.assign(static_cast<size_t>(slices * rank * columns), 0.0f);
      factors.b.assign(static_cast<size_t>(linear.rows * rank), 0.0f);
    }
    int64_t own = a->shape[0];
    auto ratio = static_cast<float>(folder.scaleOf(module.name) / settings.scale());
    std::vector<float> ofA = floatsOf(folder.tensors(), *a), ofB = floatsOf(folder.tensors(), *b);
    std::copy(ofA.begin(), ofA.end(), factors.a.begin() + module.slice * rank * columns);
    for (const HfSegment &segment : module.segments)
      for (int64_t i = 0; i < segment.rows; ++i)
        for (int64_t j = 0; j < own; ++j)
          factors.b[static_cast<size_t>((segment.row + i) * rank + j)] =
              ratio * ofB[static_cast<size_t>((segment.hfRow + i * segment.step) * own + j)];
  }
  return Status::ok();
}

/// A job that writes a parameter whose values are in memory.
ConvertJob jobOf(std::string name, Shape shape, std::vector<float> values) {
  int64_t row = shape.size() > 1 ? shape[1] : 1;
  ConvertJob job{std::move(name), Element::F32, std::move(shape), {}, {}};
  job.read = [values = std::move(values), row](const Box &box, void *dst) {
    std::copy_n(values.begin() + box.offset[0] * row, box.shape[0] * row,
                static_cast<float *>(dst));
    return Status::ok();
  };
  job.write = [](RankWriter &writer, const TensorSlice &slice) {
    std::vector<TensorSlice> slices;
    RETURN_IF_ERROR(addParamSlices(slice, ParamPart::Weight, /*isGated=*/false, slices));
    for (const TensorSlice &each : slices)
      RETURN_IF_ERROR(writer.add(each));
    return Status::ok();
  };
  return job;
}

} // namespace

Status importPeft(const std::string &in, const SaveTarget &out, const PeftOptions &options,
                  PeftSettings &settings) {
  ASSIGN_OR_RETURN(PeftFolder folder, PeftFolder::open(in));
  ASSIGN_OR_RETURN(HfConfig config, configOf(nullptr, options.configFolder));
  std::vector<HfParam> params = hfParams(config);
  std::vector<PeftLinear> linears =
      peftLinears(params, [&](const std::string &module) { return folder.rowsOf(module); });
  settings.scheme = folder.isDora() ? "dora" : "lora", settings.isRslora = folder.isRslora();
  settings.dropout = folder.dropout();
  std::set<std::string> targets;
  for (const PeftLinear &linear : linears)
    for (const PeftModule &module : linear.modules)
      if (module.slice >= 0) {
        if (int64_t rank = folder.rankOf(module.name); rank > settings.rank)
          settings.rank = rank, settings.alpha = folder.alphaOf(module.name);
        targets.insert(lastWordOf(module.name));
      }
  if (linears.empty())
    return cannotConvert("'{}' has no adapters for layers of the model in '{}'", in,
                         options.configFolder);
  settings.targets.assign(targets.begin(), targets.end());
  std::vector<ConvertJob> jobs;
  for (const PeftLinear &linear : linears) {
    Factors factors;
    RETURN_IF_ERROR(fillFactors(folder, linear, settings, factors));
    jobs.push_back(jobOf(linear.aName, factors.aShape, std::move(factors.a)));
    jobs.push_back(jobOf(linear.bName, factors.bShape, std::move(factors.b)));
    if (!settings.isDora())
      continue;
    RETURN_IF_ERROR(fillMagnitudes(folder, linear, factors));
    jobs.push_back(jobOf(linear.magnitudeName, {linear.rows}, std::move(factors.magnitudes)));
  }
  for (const HfParam &param : params)
    if (param.segments.size() == 1 && !param.isTransposed)
      if (const SafeTensor *tensor = folder.take(param.segments[0].hf)) {
        settings.modulesToSave.push_back(lastWordOf(moduleOf(param.segments[0].hf)));
        jobs.push_back(jobOf(param.name, tensor->shape, floatsOf(folder.tensors(), *tensor)));
      }
  RETURN_IF_ERROR(folder.finish());
  std::vector<HfModelFile> files;
  ASSIGN_OR_RETURN(files, hfFilesIn(options.configFolder));
  constexpr int64_t kPieceBytes = int64_t{64} << 20;
  return runJobs(out, std::move(jobs), kPieceBytes, options.progress, {}, [&](RankWriter &writer) {
    RunState state;
    ASSIGN_OR_RETURN(state.args, hfArguments(config, config.biases));
    for (const BytesItem &item : runStateItems(state))
      RETURN_IF_ERROR(writer.add(item));
    RETURN_IF_ERROR(addHfFiles(files, out));
    RETURN_IF_ERROR(addFile(out, kRunConfigFile, peftSettingsText(settings)));
    ASSIGN_OR_RETURN(std::string trainState, trainStateFile(state));
    return addFile(out, "train_state.pt", trainState);
  });
}

namespace {

/// The factors of a layer, and for each of its rows the slice of A that it uses.
struct Delta {
  int64_t rank = 0, columns = 0;
  double scale = 1;
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
        rows[c] += static_cast<float>(scale) * sum[static_cast<size_t>(c)];
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

Result<Delta> deltaOf(const SavedParams &adapters, const PeftLinear &linear,
                      const PeftSettings &settings) {
  Delta delta{linear.bShape[1], linear.aShape[1], settings.scale(), {}, {}, {}, {}};
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

} // namespace

Status mergePeft(const std::string &in, const std::string &baseFolder, const SaveTarget &out,
                 const MergeOptions &options, const ConvertRank &rank) {
  ASSIGN_OR_RETURN(SavedParams adapters, SavedParams::open(in, options.peft.emit));
  ASSIGN_OR_RETURN(PeftSettings settings, readPeftSettings(adapters.reader()));
  ASSIGN_OR_RETURN(HfConfig config, configOf(&adapters.reader(), options.peft.configFolder));
  ASSIGN_OR_RETURN(ModelWeights base, ModelWeights::open(baseFolder, options.peft.emit));
  RETURN_IF_ERROR(warnOfOtherBase(adapters.reader(), base, options.peft.emit));
  std::vector<HfParam> params = hfParams(config);
  ASSIGN_OR_RETURN(std::vector<PeftLinear> linears,
                   peftLinears(adapters, settings, config, params, options.peft.partsOf));
  std::map<std::string, const PeftLinear *> linearOf;
  for (const PeftLinear &linear : linears)
    linearOf[linear.name] = &linear;
  bool isGated = hfOption(config.arch, "gated_linear_unit") == true;
  std::vector<ConvertJob> jobs;
  for (const std::string &name : base.names()) {
    std::optional<Shape> shape = base.shapeOf(name);
    Element type = options.weightType.value_or(base.typeOf(name).value_or(Element::F32));
    ConvertJob job{name, type, *shape, {}, {}};
    bool isTrained = adapters.shapeOf(name).has_value();
    auto found = linearOf.find(name);
    if (found != linearOf.end() && *shape != Shape{found->second->rows, found->second->aShape[1]})
      return cannotConvert("'{}' is {} in '{}'; its adapter is for {}", name, shapeText(*shape),
                           baseFolder,
                           shapeText(Shape{found->second->rows, found->second->aShape[1]}));
    const PeftLinear *linear = found == linearOf.end() ? nullptr : found->second;
    if (linear != nullptr)
      linearOf.erase(found);
    job.read = [&, name, type, linear, isTrained](const Box &box, void *dst) -> Status {
      std::vector<float> rows(static_cast<size_t>(elementCount(box.shape).value_or(0)));
      RETURN_IF_ERROR(isTrained ? adapters.read(name, box, Element::F32, rows.data())
                                : base.read(name, box, Element::F32, rows.data()));
      if (linear != nullptr) {
        ASSIGN_OR_RETURN(Delta delta, deltaOf(adapters, *linear, settings));
        delta.addTo(rows.data(), box.offset[0], box.shape[0]);
      }
      convertElements(Element::F32, reinterpret_cast<const uint8_t *>(rows.data()), type,
                      static_cast<uint8_t *>(dst), static_cast<int64_t>(rows.size()));
      return Status::ok();
    };
    job.write = [isGated](RankWriter &writer, const TensorSlice &slice) {
      std::vector<TensorSlice> slices;
      RETURN_IF_ERROR(addParamSlices(slice, ParamPart::Weight, isGated, slices));
      for (const TensorSlice &each : slices)
        RETURN_IF_ERROR(writer.add(each));
      return Status::ok();
    };
    jobs.push_back(std::move(job));
  }
  if (!linearOf.empty())
    return cannotConvert("'{}' has no weight '{}', for which there is an adapter", baseFolder,
                         linearOf.begin()->first);
  ASSIGN_OR_RETURN(std::vector<HfModelFile> files, base.modelFiles());
  constexpr int64_t kPieceBytes = int64_t{64} << 20;
  return runJobs(out, std::move(jobs), kPieceBytes, options.peft.progress, rank,
                 [&](RankWriter &writer) {
                   RunState state;
                   ASSIGN_OR_RETURN(state.args, hfArguments(config, config.biases));
                   for (const BytesItem &item : runStateItems(state))
                     RETURN_IF_ERROR(writer.add(item));
                   RETURN_IF_ERROR(addHfFiles(files, out));
                   ASSIGN_OR_RETURN(std::string trainState, trainStateFile(state));
                   return addFile(out, "train_state.pt", trainState);
                 });
}

} // namespace shardc::checkpoint
