#include "runtime/checkpoint/HfConvert.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <unordered_map>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfDerive.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/HfNf4.h"
#include "runtime/checkpoint/HfSource.h"
#include "runtime/checkpoint/NotFinite.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/RunOptions.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {

namespace {

constexpr int64_t kStepBytes = int64_t{64} << 20;

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

bool hasAll(const HfSource &source, const std::vector<HfSegment> &segments) {
  return !segments.empty() &&
         std::ranges::all_of(segments, [&](const HfSegment &s) { return source.has(s.hf); });
}

/// Computes a parameter's rows and columns from its segments. Segments with -1 rows get the number
/// of rows of their tensor.
Status resolve(const HfSource &source, const HfParam &param, std::vector<HfSegment> &segments,
               int64_t &rows, int64_t &columns) {
  rows = 0;
  columns = -1;
  for (HfSegment &segment : segments) {
    ASSIGN_OR_RETURN(HfRows from, source.rowsOf(segment.hf, param.isTransposed, segment.slab));
    if (segment.rows < 0)
      segment.rows = from.rows;
    if (segment.hfRow > from.rows - 1 - (segment.rows - 1) * segment.step ||
        (columns >= 0 && columns != from.columns))
      return cannotConvert("'{}' is {} x {}, which does not give rows {} to {} of '{}'", segment.hf,
                           from.rows, from.columns, segment.row, segment.row + segment.rows,
                           param.name);
    columns = from.columns;
    rows = std::max(rows, segment.row + segment.rows);
  }
  return Status::ok();
}

/// Counts the rows of the hub's tensors that parameters use. All rows must be used, since wrong
/// sizes in config.json would silently truncate weights.
class TakenRows {
public:
  void add(const HfParam &param, const std::vector<HfSegment> &segments) {
    for (const HfSegment &segment : segments) {
      Taken &taken = tensors_[segment.hf][segment.slab];
      taken.isTransposed = param.isTransposed;
      taken.isWhole = segment.rows < 0;
      taken.rows += segment.rows;
    }
  }

  Status check(const HfSource &source) const {
    for (const auto &[name, slabs] : tensors_)
      for (const auto &[slab, taken] : slabs) {
        ASSIGN_OR_RETURN(HfRows found, source.rowsOf(name, taken.isTransposed, slab));
        if (!taken.isWhole && taken.rows != found.rows)
          return cannotConvert("'{}' is {} x {}; the sizes in config.json need {} x {}", name,
                               found.rows, found.columns, taken.rows, found.columns);
        if (slab >= 0 && found.slabs != static_cast<int64_t>(slabs.size()))
          return cannotConvert("'{}' is of {} experts; the sizes in config.json need {}", name,
                               found.slabs, slabs.size());
      }
    return Status::ok();
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto &[name, slabs] : tensors_)
      names.insert(name);
    return names;
  }

private:
  struct Taken {
    int64_t rows = 0;
    bool isWhole = false, isTransposed = false;
  };
  std::map<std::string, std::map<int64_t, Taken>> tensors_; ///< by name of the tensor, then by slab
};

/// Reads rows of a parameter from its segments; padding rows are zero.
Status readParam(const HfSource &source, const HfParam &param,
                 const std::vector<HfSegment> &segments, int64_t columns, const Box &box,
                 Element type, uint8_t *dst) {
  int64_t first = box.offset[0], end = first + box.shape[0];
  int64_t rowBytes = columns * elementBits(type) / 8, there = 0;
  for (const HfSegment &segment : segments)
    there = std::max(there, segment.row + segment.rows);
  if (end > there) {
    there = std::max(first, there);
    std::fill_n(dst + (there - first) * rowBytes, (end - there) * rowBytes, uint8_t{0});
  }
  for (const HfSegment &segment : segments) {
    int64_t low = std::max(first, segment.row), high = std::min(end, segment.row + segment.rows);
    if (low < high)
      RETURN_IF_ERROR(source.readRows(segment, param.isTransposed, low - segment.row, high - low,
                                      type, dst + (low - first) * rowBytes));
  }
  return Status::ok();
}

/// A parameter, with the segments of the hub's tensors from which it is read.
struct FoundParam {
  HfParam param;
  std::vector<HfSegment> segments;
  Shape shape;
  int64_t columns = 0;

  Status read(const HfSource &source, const Box &box, Element type, uint8_t *dst) const {
    return readParam(source, param, segments, columns, box, type, dst);
  }
};

