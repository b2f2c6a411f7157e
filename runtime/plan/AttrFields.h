// Reads and sets attributes of calls by the key that plans have for them. `Attrs` has a field for
// each row of Attrs.def, as kernels::Attrs does.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/plan/OpInfo.h"

namespace shardc::plan {

/// The value of an attribute; of a real number, its bits.
template <typename Attrs> int64_t attrOf(const Attrs &attrs, AttrKey key) {
  switch (key) {
#define ATTR_BOOL(field, default_, doc)                                                            \
  case AttrKey::field:                                                                             \
    return static_cast<int64_t>(attrs.field);
#define ATTR_INT(field, default_, least, most, doc) ATTR_BOOL(field, default_, doc)
#define ATTR_FLOAT(field, default_, doc)                                                           \
  case AttrKey::field:                                                                             \
    return std::bit_cast<int64_t>(attrs.field);
#include "runtime/base/Attrs.def"
  }
  return 0;
}

/// Sets an attribute to a value that attrOf() returns.
template <typename Attrs> void setAttr(Attrs &attrs, AttrKey key, int64_t value) {
  switch (key) {
#define ATTR_BOOL(field, default_, doc)                                                            \
  case AttrKey::field:                                                                             \
    attrs.field = value != 0;                                                                      \
    return;
#define ATTR_INT(field, default_, least, most, doc)                                                \
  case AttrKey::field:                                                                             \
    attrs.field = value;                                                                           \
    return;
#define ATTR_FLOAT(field, default_, doc)                                                           \
  case AttrKey::field:                                                                             \
    attrs.field = std::bit_cast<double>(value);                                                    \
    return;
#include "runtime/base/Attrs.def"
  }
}

} // namespace shardc::plan
