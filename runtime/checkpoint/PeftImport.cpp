// Reads a folder of PEFT into a checkpoint of adapters.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/PeftFolder.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RunOptions.h"

namespace shardc::checkpoint {
namespace {

/// The two factors of a layer, combined from those of the modules that it joins. Rows without an
/// adapter have a bias and a magnitude of 0, and merges skip them.
struct Factors {
  Shape aShape, bShape;
  std::vector<float> a, b, biases, magnitudes;
};

/// The rank that a layer needs: that of its largest adapter or, if one adapter covers several
/// modules, the sum of theirs, whose factors then are blocks of it.
int64_t rankOf(const PeftLinear &linear) {
  int64_t rank = 0;
  for (const PeftModule &module : linear.modules)
    if (module.slice >= 0)
      rank = linear.isOfExperts() ? rank + module.rank : std::max(rank, module.rank);
  return rank;
}

/// Takes the largest rank that a layer needs, and gives each adapter the alpha with which its scale
/// stays the same. The experts of a layer have one alpha; `settings` gets that of the largest rank.
void chooseRank(std::vector<PeftLinear> &linears, PeftSettings &settings) {
  const PeftLinear *largest = nullptr;
  for (const PeftLinear &linear : linears)
    if (int64_t rank = rankOf(linear); rank > settings.rank)
      settings.rank = rank, largest = &linear;
  std::map<std::pair<int64_t, std::string>, double> ofExperts;
  for (PeftLinear &linear : linears)
    for (PeftModule &module : linear.modules) {
      if (module.slice < 0)
        continue;
      auto growth = static_cast<double>(settings.rank) / static_cast<double>(module.rank);
      module.alpha *= (settings.isRslora ? std::sqrt(growth) : growth);
      if (linear.isOfExperts())
        module.alpha =
            ofExperts.emplace(std::pair(linear.layer, linear.stem), module.alpha).first->second;
      if (&linear == largest && settings.alpha == 0)
        settings.alpha = module.alpha;
    }
}

/// `scaled` receives modules whose B was multiplied.
Result<Factors> factorsOf(PeftFolder &folder, const PeftLinear &linear,
                          const PeftSettings &settings, std::set<std::string> &scaled) {
  constexpr double kSame = 1e-6;
  Factors factors;
  const int64_t rank = settings.rank;
  int64_t columns = 0, slices = 0, block = 0;
  for (const PeftModule &module : linear.modules)
    slices += module.slice >= 0 ? 1 : 0;
  if (linear.isOfExperts())
    slices = 1;
  for (const PeftModule &module : linear.modules) {
    if (module.slice < 0)
      continue;
    ASSIGN_OR_RETURN(PeftFactors own, folder.factorsOf(module));
    if (columns != 0 && columns != own.columns)
      return cannotConvert("the first factor of '{}' has {} columns; those of the other modules of "
                           "its layer have {}",
                           module.name, own.columns, columns);
    if (columns == 0) {
      columns = own.columns;
      factors.aShape = {slices * rank, columns}, factors.bShape = {linear.rows, rank};
      factors.a.assign(static_cast<size_t>(slices * rank * columns), 0.0f);
      factors.b.assign(static_cast<size_t>(linear.rows * rank), 0.0f);
      factors.biases.assign(folder.hasBiases() ? static_cast<size_t>(linear.rows) : 0, 0.0f);
      factors.magnitudes.assign(folder.isDora() ? static_cast<size_t>(linear.rows) : 0, 0.0f);
    }
    const double ratio = own.scale / settings.scaleOf(module.alpha);
    if (std::abs(ratio - 1) > kSame)
      scaled.insert(module.name);
    std::ranges::copy(own.a, factors.a.begin() +
                                 (linear.isOfExperts() ? block : module.slice * rank) * columns);
    for (const HfSegment &segment : module.segments)
      for (int64_t i = 0; i < segment.rows; ++i) {
        const auto row = static_cast<size_t>(segment.row + i),
                   from = static_cast<size_t>(segment.hfRow + i * segment.step);
        for (int64_t j = 0; j < own.rank; ++j)
          factors.b[row * static_cast<size_t>(rank) + static_cast<size_t>(block + j)] =
              static_cast<float>(ratio) *
              own.b[from * static_cast<size_t>(own.rank) + static_cast<size_t>(j)];
        if (!own.bias.empty())
          factors.biases[row] = static_cast<float>(ratio) * own.bias[from];
        if (!own.magnitudes.empty())
          factors.magnitudes[row] = own.magnitudes[from];
      }
    block += linear.isOfExperts() ? own.rank : 0;
  }
  return factors;
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
  return job;
}

/// The embedding and the output layer as an import writes them; empty ones stay those of the base.
struct Tables {
  std::vector<float> embedding, output;
  bool hasTokens = false; ///< only rows of some tokens were trained