/// The parameter where the model stores it: in tensors of its own, or in those of all experts,
/// whose matrices some versions of the library transpose. Nothing if the model lacks it.
std::optional<HfParam> stored(const HfSource &source, HfParam param) {
  if (hasAll(source, param.segments))
    return param;
  if (!hasAll(source, param.stacked))
    return std::nullopt;
  param.segments = std::move(param.stacked);
  const HfSegment &first = param.segments.front();
  auto hasRows = [&](bool isTransposed) {
    Result<HfRows> rows = source.rowsOf(first.hf, isTransposed, first.slab);
    return rows.isOk() && rows->rows == first.rows;
  };
  param.isTransposed |= first.slab >= 0 && !hasRows(false) && hasRows(true);
  return param;
}

/// Ends of the names of parameters that have the hidden size: as rows, or as columns.
constexpr std::string_view kRowsOfHidden[] = {"input_layernorm.weight",
                                              "input_layernorm.bias",
                                              "pre_mlp_layernorm.weight",
                                              "pre_mlp_layernorm.bias",
                                              "post_self_attn_layernorm.weight",
                                              "post_mlp_layernorm.weight",
                                              "final_layernorm.weight",
                                              "final_layernorm.bias",
                                              "final_norm.weight",
                                              "qkv.layer_norm_weight",
                                              "qkv.layer_norm_bias",
                                              "fc1.layer_norm_weight",
                                              "fc1.layer_norm_bias",
                                              "in_proj.layer_norm_weight",
                                              "linear_proj.weight",
                                              "linear_fc2.weight",
                                              "out_proj.weight"};
constexpr std::string_view kColumnsOfHidden[] = {"word_embeddings.weight",
                                                 "output_layer.weight",
                                                 "linear_qkv.weight",
                                                 "linear_fc1.weight",
                                                 "router.weight",
                                                 "linear_q_proj.weight",
                                                 "linear_q_down_proj.weight",
                                                 "linear_kv_down_proj.weight"};

/// Refuses a parameter, shown as `shown`, of another hidden size than config.json's.
Status checkHidden(const HfConfig &config, const std::string &name, const Shape &shape,
                   const std::string &shown) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  const size_t rank = shape.size();
  const bool isOther =
      (rank > 0 && std::ranges::any_of(kRowsOfHidden, ends) &&
       shape[rank > 1 ? rank - 2 : 0] != config.hidden) ||
      (std::ranges::any_of(kColumnsOfHidden, ends) && (rank < 2 || shape.back() != config.hidden));
  return isOther ? cannotConvert("'{}' is {}; the hidden size in config.json is {}", shown,
                                 shapeText(shape), config.hidden)
                 : Status::ok();
}

Result<FoundParam> findParam(const HfSource &source, const HfConfig &config, const HfParam &param) {
  FoundParam found = {param, param.segments, {}, 0};
  int64_t rows = 0;
  RETURN_IF_ERROR(resolve(source, param, found.segments, rows, found.columns));
  const HfSegment &segment = found.segments[0];
  ASSIGN_OR_RETURN(HfRows first, source.rowsOf(segment.hf, param.isTransposed, segment.slab));
  if (param.isVocab && rows != config.vocab)
    return cannotConvert("'{}' has {} rows but the vocabulary {}", segment.hf, rows, config.vocab);
  found.shape = first.isVector ? Shape{rows} : Shape{rows, found.columns};
  RETURN_IF_ERROR(checkHidden(config, param.name, found.shape, segment.hf));
  return found;
}

ConvertJob importJob(const HfSource &source, const HfConfig &config, const FoundParam &found,
                     const HfImportOptions &options, NotFinite &bad) {
  Shape shape = found.shape;
  if (found.param.isVocab)
    shape[0] = roundUp(shape[0], options.vocabDivisor);
  bool isBuffer = found.param.name.ends_with(".expert_bias"); // stays fp32
  Element type = isBuffer ? Element::F32 : options.weightType;
  ConvertJob job{found.param.name, type, shape, {}, {}};
  job.read = [&source, &bad, found, type](const Box &box, void *dst) {
    RETURN_IF_ERROR(found.read(source, box, type, static_cast<uint8_t *>(dst)));
    bad.look(found.param.name, type, dst, elementCount(box.shape).value_or(0));
    return Status::ok();
  };
  job.isGated = hfOption(config.arch, "gated_linear_unit") == true;
  return job;
}

