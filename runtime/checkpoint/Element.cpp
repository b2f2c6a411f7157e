#include "runtime/checkpoint/Element.h"

#include <cmath>

#include "runtime/base/Float8.h"

namespace shardc::checkpoint {
namespace {

struct ElementRow {
  Element type;
  std::string_view torchName, storage, safetensors;
  int64_t bits;
};

constexpr ElementRow kRows[] = {
#define ELEMENT(enumerator, torchName, storage, safetensors, bits)                                 \
  {Element::enumerator, torchName, storage, safetensors, bits},
#include "runtime/checkpoint/ElementTypes.def"
};

const ElementRow &rowOf(Element type) { return kRows[static_cast<size_t>(type)]; }

std::optional<Element> findRow(std::string_view ElementRow::*column, std::string_view name) {
  if (name.empty())
    return std::nullopt;
  for (const ElementRow &row : kRows)
    if (row.*column == name)
      return row.type;
  return std::nullopt;
}

/// The value of an IEEE-like number with few bits. `bias` is the bias of the exponent.
float smallFloat(uint32_t bits, int exponentBits, int mantissaBits, int bias) {
  uint32_t mantissa = bits & ((1u << mantissaBits) - 1);
  int exponent = static_cast<int>((bits >> mantissaBits) & ((1u << exponentBits) - 1));
  bool negative = ((bits >> (mantissaBits + exponentBits)) & 1) != 0;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissaBits)
                              : std::ldexp(static_cast<float>(mantissa | (1u << mantissaBits)),
                                           exponent - bias - mantissaBits);
  return negative ? -value : value;
}

float fromFnuz(uint8_t bits, int exponentBits, int mantissaBits, int bias) {
  return bits == 0x80 ? NAN : smallFloat(bits, exponentBits, mantissaBits, bias);
}

template <typename T> void storeAt(uint8_t *dst, int64_t index, T value) {
  std::memcpy(dst + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/// Element `index` as a double. A double represents all of these types exactly.
double loadNumber(Element type, const uint8_t *src, int64_t index) {
  switch (type) {
  case Element::F64:
    return loadAt<double>(src, index);
  case Element::F32:
    return loadAt<float>(src, index);
  case Element::BF16:
    return toFloat(BF16{loadAt<uint16_t>(src, index)});
  case Element::F16:
    return toFloat(F16{loadAt<uint16_t>(src, index)});
  case Element::F8E4M3:
    return toFloat(F8E4M3{src[index]});
  case Element::F8E5M2:
    return toFloat(F8E5M2{src[index]});
  case Element::F8E4M3Fnuz:
    return fromFnuz(src[index], 4, 3, 8);
  case Element::F8E5M2Fnuz:
    return fromFnuz(src[index], 5, 2, 16);
  case Element::F8E8M0:
    return src[index] == 0xff ? NAN : std::ldexp(1.0, src[index] - 127);
  default:
    break;
  }
  return 0;
}

/// Stores nothing for types that are not writable floats; callers exclude them.
void storeNumber(Element type, uint8_t *dst, int64_t index, double value) {
  switch (type) {
  case Element::F64:
    return storeAt(dst, index, value);
  case Element::F32:
    return storeAt(dst, index, static_cast<float>(value));
  case Element::BF16:
    return storeAt(dst, index, toBF16(static_cast<float>(value)).bits);
  case Element::F16:
    return storeAt(dst, index, toF16(static_cast<float>(value)).bits);
  case Element::F8E4M3:
    return storeAt(dst, index, toF8E4M3(static_cast<float>(value)).bits);
  case Element::F8E5M2:
    return storeAt(dst, index, toF8E5M2(static_cast<float>(value)).bits);
  default:
    break;
  }
}

bool isReadableFloat(Element type) {
  switch (type) {
  case Element::F64:
  case Element::F32:
  case Element::BF16:
  case Element::F16:
  case Element::F8E4M3:
  case Element::F8E5M2:
  case Element::F8E4M3Fnuz:
  case Element::F8E5M2Fnuz:
  case Element::F8E8M0:
    return true;
  default:
    return false;
  }
}

bool isWritableFloat(Element type) {
  return isReadableFloat(type) && type != Element::F8E4M3Fnuz && type != Element::F8E5M2Fnuz &&
         type != Element::F8E8M0;
}

} // namespace

int64_t elementBits(Element type) { return rowOf(type).bits; }
std::string_view torchName(Element type) { return rowOf(type).torchName; }
std::string_view torchStorageClass(Element type) { return rowOf(type).storage; }
std::string_view safetensorsName(Element type) { return rowOf(type).safetensors; }

std::optional<Element> elementOfTorchName(std::string_view name) {
  return findRow(&ElementRow::torchName, name);
}
std::optional<Element> elementOfTorchStorage(std::string_view name) {
  return findRow(&ElementRow::storage, name);
}
std::optional<Element> elementOfSafetensorsName(std::string_view name) {
  return findRow(&ElementRow::safetensors, name);
}

Element elementOf(DType type) {
  switch (type) {
#define DTYPE(enumerator, name, bytes)                                                             \
  case DType::enumerator:                                                                          \
    return Element::enumerator;
#include "runtime/base/DTypes.def"
  }
  return Element::U8;
}

std::optional<int64_t> elementCount(ShapeView shape) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (extent < 0)
      return std::nullopt;
    if (__builtin_mul_overflow(count, extent, &count) || count > kMost)
      return std::nullopt;
  }
  return count;
}

std::optional<int64_t> tensorBytes(Element type, ShapeView shape) {
  std::optional<int64_t> count = elementCount(shape);
  int64_t bits = 0;
  if (!count || __builtin_mul_overflow(*count, elementBits(type), &bits) || bits % 8 != 0)
    return std::nullopt;
  return bits / 8;
}

std::string shapeText(ShapeView shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

bool isConvertible(Element from, Element to) {
  return from == to || (isReadableFloat(from) && isWritableFloat(to));
}

void convertElements(Element from, const uint8_t *src, Element to, uint8_t *dst, int64_t count) {
  SHARDC_CHECK(isConvertible(from, to), "no conversion from element type {} to {}",
               static_cast<int>(from), static_cast<int>(to));
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(count * elementBits(from) / 8));
    return;
  }
  if (from == Element::BF16 && to == Element::F32) {
    for (int64_t i = 0; i < count; ++i)
      storeAt(dst, i, toFloat(BF16{loadAt<uint16_t>(src, i)}));
    return;
  }
  if (from == Element::F32 && to == Element::BF16) {
    for (int64_t i = 0; i < count; ++i)
      storeAt(dst, i, toBF16(loadAt<float>(src, i)).bits);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    storeNumber(to, dst, i, loadNumber(from, src, i));
}

} // namespace shardc::checkpoint