  /// Both tables by the parameter's name.
  std::array<std::pair<const char *, std::vector<float> *>, 2> all() {
    return {{{kEmbeddingTable, &embedding}, {kOutputLayer, &output}}};
  }
};

/// Opens the weights of the base when they are first needed.
using OpenBase = std::function<Result<const HfWeights *>()>;

/// Takes the tables that the folder trains. If PEFT trains one matrix of a tied model and does not
/// keep the model tied, the model has two matrices, and the other one is the base's.
Result<Tables> takeTables(PeftFolder &folder, const std::string &in, const PeftOptions &options,
                          const OpenBase &openBase, HfConfig &config) {
  Tables tables;
  const Shape shape = {config.vocab, config.hidden};
  auto ofBase = [&](const char *name) -> Result<std::vector<float>> {
    ASSIGN_OR_RETURN(const HfWeights *weights, openBase());
    return readAll(*weights, std::string(weights->tensorOf(name)), shape);
  };
  bool isWhole = false;
  for (auto [name, values] : tables.all()) {
    std::string module(hfTensors(config.arch, moduleOf(name)).front());
    if (const SafeTensor *tensor = folder.take(module + ".weight")) {
      if (tensor->shape != shape)
        return cannotConvert("'{}' is {}; by the base's config.json it needs to be {}; save the "
                             "base with its new vocabulary first",
                             tensor->name, shapeText(tensor->shape), shapeText(shape));
      ASSIGN_OR_RETURN(*values, folder.numbersOf(*tensor));
      if (!folder.saves(module) && folder.tokensOf(module).empty()) { // PEFT does not train it
        Result<std::vector<float>> own = ofBase(name); // the folder may have only config.json
        if (own.isOk() && *values == *own) {
          values->clear();
          continue;
        }
        options.emit(makeReport(report::AdapterOnlyStored, in, lastWordOf(module)));
      }
      isWhole = true;
    } else if (const SafeTensor *rows = folder.take(module + kPeftTokens)) {
      std::vector<int64_t> tokens = folder.tokensOf(module);
      if (rows->shape != Shape{std::ssize(tokens), config.hidden} ||
          !std::ranges::all_of(tokens, [&](int64_t t) { return t >= 0 && t < config.vocab; }))
        return cannotConvert("'{}' is {}; 'trainable_token_indices' has {} of {} tokens",
                             rows->name, shapeText(rows->shape), tokens.size(), config.vocab);
      ASSIGN_OR_RETURN(std::vector<float> numbers, folder.numbersOf(*rows));
      ASSIGN_OR_RETURN(*values, ofBase(name));
      for (size_t i = 0; i < tokens.size(); ++i)
        std::copy_n(numbers.begin() + static_cast<int64_t>(i) * config.hidden, config.hidden,
                    values->begin() + tokens[i] * config.hidden);
      tables.hasTokens = true;
    }
  }
  const bool hasEmbedding = !tables.embedding.empty(), hasOutput = !tables.output.empty();
  // PEFT ties no modules of GPT-2, whatever is asked for.
  const bool ensuresTying = folder.ensuresTying() && config.arch != HfArch::Gpt2;
  bool staysTied = hasEmbedding && hasOutput ? tables.embedding == tables.output
                                             : !hasOutput && (!isWhole || ensuresTying);
  if (!config.isTied || (!hasEmbedding && !hasOutput))
    return tables;
  if (staysTied) {
    tables.output.clear();
    return tables;
  }
  if (isAlwaysTied(config.arch))
    return cannotConvert(
        "'{}' makes two matrices of the tied embedding and output layer; models "
        "of type '{}' have one{}",
        in, infoOf(config.arch).modelType,
        config.arch == HfArch::Gpt2 ? "" : "; PEFT keeps one with 'ensure_weight_tying'");
  config.isTied = false; // a matrix that is not trained stays the base's
  options.emit(makeReport(report::HfUntied, options.configFolder));
  return tables;
}

/// The values of a parameter that the folder trains whole, such as a norm, or gate and up together;
/// nothing if the folder lacks one of its parts.
Result<std::vector<float>> wholeOf(PeftFolder &folder, const HfParam &param, Shape &shape) {
  std::vector<float> values;
  if (!std::ranges::all_of(param.segments, [&](const HfSegment &part) {
        return part.slab < 0 && folder.has(part.hf);
      }))
    return values;
  int64_t row = 1;
  for (const HfSegment &part : param.segments) {
    const SafeTensor *tensor = folder.take(part.hf);
    ASSIGN_OR_RETURN(std::vector<float> own, folder.numbersOf(*tensor));
    const int64_t from = tensor->shape.empty() ? 0 : tensor->shape[0];
    const int64_t rows = part.rows < 0 ? from : part.rows;
    if (shape.empty())
      shape = tensor->shape, row = from > 0 ? std::ssize(own) / from : 0, shape[0] = 0;
    if (from == 0 || from * row != std::ssize(own) || part.hfRow + (rows - 1) * part.step >= from)
      return cannotConvert("'{}' is {}, which does not fit into '{}' of the model", tensor->name,
                           shapeText(tensor->shape), param.name);
    shape[0] = std::max(shape[0], part.row + rows);
    values.resize(static_cast<size_t>(std::max(std::ssize(values), shape[0] * row)));
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(own.begin() + (part.hfRow + i * part.step) * row, row,
                  values.begin() + (part.row + i) * row);
  }
  return values;
}

/// The weight of a parameter that no recipe gives adapters, such as a router's, with the adapters
/// of all of its modules added to the base's; nothing if the folder has none for one of them.
/// `folded` receives the modules.
Result<std::vector<float>> foldedOf(PeftFolder &folder, const HfParam &param,
                                    const OpenBase &openBase, Shape &shape,
                                    std::set<std::string> &folded) {
  std::vector<PeftModule> modules;
  for (const HfSegment &part : param.segments) {
    modules.push_back({moduleOf(part.hf), {part}});
    const bool isPlain = part.slab < 0 && part.hf.ends_with(".weight") && !param.isTransposed &&
                         !folder.isDora() && !folder.hasBiases();
    if (!isPlain || (modules.back().rows = folder.lookUp(modules.back())) == 0)
      return std::vector<float>();
  }
  Result<const HfWeights *> opened = openBase();
  if (!opened.isOk())
    return cannotConvert("'{}' has an adapter, and recipes have none for it; it would be added to "
                         "the base's weights, which are not read: {}",
                         modules[0].name, opened.status().message());
  shape = (*opened)->shapeOf(param.name, ParamPart::Weight).value_or(Shape{});
  if (shape.size() != 2)
    return std::vector<float>();
  ASSIGN_OR_RETURN(std::vector<float> values, readAll(**opened, param.name, shape));
  for (const PeftModule &module : modules) {
    ASSIGN_OR_RETURN(PeftFactors own, folder.factorsOf(module));
    const HfSegment &part = module.segments[0];
    const int64_t rows = part.rows < 0 ? shape[0] : part.rows;
    if (own.columns != shape[1] || part.hfRow + (rows - 1) * part.step >= own.rows)
      return cannotConvert("the factors of '{}' are for {} x {}; the base's '{}' is {}",
                           module.name, own.rows, own.columns, param.name, shapeText(shape));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < own.rank; ++j) {
        const double factor =
            own.scale * own.b[static_cast<size_t>((part.hfRow + i * part.step) * own.rank + j)];
        for (int64_t c = 0; c < own.columns; ++c)
          values[static_cast<size_t>((part.row + i) * own.columns + c)] +=
              static_cast<float>(factor * own.a[static_cast<size_t>(j * own.columns + c)]);
      }
    folded.insert(module.name);
  }
  return values;
}

using SaveParam =
    std::function<void(const std::string &name, const Shape &shape, std::vector<float> values)>;

/// Gives `save` the parameters that the folder trains whole, and those of `folded` modules, which
/// have what else belongs to a module, since PEFT saves all of it.
Status takeWhole(PeftFolder &folder, const std::vector<HfParam> &params,
                 const std::vector<PeftLinear> &linears, const OpenBase &openBase,
                 std::set<std::string> &folded, const SaveParam &save) {
  for (const HfParam &param : params) {
    if (param.isTransposed || param.isVocab)
      continue;
    Shape shape;
    ASSIGN_OR_RETURN(std::vector<float> values, wholeOf(folder, param, shape));
    const std::string &first = param.segments[0].hf;
    if (param.isFilter && shape.size() == 3 && shape[1] == 1)
      shape.erase(shape.begin() + 1);
    if (values.empty() &&
        std::ranges::find(linears, param.name, &PeftLinear::name) == linears.end()) {
      ASSIGN_OR_RETURN(values, foldedOf(folder, param, openBase, shape, folded));
    }
    if (values.empty() && folded.contains(first.substr(0, first.rfind('.')))) {
      ASSIGN_OR_RETURN(const HfWeights *weights, openBase());
      shape = weights->shapeOf(param.name, ParamPart::Weight).value_or(Shape{0});
      ASSIGN_OR_RETURN(values, readAll(*weights, param.name, shape));
    }
    if (!values.empty())
      save(param.name, shape, std::move(values));
  }
  return Status::ok();
}

} // namespace