/// A tensor to export: which rows of which parameters it consists of.
struct HfTarget {
  Shape shape;
  bool isTransposed = false, isFilter = false;
  struct Part {
    std::string name;
    int64_t row, hfRow, rows, slab, step;

    int64_t end() const { return hfRow + (rows - 1) * step + 1; }
  };
  std::vector<Part> parts;
  int64_t rows = 0, columns = 1; ///< of each slab
  int64_t slabs = 0;             ///< 0: the tensor has no slabs

  /// Computes the tensor's shape from the parts; before, `shape` is that of a parameter.
  void finish();
};

void HfTarget::finish() {
  std::ranges::sort(parts, {}, [](const Part &part) { return std::pair(part.slab, part.hfRow); });
  bool isVector = shape.size() == 1;
  columns = isVector ? 1 : shape[1];
  for (const Part &part : parts) {
    rows = std::max(rows, part.end());
    slabs = std::max(slabs, part.slab + 1);
  }
  shape[0] = rows;
  if (isTransposed && !isVector)
    std::swap(shape[0], shape[1]);
  if (isFilter)
    shape.insert(shape.begin() + 1, 1);
  if (slabs > 0)
    shape.insert(shape.begin(), slabs);
}

/// The box of some rows of a part.
Box rowsOf(const HfTarget &target, const HfTarget::Part &part) {
  bool isVector = std::ssize(target.shape) == (target.slabs > 0 ? 2 : 1);
  return isVector ? Box{{part.row}, {part.rows}} : Box{{part.row, 0}, {part.rows, target.columns}};
}

/// Writes the slabs of a tensor, or a tensor that is transposed. One whole slab is in memory at a
/// time.
Status writeSlabs(const ParamSource &source, const HfTarget &target, Element type, ByteSink &sink) {
  int64_t columns = target.columns, rowBytes = columns * elementBits(type) / 8;
  std::vector<uint8_t> straight(static_cast<size_t>(target.rows * rowBytes)), transposed, taken;
  for (int64_t slab = 0; slab < std::max<int64_t>(target.slabs, 1); ++slab) {
    for (const HfTarget::Part &part : target.parts) {
      if (std::max<int64_t>(part.slab, 0) != slab)
        continue;
      taken.resize(static_cast<size_t>(part.rows * rowBytes));
      RETURN_IF_ERROR(source.read(part.name, rowsOf(target, part), type, taken.data()));
      for (int64_t row = 0; row < part.rows; ++row)
        std::copy_n(taken.data() + row * rowBytes, rowBytes,
                    straight.data() + (part.hfRow + row * part.step) * rowBytes);
    }
    if (target.isTransposed) {
      transposed.resize(straight.size());
      const int64_t extents[] = {columns, target.rows}, from[] = {1, columns},
                    to[] = {target.rows, 1};
      copyBox(extents, {type, from}, straight.data(), {type, to}, transposed.data());
    }
    const std::vector<uint8_t> &made = target.isTransposed ? transposed : straight;
    RETURN_IF_ERROR(sink.write(made.data(), made.size()));
  }
  return Status::ok();
}

Status writeTarget(const ParamSource &source, const HfTarget &target, Element type,
                   ByteSink &sink) {
  std::vector<uint8_t> buffer;
  if (target.parts.empty()) {
    buffer.resize(static_cast<size_t>(tensorBytes(type, target.shape).value_or(0)));
    return sink.write(buffer.data(), buffer.size());
  }
  if (target.slabs > 0 || target.isTransposed)
    return writeSlabs(source, target, type, sink);
  for (const HfTarget::Part &part : target.parts)
    RETURN_IF_ERROR(forEachPiece(rowsOf(target, part), type, kStepBytes, [&](const Box &rows) {
      buffer.resize(static_cast<size_t>(tensorBytes(type, rows.shape).value_or(0)));
      RETURN_IF_ERROR(source.read(part.name, rows, type, buffer.data()));
      return sink.write(buffer.data(), buffer.size());
    }));
  return Status::ok();
}

using HfTargets = std::unordered_map<std::string, HfTarget>;

