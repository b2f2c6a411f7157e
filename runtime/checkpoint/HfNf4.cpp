#include "runtime/checkpoint/HfNf4.h"

#include <cstring>

#include "runtime/base/Json.h"
#include "runtime/base/Nf4.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {
namespace {

constexpr const char *kScales = ".absmax", *kValues = ".quant_map", *kGroups = ".nested_absmax",
                     *kMap = ".nested_quant_map";
constexpr int64_t kBlockMost = 4096;

/// A tensor beside the codes: its elements, all of one type.
template <typename T>
Status readBeside(const std::string &name, Element type, const FindBytes &find,
                  std::vector<T> &elements) {
  std::span<const uint8_t> bytes;
  const SafeTensor *tensor = find(name, bytes);
  if (tensor == nullptr)
    return makeStatus(report::TensorsMissing, "the model has no tensor '{}'", name);
  if (tensor->type != type)
    return cannotConvert("'{}' is of type {}; {} is needed", name, torchName(tensor->type),
                         torchName(type));
  elements.resize(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(T));
  return Status::ok();
}

/// Opens scales in 8 bits.
Status openScales(const std::string &name, const nlohmann::json &state, const FindBytes &find,
                  Nf4Matrix &matrix) {
  std::vector<uint8_t> codes;
  std::vector<float> groups, map;
  RETURN_IF_ERROR(readBeside(name + kScales, Element::U8, find, codes));
  RETURN_IF_ERROR(readBeside(name + kGroups, Element::F32, find, groups));
  RETURN_IF_ERROR(readBeside(name + kMap, Element::F32, find, map));
  size_t group = state.value("nested_blocksize", size_t{0});
  bool hasOffset = state.contains("nested_offset") && state["nested_offset"].is_number();
  if (map.size() != kDynamicMap.size() || group == 0 || !hasOffset ||
      groups.size() != (codes.size() + group - 1) / group)
    return cannotConvert("'{}' has {} scales in 8 bits with {} scales of their own and {} values",
                         name, codes.size(), groups.size(), map.size());
  auto offset = static_cast<float>(state["nested_offset"].get<double>());
  for (size_t i = 0; i < codes.size(); ++i) {
    float difference = map[codes[i]] * groups[i / group]; // rounded before the sum, as openScale's
    matrix.scales.push_back(difference + offset);
  }
  if (matrix.block == Nf4Block::kNumbers && group == Nf4Scales::kGroup &&
      std::ranges::equal(map, kDynamicMap))
    matrix.nested = {offset, std::move(codes), std::move(groups)};
  return Status::ok();
}

/// The fields of the JSON beside the codes that are needed.
Result<nlohmann::json> readState(const std::string &name, const FindBytes &find) {
  std::vector<uint8_t> text;
  RETURN_IF_ERROR(readBeside(name + kNf4State, Element::U8, find, text));
  nlohmann::json state =
      parseJson(std::string_view(reinterpret_cast<const char *>(text.data()), text.size()));
  auto isNumber = [&](const char *key) {
    return state.contains(key) && state[key].is_number_integer() && state[key].get<int64_t>() > 0;
  };
  bool isKnown = state.is_object() && isNumber("blocksize") && state.contains("shape") &&
                 state["shape"].is_array() && state["shape"].size() == 2 &&
                 (!state.contains("nested_blocksize") || isNumber("nested_blocksize"));
  for (size_t i = 0; isKnown && i < 2; ++i)
    isKnown = state["shape"][i].is_number_integer() && state["shape"][i].get<int64_t>() > 0;
  return isKnown ? Result<nlohmann::json>(std::move(state))
                 : cannotConvert("'{}{}' does not say the shape and the block size of a matrix",
                                 name, kNf4State);
}

} // namespace

bool isBesideNf4(const std::string &name, std::string &of) {
  for (std::string_view end :
       {std::string_view(kNf4State), std::string_view(kGroups), std::string_view(kMap),
        std::string_view(kScales), std::string_view(kValues)})
    if (name.ends_with(end)) {
      of = name.substr(0, name.size() - end.size());
      return true;
    }
  return false;
}

void Nf4Matrix::unpack(int64_t row, float *numbers) const {
  for (int64_t at = row * columns; at < (row + 1) * columns; ++at) {
    uint8_t two = codes[at / 2];
    *numbers++ =
        values[at % 2 == 0 ? two >> 4 : two & 15] * scales[static_cast<size_t>(at / block)];
  }
}

/// Reads codes, scales and table of values of one matrix, and checks that their sizes fit its
/// shape: two codes per byte, and one scale per block of values.
Result<std::shared_ptr<const Nf4Matrix>> openNf4(const std::string &name, const FindBytes &find) {
  ASSIGN_OR_RETURN(nlohmann::json state, readState(name, find));
  auto matrix = std::make_shared<Nf4Matrix>();
  matrix->rows = state["shape"][0].get<int64_t>(),
  matrix->columns = state["shape"][1].get<int64_t>();
  matrix->block = state["blocksize"].get<int64_t>();
  std::vector<float> values;
  RETURN_IF_ERROR(readBeside(name + kValues, Element::F32, find, values));
  std::span<const uint8_t> beside, codes;
  if (find(name + kGroups, beside) != nullptr) {
    RETURN_IF_ERROR(openScales(name, state, find, *matrix));
  } else {
    RETURN_IF_ERROR(readBeside(name + kScales, Element::F32, find, matrix->scales));
  }
  const SafeTensor *tensor = find(name, codes);
  std::optional<int64_t> numbers = elementCount({{matrix->rows, matrix->columns}});
  auto parts = [&](int64_t size) { return static_cast<size_t>((*numbers + size - 1) / size); };
  if (tensor == nullptr || !numbers || matrix->block > kBlockMost || codes.size() != parts(2) ||
      matrix->scales.size() != parts(matrix->block) || values.size() != matrix->values.size())
    return cannotConvert("'{}' has {} bytes of codes and {} scales, which do not fit {} in blocks "
                         "of {}",
                         name, codes.size(), matrix->scales.size(),
                         shapeText(Shape{matrix->rows, matrix->columns}), matrix->block);
  matrix->codes = codes.data();
  std::ranges::copy(values, matrix->values.begin());
  if (!std::ranges::equal(values, kNf4Values))
    matrix->nested.reset();
  return std::shared_ptr<const Nf4Matrix>(std::move(matrix));
}