Status importPeft(const std::string &in, const SaveTarget &out, const PeftOptions &options,
                  PeftSettings &settings) {
  ASSIGN_OR_RETURN(HfConfig config, configOf(nullptr, options.configFolder));
  const bool wasTied = config.isTied;
  ASSIGN_OR_RETURN(PeftFolder folder, PeftFolder::open(in, config, options.emit));
  std::unique_ptr<HfWeights> base;
  const OpenBase openBase = [&]() -> Result<const HfWeights *> {
    if (!base) {
      ASSIGN_OR_RETURN(base, HfWeights::open(options.configFolder, {}, {}));
    }
    return base.get();
  };
  ASSIGN_OR_RETURN(Tables tables, takeTables(folder, in, options, openBase, config));
  std::vector<HfParam> params = hfParams(config);
  std::vector<PeftLinear> linears =
      peftLinears(config, params, [&](PeftModule &module) { return folder.lookUp(module); });
  settings.base = folder.base();
  settings.scheme = folder.isDora() ? "dora" : "lora", settings.isRslora = folder.isRslora();
  settings.hasBiases = folder.hasBiases();
  settings.dropout = folder.dropout();
  chooseRank(linears, settings);
  if (linears.empty())
    return cannotConvert("'{}' has no adapters for layers of the model in '{}'", in,
                         options.configFolder);
  std::vector<ConvertJob> jobs;
  std::set<std::string> scaled;
  std::vector<std::string> saved;
  for (const PeftLinear &linear : linears) {
    ASSIGN_OR_RETURN(Factors factors, factorsOf(folder, linear, settings, scaled));
    jobs.push_back(jobOf(linear.aName, factors.aShape, std::move(factors.a)));
    jobs.push_back(jobOf(linear.bName, factors.bShape, std::move(factors.b)));
    if (settings.isDora())
      jobs.push_back(jobOf(linear.magnitudeName, {linear.rows}, std::move(factors.magnitudes)));
    if (folder.hasBiases())
      jobs.push_back(jobOf(linear.biasName, {linear.rows}, std::move(factors.biases)));
  }
  const SaveParam save = [&](const std::string &name, const Shape &shape,
                             std::vector<float> values) {
    saved.push_back(name);
    jobs.push_back(jobOf(name, shape, std::move(values)));
  };
  for (auto [name, values] : tables.all())
    if (!values->empty())
      save(name, {config.vocab, config.hidden}, std::move(*values));
  std::set<std::string> folded;
  RETURN_IF_ERROR(takeWhole(folder, params, linears, openBase, folded, save));
  RETURN_IF_ERROR(folder.finish());
  options.names(config, params, linears, saved, settings);
  if (tables.hasTokens)
    options.emit(makeReport(report::AdapterNotInRecipe, in, listed(saved)));
  if (!folded.empty())
    options.emit(makeReport(report::AdapterFolded, in, listed({folded.begin(), folded.end()})));
  if (!scaled.empty())
    options.emit(makeReport(report::AdapterScales, in, listed({scaled.begin(), scaled.end()})));
  std::vector<HfModelFile> files;
  ASSIGN_OR_RETURN(files, hfFilesIn(options.configFolder));
  settings.isUntied = wasTied && !config.isTied;
  if (settings.isUntied)
    untie(files);
  constexpr int64_t kPieceBytes = int64_t{64} << 20;
  return runJobs(out, std::move(jobs), kPieceBytes, options.progress, {}, [&](RankWriter &writer) {
    ASSIGN_OR_RETURN(PlainEntries args, hfArguments(config, config.biases));
    RETURN_IF_ERROR(addModel(writer, out, std::move(args), files));
    return addFile(out, kRunConfigFile, peftSettingsText(settings));
  });
}

} // namespace shardc::checkpoint