/// Checks that the sizes cover all rows of a parameter, except the padding of vocabularies.
Status checkRows(const HfConfig &config, const HfParam &param, const Shape &shape) {
  int64_t needed = 0;
  for (const HfSegment &segment : param.segments)
    needed = segment.rows < 0 ? shape[0] : std::max(needed, segment.row + segment.rows);
  if (param.isVocab)
    needed = std::max(config.vocab, shape[0]);
  RETURN_IF_ERROR(checkHidden(config, param.name, shape, param.name));
  Shape want = shape;
  want[0] = needed;
  return shape[0] == needed ? Status::ok()
                            : cannotConvert("'{}' is {}; the sizes in config.json need {}",
                                            param.name, shapeText(shape), shapeText(want));
}

void addTargets(const HfConfig &config, const HfParam &param, const Shape &shape,
                std::vector<std::string> &order, HfTargets &targets) {
  for (const HfSegment &segment : param.segments) {
    int64_t rows = segment.rows >= 0 ? segment.rows : param.isVocab ? config.vocab : shape[0];
    auto [found, isNew] = targets.try_emplace(segment.hf);
    if (isNew)
      order.push_back(segment.hf);
    HfTarget &target = found->second;
    target.isTransposed = param.isTransposed, target.isFilter = param.isFilter;
    target.shape = shape;
    target.parts.push_back(
        {param.name, segment.row, segment.hfRow, rows, segment.slab, segment.step});
  }
}

/// Parameters of the checkpoint that the model lacks.
std::vector<std::string> withoutPlace(const ParamSource &source,
                                      const std::vector<HfParam> &params) {
  std::set<std::string> known;
  for (const HfParam &param : params)
    known.insert({param.name, localName(param.name)});
  std::vector<std::string> names = source.names();
  std::erase_if(names, [&](const std::string &name) { return known.contains(name); });
  return names;
}

/// Collects the hub's tensors, in the order in which parameters name them.
Status collectTargets(const ParamSource &source, const HfConfig &config,
                      std::vector<std::string> &order, HfTargets &targets) {
  std::vector<std::string> missing;
  std::vector<HfParam> params = hfParams(config);
  dropAbsentPredictors(
      params, [&](const HfParam &param) { return source.shapeOf(param.name).has_value(); });
  for (const HfParam &param : params) {
    std::optional<Shape> shape = source.shapeOf(param.name);
    if (!shape && !param.isOptional)
      missing.push_back(param.name);
    if (!shape && !param.zeros.empty()) {
      order.push_back(param.segments[0].hf);
      targets[order.back()].shape = Shape(param.zeros.begin(), param.zeros.end());
    }
    if (!shape || shape->empty())
      continue;
    RETURN_IF_ERROR(checkRows(config, param, *shape));
    addTargets(config, param, *shape, order, targets);
  }
  if (!missing.empty())
    return makeStatus(report::TensorsMissing,
                      "the checkpoint '{}' does not contain {} parameters of the model:{}",
                      source.reader().folder(), missing.size(), listed(missing));
  if (std::vector<std::string> left = withoutPlace(source, params); !left.empty())
    return cannotConvert(
        "the model of config.json has no place for {} parameters of the checkpoint "
        "'{}':{}",
        left.size(), source.reader().folder(), listed(left));
  for (auto &[name, target] : targets)
    if (!target.parts.empty())
      target.finish();
  return Status::ok();
}

/// Checks that the embeddings and the head of a multi-token prediction layer are copies of the
/// model's; such a layer has none of its own here.
Status checkCopy(const HfSource &source, const HfParam &param) {
  const std::string &copy = param.segments[0].hf;
  if (param.stacked.empty() || !source.has(copy) || !source.has(param.stacked[0].hf) ||
      source.areEqual(copy, param.stacked[0].hf))
    return Status::ok();
  return cannotConvert("'{}' has other values than '{}', which it needs to be a copy of", copy,
                       param.stacked[0].hf);
}

/// An output layer in the file of a tied model must be a copy of the embeddings. If config.json
/// does not say that they are tied, one with other values is a separate one, as in the library.
Status settleTied(const HfSource &source, HfConfig &config) {
  constexpr const char *kHead = "lm_head.weight";
  const std::string embeddings = hfEmbeddings(config.arch);
  if (!config.isTied || !source.has(kHead) || !source.has(embeddings) ||
      source.areEqual(kHead, embeddings))
    return Status::ok();
  config.isTied = config.file.saysTied;
  return config.isTied ? cannotConvert("'{}' has other values than '{}', with which config.json "
                                       "ties it ('tie_word_embeddings')",
                                       kHead, embeddings)
                       : Status::ok();
}