namespace {

/// Takes numbers, and hands on the codes of whole blocks of them.
class Nf4Packer : public ByteSink {
public:
  /// `codes` null: only the scales are wanted.
  Nf4Packer(Element type, ByteSink *codes, std::vector<float> *scales)
      : type_(type), codes_(codes), scales_(scales) {}

  Status write(const void *data, size_t size) override {
    const auto *bytes = static_cast<const uint8_t *>(data);
    left_.insert(left_.end(), bytes, bytes + size);
    const size_t each = static_cast<size_t>(elementBits(type_) / 8) * Nf4Block::kNumbers;
    size_t done = 0;
    std::vector<uint8_t> made;
    for (; left_.size() - done >= each; done += each)
      pack(left_.data() + done, Nf4Block::kNumbers, made);
    left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(done));
    return codes_ == nullptr ? Status::ok() : codes_->write(made.data(), made.size());
  }

  /// The rest, which is less than a block.
  Status finish() {
    int64_t count = static_cast<int64_t>(left_.size()) / (elementBits(type_) / 8);
    std::vector<uint8_t> made;
    if (count > 0)
      pack(left_.data(), count, made);
    made.resize(static_cast<size_t>(count + 1) / 2);
    return codes_ == nullptr ? Status::ok() : codes_->write(made.data(), made.size());
  }

private:
  void pack(const uint8_t *from, int64_t count, std::vector<uint8_t> &made) {
    float numbers[Nf4Block::kNumbers] = {};
    convertElements(type_, from, Element::F32, reinterpret_cast<uint8_t *>(numbers), count);
    const Nf4Block block = toNf4(numbers);
    if (scales_ != nullptr)
      scales_->push_back(block.scale);
    made.insert(made.end(), std::begin(block.codes), std::end(block.codes));
  }

  Element type_;
  ByteSink *codes_;
  std::vector<float> *scales_;
  std::vector<uint8_t> left_;
};

template <typename T>
SafeTensorSource sourceOf(std::string name, Element type, std::vector<T> elements) {
  auto count = static_cast<int64_t>(elements.size());
  auto write = [elements = std::move(elements)](ByteSink &sink) {
    return sink.write(elements.data(), elements.size() * sizeof(T));
  };
  return {std::move(name), type, {count}, std::move(write)};
}

} // namespace

Result<std::vector<SafeTensorSource>> packNf4(const std::string &name, const Shape &shape,
                                              Element type, bool isNested, WriteNumbers write) {
  std::vector<float> scales;
  Nf4Packer measure(type, nullptr, &scales);
  RETURN_IF_ERROR(write(measure));
  RETURN_IF_ERROR(measure.finish());
  std::string state =
      fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                  Nf4Block::kNumbers, torchName(type), shape[0], shape[1]);
  int64_t codes = (elementCount(shape).value_or(0) + 1) / 2;
  auto writeCodes = [type, write = std::move(write)](ByteSink &sink) {
    Nf4Packer packer(type, &sink, nullptr);
    RETURN_IF_ERROR(write(packer));
    return packer.finish();
  };
  std::vector<SafeTensorSource> tensors = {{name, Element::U8, {codes, 1}, std::move(writeCodes)}};
  if (isNested) {
    Nf4Scales nested = toNf4Scales(scales);
    state +=
        fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                    Nf4Scales::kGroup, static_cast<double>(nested.offset));
    tensors.push_back(sourceOf(name + kScales, Element::U8, std::move(nested.codes)));
    tensors.push_back(sourceOf(name + kGroups, Element::F32, std::move(nested.groups)));
    tensors.push_back(sourceOf(name + kMap, Element::F32,
                               std::vector<float>(kDynamicMap.begin(), kDynamicMap.end())));
  } else {
    tensors.push_back(sourceOf(name + kScales, Element::F32, std::move(scales)));
  }
  tensors.push_back(sourceOf(name + kValues, Element::F32,
                             std::vector<float>(kNf4Values.begin(), kNf4Values.end())));
  state += "}";
  tensors.push_back(
      sourceOf(name + kNf4State, Element::U8, std::vector<uint8_t>(state.begin(), state.end())));
  return tensors;
}

std::string nf4Config(bool isNested) {
  nlohmann::json config = {{"quant_method", "bitsandbytes"},
                           {"load_in_4bit", true},
                           {"load_in_8bit", false},
                           {"bnb_4bit_quant_type", "nf4"},
                           {"bnb_4bit_compute_dtype", "bfloat16"},
                           {"bnb_4bit_quant_storage", "uint8"},
                           {"bnb_4bit_use_double_quant", isNested}};
  return toText(config, 2);
}

} // namespace shardc::checkpoint
