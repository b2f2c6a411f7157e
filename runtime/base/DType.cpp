// Names of element types, as plans and checkpoints spell them.
#include "runtime/base/DType.h"

namespace shardc {

std::string_view dtypeName(DType type) {
  switch (type) {
#define DTYPE(enumerator, name, bytes)                                                             \
  case DType::enumerator:                                                                          \
    return #name;
#include "runtime/base/DTypes.def"
  }
  return "?";
}

std::optional<DType> parseDType(std::string_view name) {
#define DTYPE(enumerator, text, bytes)                                                             \
  if (name == #text)                                                                               \
    return DType::enumerator;
#include "runtime/base/DTypes.def"
  return std::nullopt;
}

} // namespace shardc