int64_t dropWithoutTensors(std::vector<HfParam> &params, const HfSource &source) {
  return dropAbsentPredictors(params, [&](const HfParam &param) {
    return std::ranges::any_of(param.segments,
                               [&](const HfSegment &s) { return source.has(s.hf); });
  });
}

} // namespace

void settleByTensors(const std::string &folder, HfConfig &config) {
  if (config.mtpLayers == 0 && config.file.saysTied)
    return;
  std::vector<HfParam> params = hfParams(config);
  if (Result<SafeTensorsModel> model = SafeTensorsModel::open(folder); model.isOk()) {
    HfSource source(*model, config);
    static_cast<void>(settleTied(source, config)); // the import of the weights says it
    config.mtpLayers = dropWithoutTensors(params, source);
  } else if (const std::filesystem::path kept(folder); kept.filename() == kHfFolder) {
    auto saved = ParamSource::openCheckpoint(kept.parent_path().string());
    auto isThere = [&](const HfParam &param) { return (*saved)->shapeOf(param.name).has_value(); };
    if (saved.isOk())
      config.mtpLayers = dropAbsentPredictors(params, isThere);
  }
}

struct HfWeights::State {
  State(HfConfig read, SafeTensorsModel opened)
      : config(std::move(read)), model(std::move(opened)), source(model, config) {}

  Status find(const std::string &folder);
  const FoundParam *param(std::string_view name) const {
    auto at = places.find(name);
    return at == places.end() ? nullptr : &params[at->second];
  }

  HfConfig config;
  SafeTensorsModel model;
  HfSource source;
  PlainEntries arguments;
  std::vector<FoundParam> params;
  std::map<std::string, size_t, std::less<>> places; ///< in `params`, by name
  TakenRows taken;
};

/// Finds the tensors of each parameter of the model, and refuses a folder with tensors that no
/// parameter uses, or without some that one needs. All missing tensors are listed in one error.
Status HfWeights::State::find(const std::string &folder) {
  const Status tied = settleTied(source, config);
  std::vector<HfParam> all = hfParams(config);
  HfConfig made = config;
  made.mtpLayers = dropWithoutTensors(all, source);
  HfBiases biases = hfBiasesOf(config, [&](const std::string &name) { return source.has(name); });
  ASSIGN_OR_RETURN(arguments, hfArguments(made, biases));
  std::set<std::string> missing;
  for (const HfParam &param : all) {
    if (param.isOnlyWritten) {
      RETURN_IF_ERROR(checkCopy(source, param));
      continue;
    }
    std::optional<HfParam> held = stored(source, param);
    if (!held) {
      for (const HfSegment &segment : param.segments)
        if (!param.isOptional && !source.has(segment.hf))
          missing.insert(segment.hf);
      continue;
    }
    taken.add(*held, held->segments);
    ASSIGN_OR_RETURN(FoundParam found, findParam(source, config, *held));
    places.emplace(found.param.name, params.size());
    params.push_back(std::move(found));
  }
  if (!missing.empty())
    return makeStatus(report::TensorsMissing, "the model in '{}' does not contain {} tensors:{}",
                      folder, missing.size(), listed(std::vector(missing.begin(), missing.end())));
  RETURN_IF_ERROR(taken.check(source));
  return tied;
}

HfWeights::HfWeights(std::string folder, std::unique_ptr<State> state)
    : ParamSource(std::move(folder)), state_(std::move(state)) {}
HfWeights::~HfWeights() = default;

Result<std::unique_ptr<HfWeights>> HfWeights::open(const std::string &folder,
                                                   const std::vector<std::string> &accepted,
                                                   const ReportSink &emit) {
  const std::string configPath = folder + "/config.json";
  ASSIGN_OR_RETURN(std::string configText,
                   UntrustedFolder::readIn(folder, "config.json", kHfConfigBytesMax));
  ASSIGN_OR_RETURN(HfConfig config, parseHfConfig(configText, configPath, {accepted}));
  RETURN_IF_ERROR(refuseAdapter(folder));
  RETURN_IF_ERROR(checkPacking(config));
  if (emit)
    for (const Report &remark : hfRemarks(config.file))
      emit(remark);
  ASSIGN_OR_RETURN(SafeTensorsModel model, SafeTensorsModel::open(folder));
  if (emit && model.hasUnreadIndex())
    emit(makeReport(report::HfIndexUnread, folder));
  auto state = std::make_unique<State>(std::move(config), std::move(model));
  RETURN_IF_ERROR(state->find(folder));
  return std::unique_ptr<HfWeights>(new HfWeights(folder, std::move(state)));
}

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const FoundParam &found : state_->params)
    names.push_back(found.param.name);
  return names;
}

