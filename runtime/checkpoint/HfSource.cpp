#include "runtime/checkpoint/HfSource.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Box.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {
namespace {

constexpr int64_t kScaleBlock = 128; ///< rows and columns of a block that shares an fp8 scale
constexpr int64_t kBlockBytes = 16;  ///< bytes of an mxfp4 block
constexpr int64_t kModelTouchedMax = int64_t{128} << 20; ///< bytes of the model to keep in memory

} // namespace

std::string plainHfName(const std::string &name) {
  constexpr std::pair<std::string_view, std::string_view> kRoots[] = {
      {"transformer.", ""},
      {"model.language_model.", "model."},
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
      {"layers.", "model.layers."},
      {"embed_tokens.", "model.embed_tokens."},
      {"norm.", "model.norm."},
      {"embedding_norm.", "model.embedding_norm."},
      {"final_layernorm.", "model.final_layernorm."}};
  for (const auto &[root, plain] : kRoots)
    if (name.starts_with(root))
      return std::string(plain) + name.substr(root.size());
  return name;
}

Status checkPacking(const HfConfig &config) {
  auto found = config.file.fields.find("quantization_config");
  if (found == config.file.fields.end() || found->is_null())
    return Status::ok();
  auto said = [&](const char *key) {
    return found->is_object() && found->contains(key) ? (*found)[key] : nlohmann::json();
  };
  nlohmann::json method = said("quant_method");
  nlohmann::json blocks = nlohmann::json::array({kScaleBlock, kScaleBlock});
  bool isKnown = (method == "fp8" && said("weight_block_size") == blocks) ||
                 (method == "mxfp4" && config.layout == HfLayout::GptOss) ||
                 (method == "bitsandbytes" && said("load_in_4bit") == true &&
                  said("bnb_4bit_quant_type") == "nf4");
  return isKnown ? Status::ok()
                 : makeStatus(report::HfWeightsPacked, config.file.path,
                              shownHfValue(method.is_null() ? *found : method));
}

HfSource::HfSource(const SafeTensorsModel &model, const HfConfig &config) : model_(model) {
  for (const auto &[name, file] : model.names())
    plain_.emplace(storedHfName(config.arch, plainHfName(name)), name);
  const std::string table = hfEmbeddings(config.arch);
  if (auto head = plain_.find("lm_head.weight");
      config.isTied && head != plain_.end() && !plain_.contains(table))
    plain_.emplace(table, head->second);
}

Result<HfRows> HfSource::packedRowsOf(const std::string &name, bool isTransposed,
                                      int64_t slab) const {
  const SafeTensor *blocks = model_.find(plain_.at(blocksOf(name)));
  auto found = plain_.find(scalesOf(name));
  const SafeTensor *scales = found != plain_.end() ? model_.find(found->second) : nullptr;
  if (scales == nullptr)
    return makeStatus(report::TensorsMissing, "the model has no tensor '{}'", scalesOf(name));
  Shape needed = scales->shape;
  needed.push_back(kBlockBytes);
  if (blocks->shape.size() != 4 || blocks->shape != needed || blocks->type != Element::U8 ||
      scales->type != Element::U8 || !isTransposed || slab < 0 || slab >= needed[0])
    return cannotConvert("'{}' in mxfp4 has blocks of shape {} and scales of shape {}; bytes of "
                         "shape [experts, rows, groups, {}] and [experts, rows, groups] are needed",
                         name, shapeText(blocks->shape), shapeText(scales->shape), kBlockBytes);
  HfRows rows;
  rows.type = Element::U8;
  rows.slabs = needed[0];
  rows.rows = needed[1];
  rows.columns = needed[2] * kBlockBytes * 2;
  int64_t groups = slab * needed[1] * needed[2];
  rows.data = model_.bytes(plain_.at(blocksOf(name))).data() + groups * kBlockBytes;
  rows.scales = model_.bytes(found->second).data() + groups;
  return rows;
}

