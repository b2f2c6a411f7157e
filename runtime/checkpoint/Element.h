// Element types of checkpoint files with their names in torch and safetensors, the conversions
// between floating types, and overflow-checked arithmetic on shapes. A superset of base/DType.h:
// files may hold types that no plan computes with.
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

enum class Element : uint8_t {
#define ELEMENT(enumerator, torchName, storage, safetensors, bits) enumerator,
#include "runtime/checkpoint/ElementTypes.def"
};

using Shape = std::vector<int64_t>;
using ShapeView = std::span<const int64_t>;

/// Bits of one element; less than 8 for the packed types of safetensors.
int64_t elementBits(Element type);
/// torch's dtype name, `float32`; empty where torch has no such type.
std::string_view torchName(Element type);
/// torch's storage class, `FloatStorage`; empty for types that torch stores untyped.
std::string_view torchStorageClass(Element type);
/// The name in a safetensors header, `F32`; empty where that format has no such type.
std::string_view safetensorsName(Element type);

std::optional<Element> elementOfTorchName(std::string_view name);
std::optional<Element> elementOfTorchStorage(std::string_view storageClass);
std::optional<Element> elementOfSafetensorsName(std::string_view name);

/// The file type that holds a plan's type.
Element elementOf(DType type);
/// The plan's type for a file type, if it has one.
std::optional<DType> dtypeOf(Element type);

/// The product of the extents, or nothing if it is beyond 2^62 or an extent is negative.
std::optional<int64_t> elementCount(ShapeView shape);
/// Bytes of a dense tensor, or nothing on overflow or where the bits do not fill whole bytes.
std::optional<int64_t> tensorBytes(Element type, ShapeView shape);
/// `[2, 3]`, for messages.
std::string shapeText(ShapeView shape);

/// Value `index` of an array of T at any address.
template <typename T> T loadAt(const uint8_t *data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// Whether convertElements can turn `from` into `to`.
bool isConvertible(Element from, Element to);
/// Converts `count` elements as torch's copy_ does: floating types by way of fp32 (fp64 stays
/// fp64 between fp64s), round to nearest even. Only for pairs that isConvertible accepts.
void convertElements(Element from, const uint8_t *src, Element to, uint8_t *dst, int64_t count);

} // namespace shardc::checkpoint