std::optional<Shape> HfWeights::shapeOf(std::string_view name, ParamPart part) const {
  const FoundParam *found = part == ParamPart::Weight ? state_->param(name) : nullptr;
  return found ? std::optional(found->shape) : std::nullopt;
}

std::optional<Element> HfWeights::typeOf(std::string_view, ParamPart) const {
  return state_->config.weightType;
}

LoadDifferences HfWeights::check(std::span<const ParamRequest> requests) const {
  LoadDifferences report;
  std::set<std::string_view> wanted;
  for (const ParamRequest &request : requests) {
    compareShape(request, shapeOf(request.name, request.part), report);
    wanted.insert(request.name);
  }
  report.unexpected = names();
  std::erase_if(report.unexpected, [&](const auto &name) { return wanted.contains(name); });
  return report;
}

Result<RunState> HfWeights::runState() const {
  RunState state;
  state.args = state_->arguments;
  return state;
}

Result<std::optional<NestedScales>> HfWeights::nestedScales(std::string_view name) const {
  const FoundParam *found = state_->param(name);
  if (!found || found->columns % Nf4Record::kNumbers != 0)
    return std::optional<NestedScales>();
  NestedScales scales(found->shape[0], found->columns);
  for (const HfSegment &segment : found->segments) {
    ASSIGN_OR_RETURN(HfRows from,
                     state_->source.rowsOf(segment.hf, found->param.isTransposed, segment.slab));
    if (!from.nf4 || !from.nf4->nested)
      return std::optional<NestedScales>();
    for (int64_t i = 0; i < segment.rows; ++i)
      scales.setRow(segment.row + i, *from.nf4->nested, segment.hfRow + i * segment.step);
  }
  return std::optional(std::move(scales));
}

Status HfWeights::read(std::string_view name, ParamPart, const Box &box, Element type, void *dst,
                       bool) const {
  const FoundParam *found = state_->param(name);
  if (!found)
    return cannotConvert("the model has no tensors for '{}'", name);
  auto *to = static_cast<uint8_t *>(dst);
  if (box.shape.size() < 2 || box.shape[1] == found->columns)
    return found->read(state_->source, box, type, to);
  // Parts of rows are copied from whole rows, a few rows at a time.
  int64_t size = elementBits(type) / 8, partBytes = box.shape[1] * size;
  Box rows = {{box.offset[0], 0}, {box.shape[0], found->columns}};
  std::vector<uint8_t> buffer;
  return forEachPiece(rows, type, kStepBytes, [&](const Box &piece) {
    buffer.resize(static_cast<size_t>(tensorBytes(type, piece.shape).value_or(0)));
    RETURN_IF_ERROR(found->read(state_->source, piece, type, buffer.data()));
    for (int64_t i = 0; i < piece.shape[0]; ++i, to += partBytes)
      std::copy_n(buffer.data() + (i * found->columns + box.offset[1]) * size, partBytes, to);
    return Status::ok();
  });
}

Status importHf(const std::string &in, const SaveTarget &out, const HfImportOptions &options,
                const ConvertRank &rank, std::vector<std::string> *unused) {
  if (options.vocabDivisor < 1 || options.vocabDivisor > kVocabDivisorMax)
    return cannotConvert(
        "rows of embeddings cannot be padded to a multiple of {}; it must be from 1 to {}",
        options.vocabDivisor, kVocabDivisorMax);
  ASSIGN_OR_RETURN(std::unique_ptr<HfWeights> weights,
                   HfWeights::open(in, options.acceptedFields, options.emit));
  const HfWeights::State &model = *weights->state_;
  NotFinite bad;
  std::vector<ConvertJob> jobs;
  for (const FoundParam &found : model.params)
    jobs.push_back(importJob(model.source, model.config, found, options, bad));
  if (unused != nullptr)
    *unused = model.source.unused(model.taken.names(), model.config);
  ASSIGN_OR_RETURN(std::vector<HfModelFile> files, hfFilesIn(in));
  RETURN_IF_ERROR(
      runJobs(out, std::move(jobs), options.pieceBytes, options.progress, rank,
              [&](RankWriter &writer) { return addModel(writer, out, model.arguments, files); }));
  bad.report(in, options.emit);
  return Status::ok();
}

