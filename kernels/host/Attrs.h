// Reads and sets attributes of calls by the key that plans have for them.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/api/Kernel.h"
#include "runtime/plan/OpInfo.h"

namespace shardc::kernels {

/// The value of an attribute; of a real number, its bits.
inline int64_t attrOf(const Attrs &attrs, plan::AttrKey key) {
  switch (key) {
#define ATTR_BOOL(field, default_, doc)                                                            \
  case plan::AttrKey::field:                                                                       \
    return static_cast<int64_t>(attrs.field);
#define ATTR_INT(field, default_, least, most, doc) ATTR_BOOL(field, default_, doc)
#define ATTR_FLOAT(field, default_, doc)                                                           \
  case plan::AttrKey::field:                                                                       \
    return std::bit_cast<int64_t>(attrs.field);
#include "runtime/base/Attrs.def"
  }
  return 0;
}

/// Sets an attribute to a value that attrOf() returns.
inline void setAttr(Attrs &attrs, plan::AttrKey key, int64_t value) {
  switch (key) {
#define ATTR_BOOL(field, default_, doc)                                                            \
  case plan::AttrKey::field:                                                                       \
    attrs.field = value != 0;                                                                      \
    return;
#define ATTR_INT(field, default_, least, most, doc)                                                \
  case plan::AttrKey::field:                                                                       \
    attrs.field = value;                                                                           \
    return;
#define ATTR_FLOAT(field, default_, doc)                                                           \
  case plan::AttrKey::field:                                                                       \
    attrs.field = std::bit_cast<double>(value);                                                    \
    return;
#include "runtime/base/Attrs.def"
  }
}

} // namespace shardc::kernels