Result<HfRows> HfSource::nf4RowsOf(const std::string &name, bool isTransposed, int64_t slab) const {
  auto find = [&](const std::string &plain, std::span<const uint8_t> &bytes) {
    auto found = plain_.find(plain);
    if (found == plain_.end())
      return static_cast<const SafeTensor *>(nullptr);
    bytes = model_.bytes(found->second);
    return model_.find(found->second);
  };
  HfRows rows;
  ASSIGN_OR_RETURN(rows.nf4, openNf4(name, find));
  if (isTransposed || slab >= 0)
    return cannotConvert("'{}' is in 4 bits, which is not imported for this kind of weight", name);
  rows.type = Element::U8;
  rows.rows = rows.nf4->rows;
  rows.columns = rows.rowStride = rows.nf4->columns;
  return rows;
}

void HfSource::unpack(const HfRows &source, int64_t row, float *values) const {
  constexpr float kValues[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  constexpr int kBias = 127, kMost = 255;
  if (source.nf4)
    return source.nf4->unpack(row, values);
  int64_t groups = source.columns / (2 * kBlockBytes);
  for (int64_t group = row * groups; group < (row + 1) * groups; ++group) {
    int exponent = source.scales[group];
    float scale = exponent == kMost ? std::numeric_limits<float>::infinity()
                                    : std::ldexp(1.F, exponent - kBias);
    for (int64_t i = 0; i < kBlockBytes; ++i) {
      uint8_t two = source.data[group * kBlockBytes + i];
      *values++ = kValues[two & 15] * scale;
      *values++ = kValues[two >> 4] * scale;
    }
  }
}

void HfSource::touch(int64_t bytes) const {
  if (touched_.fetch_add(bytes) + bytes >= kModelTouchedMax &&
      touched_.exchange(0) >= kModelTouchedMax)
    model_.drop();
}

/// A tensor as rows, without a copy where the stored form allows it. `slab` selects one matrix of a
/// stack, such as one expert; -1 is the whole tensor. A transposed tensor has its strides
/// exchanged.
Result<HfRows> HfSource::rowsOf(const std::string &name, bool isTransposed, int64_t slab) const {
  auto found = plain_.find(name);
  if (found == plain_.end() && plain_.contains(blocksOf(name)))
    return packedRowsOf(name, isTransposed, slab);
  if (found == plain_.end())
    return makeStatus(report::TensorsMissing, "the model has no tensor '{}'", name);
  if (plain_.contains(name + kNf4State))
    return nf4RowsOf(name, isTransposed, slab);
  const SafeTensor *tensor = model_.find(found->second);
  if (elementBits(tensor->type) < 8 || tensor->shape.empty())
    return cannotConvert("'{}' has a type or shape that is not imported", name);
  HfRows rows;
  rows.type = tensor->type;
  rows.data = model_.bytes(found->second).data();
  size_t rank = tensor->shape.size();
  int64_t count = *elementCount(tensor->shape);
  // One matrix of a stack: the first dimension counts them.
  if (slab >= 0) {
    if (rank < 2 || slab >= tensor->shape[0])
      return cannotConvert("'{}' is {}; part {} of its first dimension is needed", name,
                           shapeText(tensor->shape), slab);
    rows.slabs = tensor->shape[0];
    count /= rows.slabs;
    rows.data += slab * count * elementBits(tensor->type) / 8;
    --rank;
  }
  rows.isVector = rank == 1;
  rows.columns = rows.isVector ? 1 : tensor->shape.back();
  rows.rows = count / std::max<int64_t>(rows.columns, 1);
  rows.rowStride = rows.columns;
  if (isTransposed) {
    std::swap(rows.rows, rows.columns);
    std::swap(rows.rowStride, rows.columnStride);
  }
  return rows;
}

void HfSource::unscale(const HfRows &source, const SafeTensor &scales, int64_t first, int64_t rows,
                       float *values) const {
  const uint8_t *data = model_.bytes(scales.name).data();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < source.columns; ++column) {
      int64_t at = (first + row) / kScaleBlock * scales.shape[1] + column / kScaleBlock;
      float scale = 0;
      convertElements(scales.type, data + at * elementBits(scales.type) / 8, Element::F32,
                      reinterpret_cast<uint8_t *>(&scale), 1);
      values[row * source.columns + column] *= scale;
    }
}