namespace {

/// The type in which weights are written.
Result<Element> exportType(const ParamSource &source, std::optional<Element> configured,
                           const HfExportOptions &options) {
  if (options.weightType)
    return *options.weightType;
  if (configured)
    return *configured;
  ASSIGN_OR_RETURN(std::optional<Element> computed, computeTypeOf(source.reader()));
  if (computed)
    return *computed;
  for (const std::string &name : source.names())
    if (std::optional<Element> type = source.typeOf(name);
        type == Element::F32 || type == Element::BF16 || type == Element::F16)
      return *type;
  return Element::F32;
}

/// The `config.json` of an export: unchanged, or the part of the text model, and without
/// `quantization_config`, since exported weights are not packed.
std::string exportedConfig(const HfConfig &config, const std::string &text) {
  constexpr const char *kPacked = "quantization_config";
  nlohmann::json fields = config.file.said;
  bool isPacked = fields.erase(kPacked) > 0;
  if (config.file.outerType.empty() && !isPacked)
    return text;
  if (!config.file.outerType.empty()) {
    fields["architectures"] = {infoOf(config.arch).className};
    fields["tie_word_embeddings"] = config.isTied;
  }
  return toText(fields, 2) + "\n";
}

/// The files that an export writes in addition to weights, and the model that they describe.
struct HfModelFiles {
  HfConfig config;
  std::vector<HfModelFile> files; ///< including `config.json`
};

constexpr const char *kConfig = "config.json";

/// The files in the folder that the user names, or else the files in the checkpoint.
Result<std::optional<HfModelFiles>> givenFiles(const ParamSource &source, const std::string &folder,
                                               const HfExportOptions &options) {
  HfModelFiles given;
  bool isKept = folder.empty();
  const std::string from = isKept ? source.reader().folder() + "/" + kHfFolder : folder;
  ASSIGN_OR_RETURN(given.files, isKept ? hfFilesOf(source.reader()) : hfFilesIn(folder));
  auto config = std::ranges::find(given.files, kConfig, &HfModelFile::name);
  if (config == given.files.end() && isKept)
    return std::optional<HfModelFiles>();
  if (config == given.files.end()) // returns the system's reason
    return UntrustedFolder::readIn(from, kConfig, kHfConfigBytesMax).status();
  HfReading reading = {options.acceptedFields, isKept};
  ASSIGN_OR_RETURN(given.config, parseHfConfig(config->contents, from + "/" + kConfig, reading));
  if (!given.config.file.saysTied)
    given.config.isTied = !source.shapeOf("output_layer.weight").has_value();
  config->contents = exportedConfig(given.config, config->contents);
  if (given.config.isTied && !isAlwaysTied(given.config.arch) &&
      source.shapeOf("output_layer.weight")) {
    given.config.isTied = false;
    untie(given.files);
    if (options.emit)
      options.emit(makeReport(report::HfUntied, from));
  }
  return std::optional(std::move(given));
}

/// Chooses the files to write. Files in the checkpoint may describe another model than the one that
/// the run has trained. In that case `config.json` is derived from the run's options. `weightType`
/// receives the type of the weights.
Status chooseFiles(const ParamSource &source, const std::string &folder,
                   const HfExportOptions &options, HfModelFiles &out, Element &weightType) {
  ASSIGN_OR_RETURN(std::optional<HfModelFiles> given, givenFiles(source, folder, options));
  Status fits = given ? checkHfConfig(source.reader(), given->config) : Status::ok();
  if (!fits.isOk() && !folder.empty())
    return fits;
  std::optional<Element> configured = given ? given->config.weightType : std::nullopt;
  ASSIGN_OR_RETURN(weightType, exportType(source, configured, options));
  if (options.reportType)
    options.reportType(weightType);
  if (given)
    out = std::move(*given);
  if (given && fits.isOk())
    return Status::ok();
  ASSIGN_OR_RETURN(std::string derived,
                   deriveHfConfig(source.reader(), std::string(torchName(weightType))));
  ASSIGN_OR_RETURN(out.config,
                   parseHfConfig(derived, source.reader().folder() + "/" + kRunConfigFile));
  std::erase_if(out.files, [](const HfModelFile &file) { return file.name == kConfig; });
  out.files.push_back({kConfig, std::move(derived)});
  return Status::ok();
}

int64_t bytesOfTensor(const SafeTensorSource &tensor) {
  return tensorBytes(tensor.type, tensor.shape).value_or(0);
}

/// Whether the tensor holds the weight of a linear layer, except routers, the output layer and
/// experts.
bool isOfLinear(const HfTarget &target) {
  constexpr std::string_view kEnds[] = {
      "linear_qkv.weight",       "linear_proj.weight",         "linear_fc1.weight",
      "linear_fc2.weight",       "linear_q_proj.weight",       "linear_q_down_proj.weight",
      "linear_q_up_proj.weight", "linear_kv_down_proj.weight", "linear_kv_up_proj.weight"};
  return target.shape.size() == 2 && !target.isTransposed && !target.parts.empty() &&
         std::ranges::all_of(target.parts, [&](const HfTarget::Part &part) {
           return std::ranges::any_of(
               kEnds, [&](std::string_view end) { return part.name.ends_with(end); });
         });
}

/// Appends the tensors of a target.
Status addTensors(const ParamSource &source, const std::string &name, const HfTarget &target,
                  Element type, HfExportOptions::Packing packing,
                  std::vector<SafeTensorSource> &tensors) {
  auto write = [&source, &target, type](ByteSink &sink) {
    return writeTarget(source, target, type, sink);
  };
  if (packing == HfExportOptions::Plain || !isOfLinear(target)) {
    tensors.push_back({name, type, target.shape, std::move(write)});
    return Status::ok();
  }
  ASSIGN_OR_RETURN(std::vector<SafeTensorSource> packed,
                   packNf4(name, target.shape, type, packing == HfExportOptions::Nf4Nested, write));
  std::ranges::move(packed, std::back_inserter(tensors));
  return Status::ok();
}

/// Adds to `config.json` how the weights are packed.
void recordPacking(HfExportOptions::Packing packing, std::vector<HfModelFile> &files) {
  auto config = std::ranges::find(files, kConfig, &HfModelFile::name);
  if (packing == HfExportOptions::Plain || config == files.end())
    return;
  nlohmann::json fields = parseJson(config->contents);
  fields["quantization_config"] = parseJson(nf4Config(packing == HfExportOptions::Nf4Nested));
  config->contents = toText(fields, 2) + "\n";
}

/// Makes each tensor add its bytes to `progress` when it has been written.
void countProgress(std::vector<SafeTensorSource> &tensors, ProgressSum &progress) {
  for (SafeTensorSource &tensor : tensors)
    tensor.write = [write = std::move(tensor.write), bytes = bytesOfTensor(tensor),
                    &progress](ByteSink &sink) {
      Status status = write(sink);
      progress.add(bytes);
      return status;
    };
}

} // namespace

