// The element types of each op's operands and results: its TYPES row of Ops.def, taken apart. What
// dimensions have to do with each other is said by factors (Factors.h); here stands what numbers a
// value consists of, how many dimensions it has where an op needs so many, and whose type it has.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/plan/Factors.h"

namespace shardc::plan {

inline bool isFloat8(const Type &type) {
  return type.dtype == DType::F8E4M3 || type.dtype == DType::F8E5M2;
}
/// Floating point of any width: what layers compute with.
bool isData(const Type &type);

/// What a row says of the type of one operand or result.
struct ValueType {
  enum Class : uint8_t {
#define VALUE_TYPES(enumerator, word, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
    Exact, ///< an element type, such as `i32`
  };
  Class numbers = Any;
  DType dtype = DType::F32; ///< of Exact
  uint8_t rank = 0;         ///< `f32/2`: it has so many dimensions; 0: any number
  /// `~x`: its element type is that of x; `=x`: its type is.
  int8_t like = -1;
  bool isLikeOperand = false, isSameType = false;
};

/// One TYPES row.
struct OpTypes {
  std::string_view text;
  uint8_t operandCount = 0, resultCount = 0;
  std::array<ValueType, kOperandsOfOpMax> operandTypes{};
  std::array<ValueType, kResultsOfOpMax> resultTypes{};

  /// Of operand i in the order of an op's list. A list has one entry, which all of its values
  /// share.
  const ValueType &operand(size_t i) const {
    return operandTypes[i < operandCount ? i : operandCount - 1u];
  }
  const ValueType &result(size_t i) const { return resultTypes[i]; }
};

/// Those of an op with an epilogue follow from the rows of both.
const OpTypes &typesOf(OpKind kind, Epilogue epilogue);
inline const OpTypes &typesOf(const Op &op) { return typesOf(op.kind, op.epilogue); }

/// Whether the type is what the row says; `like` is that of the value whose type it has, if any.
bool fits(const ValueType &needed, const Type &type, const Type *like);
/// `f32 with 2 dimensions`; `like` is the name of the value whose type it has.
std::string toString(const ValueType &needed, std::string_view like);

} // namespace shardc::plan
