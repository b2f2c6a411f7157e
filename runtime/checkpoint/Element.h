// Element types of checkpoint files with their names in torch and safetensors, conversions between
// floating-point types, and arithmetic on shapes with overflow checks. These types are a superset
// of base/DType.h, since files may contain types with which no plan computes.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/DType.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// The element types, in the order of ElementTypes.def.
enum class Element : uint8_t {
#define ELEMENT(enumerator, torchName, storage, safetensors, bits) enumerator,
#include "runtime/checkpoint/ElementTypes.def"
};

using Shape = std::vector<int64_t>;
using ShapeView = std::span<const int64_t>;

/// Bits per element; less than 8 for packed types of safetensors.
int64_t elementBits(Element type);
/// The dtype name in torch, such as `float32`; empty if torch has no such type.
std::string_view torchName(Element type);
/// The storage class in torch, such as `FloatStorage`; empty for types that torch stores untyped.
std::string_view torchStorageClass(Element type);
/// The name in a safetensors header, such as `F32`; empty if the format has no such type.
std::string_view safetensorsName(Element type);

/// The inverses of the three functions above; nothing for an unknown name.
std::optional<Element> elementOfTorchName(std::string_view name);
std::optional<Element> elementOfTorchStorage(std::string_view storageClass);
std::optional<Element> elementOfSafetensorsName(std::string_view name);

/// The file type that represents a plan's type.
Element elementOf(DType type);

/// The product of the extents; nothing if it exceeds 2^62 or an extent is negative.
std::optional<int64_t> elementCount(ShapeView shape);
/// Bytes of a dense tensor; nothing on overflow, or if the bits do not fill whole bytes.
std::optional<int64_t> tensorBytes(Element type, ShapeView shape);
/// Text for messages, such as `[2, 3]`.
std::string shapeText(ShapeView shape);

/// Element `index` of an array of T, which need not be aligned.
template <typename T> T loadAt(const uint8_t *data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// Whether convertElements supports this pair.
bool isConvertible(Element from, Element to);
/// Converts `count` elements like torch's copy_: through fp32, rounding to nearest even; fp64 to
/// fp64 is copied. Only for pairs that isConvertible accepts.
void convertElements(Element from, const uint8_t *src, Element to, uint8_t *dst, int64_t count);

} // namespace shardc::checkpoint