Status exportHf(const std::string &in, const std::string &configFolder, const std::string &out,
                const HfExportOptions &options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ParamSource> saved,
                   ParamSource::openCheckpoint(in, options.emit));
  const ParamSource &source = *saved;
  HfModelFiles model;
  Element weightType = Element::F32;
  RETURN_IF_ERROR(chooseFiles(source, configFolder, options, model, weightType));
  const HfConfig &config = model.config;
  std::vector<std::string> order;
  HfTargets targets;
  RETURN_IF_ERROR(collectTargets(source, config, order, targets));
  std::vector<SafeTensorSource> tensors;
  int64_t total = 0;
  for (const std::string &name : order) {
    const HfTarget &target = targets.at(name);
    Element type = name.ends_with("e_score_correction_bias") ? Element::F32 : weightType;
    RETURN_IF_ERROR(addTensors(source, name, target, type, options.packing, tensors));
  }
  for (const SafeTensorSource &tensor : tensors)
    total += bytesOfTensor(tensor);
  recordPacking(options.packing, model.files);
  ProgressSum progress(options.progress, total);
  countProgress(tensors, progress);
  return putFolder(options.observers, out, [&](const std::string &staging) -> Status {
    for (const HfModelFile &file : model.files) {
      const std::string path = staging + "/" + file.name;
      if (const std::string inner = path.substr(0, path.rfind('/')); inner != staging)
        RETURN_IF_ERROR(makeFolder(options.observers, inner));
      RETURN_IF_ERROR(replaceFile(options.observers, path, file.contents));
    }
    return writeSafeTensorsModel(staging, std::move(tensors), options.shardBytes,
                                 options.observers);
  });
}

} // namespace shardc::checkpoint
