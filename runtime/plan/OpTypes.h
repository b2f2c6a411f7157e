// Element types and ranks of each op's operands and results: those in its row of Ops.def, or those
// that follow from its steps.
// Relations between dimensions are in Factors.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/StepState.h"
#include "runtime/plan/Factors.h"

namespace shardc::plan {

/// Whether the elements are 8-bit floating-point numbers, which have separate scales.
inline bool isFloat8(const Type &type) {
  return type.dtype == DType::F8E4M3 || type.dtype == DType::F8E5M2;
}
/// Whether the element type is a floating-point type in which layers compute.
inline bool isData(const Type &type) {
  return type.dtype == DType::F64 || isComputeType(type.dtype) || isFloat8(type);
}

/// The requirement of a row on the type of one operand or result.
struct ValueType {
  enum Class : uint8_t {
#define VALUE_TYPES(enumerator, word, meaning) enumerator,
#include "runtime/plan/OpColumns.def"
    Exact, ///< this element type, such as `i32`
  };
  Class numbers = Any;
  DType dtype = DType::F32; ///< for Exact
  uint8_t rank = 0;         ///< `f32/2`: the number of dimensions; 0: any
  /// `~x`: the same element type as x; `=x`: the same type as x.
  int8_t like = -1;
  bool isLikeOperand = false, isSameType = false;
};

/// The types of an op.
struct OpTypes {
  uint8_t operandCount = 0, resultCount = 0;
  std::array<ValueType, kOperandsOfOpMax> operandTypes{};
  std::array<ValueType, kResultsOfOpMax> resultTypes{};

  /// The entry for operand i of an op. All values of a list share one entry.
  constexpr const ValueType &operand(size_t i) const {
    return operandTypes[i < operandCount ? i : operandCount - 1u];
  }
  constexpr const ValueType &result(size_t i) const { return resultTypes[i]; }
};

const OpTypes &typesOf(OpKind kind);
inline const OpTypes &typesOf(const Op &op) { return typesOf(op.kind); }

/// Whether the type meets the requirement; `like` is the type of the value that it must equal, if
/// any.
inline bool fits(const ValueType &needed, const Type &type, const Type *like) {
  if (like != nullptr)
    return needed.isSameType ? type == *like : type.dtype == like->dtype;
  if (needed.rank != 0 && type.rank != needed.rank)
    return false;
  switch (needed.numbers) {
  case ValueType::Any:
    return true;
  case ValueType::Data:
    return isData(type);
  case ValueType::Float:
    return isData(type) && !isFloat8(type);
  case ValueType::Float8:
    return isFloat8(type);
  case ValueType::Integer:
    return !isData(type) && !isRecord(type.dtype);
  case ValueType::State:
    return type.bytes() == static_cast<int64_t>(sizeof(StepState));
  case ValueType::Exact:
    return type.dtype == needed.dtype;
  }
  return false;
}
/// Text for messages, such as `f32 with 2 dimensions`. `like` is the name of the value whose type
/// is needed.
std::string toString(const ValueType &needed, std::string_view like);

} // namespace shardc::plan