Status HfSource::readRows(const HfSegment &segment, bool isTransposed, int64_t first, int64_t rows,
                          Element type, uint8_t *dst) const {
  const std::string &name = segment.hf;
  ASSIGN_OR_RETURN(HfRows source, rowsOf(name, isTransposed, segment.slab));
  if (rows == 0)
    return Status::ok();
  int64_t begin = segment.hfRow + first * segment.step;
  if (begin < 0 || rows < 0 || begin > source.rows - 1 - (rows - 1) * segment.step)
    return cannotConvert("'{}' has {} rows; rows {} to {} are needed", name, source.rows, begin,
                         begin + (rows - 1) * segment.step + 1);
  touch(rows * source.columns * elementBits(source.type) / 8);
  if (source.scales != nullptr || source.nf4) {
    std::vector<float> values(static_cast<size_t>(source.columns));
    for (int64_t row = 0; row < rows; ++row) {
      unpack(source, begin + row * segment.step, values.data());
      convertElements(Element::F32, reinterpret_cast<const uint8_t *>(values.data()), type,
                      dst + row * source.columns * elementBits(type) / 8, source.columns);
    }
    return Status::ok();
  }
  const uint8_t *src = source.data + begin * source.rowStride * elementBits(source.type) / 8;
  if (source.columnStride == 1 && segment.step == 1)
    readAhead({src, static_cast<size_t>(rows * source.rowStride * elementBits(source.type) / 8)});
  const int64_t extents[] = {rows, source.columns};
  const int64_t from[] = {source.rowStride * segment.step, source.columnStride},
                to[] = {source.columns, 1};
  auto scaleName = plain_.find(scaleNameOf(name));
  const SafeTensor *scales = scaleName != plain_.end() ? model_.find(scaleName->second) : nullptr;
  if (scales == nullptr) {
    if (!isConvertible(source.type, type))
      return cannotConvert("'{}' of type {} cannot be converted to {}", name,
                           torchName(source.type), torchName(type));
    copyBox(extents, {source.type, from}, src, {type, to}, dst);
    return Status::ok();
  }
  Shape blocks = {(source.rows + kScaleBlock - 1) / kScaleBlock,
                  (source.columns + kScaleBlock - 1) / kScaleBlock};
  bool isPlain = !isTransposed && segment.slab < 0 && segment.step == 1;
  if (scales->shape != blocks || !isPlain || !isConvertible(scales->type, Element::F32) ||
      !isConvertible(source.type, Element::F32))
    return cannotConvert("'{}' has scales of shape {}; {} is needed", name,
                         shapeText(scales->shape), shapeText(blocks));
  std::vector<float> values(static_cast<size_t>(rows * source.columns));
  copyBox(extents, {source.type, from}, src, {Element::F32, to},
          reinterpret_cast<uint8_t *>(values.data()));
  unscale(source, *scales, begin, rows, values.data());
  convertElements(Element::F32, reinterpret_cast<const uint8_t *>(values.data()), type, dst,
                  rows * source.columns);
  return Status::ok();
}

std::vector<std::string> HfSource::unused(const std::set<std::string> &used,
                                          const HfConfig &config) const {
  std::vector<std::string> names;
  auto isUsed = [&](const std::string &name) {
    for (const std::string &one : {blocksOf(""), scalesOf("")})
      if (name.ends_with(one) && used.contains(name.substr(0, name.size() - one.size())))
        return true;
    std::string codes;
    return used.contains(name) || (isBesideNf4(name, codes) && used.contains(codes));
  };
  for (const auto &[plain, name] : plain_)
    if (!isUsed(plain) && !isDroppedHfName(config, plain))
      names.push_back(name);
  std::ranges::sort(names);
  return names;
}

} // namespace shardc::checkpoint
