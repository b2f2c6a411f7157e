// The extents of an op's factors, as the types of its operands and results have them: equal letters
// have equal extents, or the types do not fit.
#pragma once

#include <span>
#include <string>

#include "runtime/plan/Factors.h"

namespace shardc::plan {

/// The dimensions of a value in the order in which its type has them, and which of the type's
/// dimensions they are. A type may have more dimensions than its row: then the first of the row is
/// all of the leading ones, as rows of a matrix are. It may have fewer: then the first of the type
/// is all of the leading ones of the row.
struct DimRange {
  uint8_t first, last;         ///< of the value's dimensions, both included
  uint8_t typeFirst, typeLast; ///< of the type's
};

/// Where two extents contradict each other.
struct ExtentFault {
  bool isOperand;
  size_t index;     ///< of the operand or result
  std::string dims; ///< as the row writes them
  int64_t found;
  int64_t needed; ///< 0 if no extent of the factor would do
};

class FactorExtents {
public:
  /// Of an op with this row. Types are those of its operands and results, in order; those of lists
  /// are not looked at. `members` is the size of its group, 1 without one.
  FactorExtents(const Op &op, std::span<const Type *const> operands,
                std::span<const Type *const> results, int64_t members)
      : FactorExtents(factorsOf(op), op, operands, results, members) {}
  /// With another row, which has to outlive it.
  FactorExtents(const OpFactors &factors, const Op &op, std::span<const Type *const> operands,
                std::span<const Type *const> results, int64_t members);

  /// 0 if no type says it.
  int64_t of(FactorId factor) const {
    return extents_[static_cast<size_t>(factors_.extentOf[static_cast<size_t>(factor)])];
  }
  const std::optional<ExtentFault> &fault() const { return fault_; }

private:
  static constexpr size_t kEquationsMax = (kOperandsOfOpMax + kResultsOfOpMax) * kDimsOfValueMax;
  struct Equation {
    const FactorValue *value = nullptr;
    bool isOperand = false, isDone = false;
    uint8_t index = 0;
    DimRange dims{};
    int64_t extent = 0; ///< of this member, where the row says `%`
  };

  void addEquations(const Op &op, std::span<const Type *const> types, bool isOperand);
  /// Uses what is known of the equation; true if it says something new.
  bool use(Equation &equation);
  /// Says that a factor that no type tells from others is 1, as rows of a matrix of rank 1 are;
  /// false if there is none.
  bool settleOne();
  void refuse(const Equation &equation, int64_t needed);
  int64_t &at(FactorId factor) {
    return extents_[static_cast<size_t>(factors_.extentOf[static_cast<size_t>(factor)])];
  }

  const OpFactors &factors_;
  int64_t members_;
  std::array<int64_t, kFactorsOfOpMax> extents_{};
  std::array<Equation, kEquationsMax> equations_{};
  size_t equationCount_ = 0;
  std::optional<ExtentFault> fault_;
};

/// Dimension d of a value, with its attribute, is dimension `placeOfDim` in the type.
uint8_t placeOfDim(const FactorValue &value, bool isTurned, uint8_t dim);

/// The row's entry for operand or result i of an op whose attributes may turn the row around.
const FactorValue &operandOf(const Op &op, const OpFactors &factors, size_t i);
const FactorValue &resultOf(const Op &op, const OpFactors &factors, size_t i);

/// For how many rows an op uses each element of an operand: the extents along which the first
/// operand and a result go, and this one does not.
int64_t rowsOfOperand(const Plan &plan, const Segment &segment, const Op &op, size_t operand);
/// Over how many rows it sums for each element of a result: the extents of the first operand that
/// the result lacks. An op that makes a weight's gradient sums over those for which the weight was
/// used.
int64_t rowsOfResult(const Plan &plan, const Segment &segment, const Op &op, size_t result);

/// How the dimensions of a value lie in a type of this rank.
uint8_t dimRanges(const FactorValue &value, uint8_t rank,
                  std::array<DimRange, kDimsOfValueMax> &ranges);

/// The factor along which a dimension of an operand's or result's type goes: of `r` for [B,S] that
/// for both, of `(2 f)` and `(g n d)` the outermost. None of what has no dimensions.
FactorId factorAt(const FactorValue &value, bool isTurned, uint8_t rank, uint8_t dim);
/// The dimension of the type that goes along the factor; of several the one nearest to `like`, the
/// dimension of another value that goes along it. -1 without one.
int dimOf(const FactorValue &value, bool isTurned, uint8_t rank, FactorId factor, uint8_t like);

/// Dimensions `first` to `last` as the row writes them, without marks.
std::string printDims(const OpFactors &factors, const FactorValue &value, uint8_t first,
                      uint8_t last);

} // namespace shardc::plan
