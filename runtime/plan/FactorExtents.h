// Infers the extents of an op's factors from the types of its operands and results. Equal words
// have equal extents; otherwise the types do not fit the op.
#pragma once

#include <span>
#include <string>

#include "runtime/plan/Factors.h"

namespace shardc::plan {

/// Maps dimensions of a row to dimensions of a type, in the type's order. If the type has
/// more dimensions than the row, the row's first dimension stands for all leading dimensions of the
/// type, such as the rows of a matrix. If the type has fewer, its first dimension is the product of
/// the row's leading ones.
struct DimRange {
  uint8_t first, last;         ///< dimensions of the row's value, both included
  uint8_t typeFirst, typeLast; ///< dimensions of the type, both included
};

/// An extent that contradicts another one.
struct ExtentFault {
  bool isOperand;
  size_t index;     ///< number of the operand or result
  std::string dims; ///< the dimensions as the row writes them
  int64_t found;
  int64_t needed; ///< the extent that would fit; 0 if no extent of the factor fits
};

/// The extents of one op's factors. Refers to the op's row, not to the op or its types.
class FactorExtents {
public:
  /// `operands` and `results` are the types of the op's values, in order; types of list operands
  /// are ignored, and null says that a type is not known. `members` is the size of the op's group,
  /// or 1 without a group.
  FactorExtents(const Op &op, std::span<const Type *const> operands,
                std::span<const Type *const> results, int64_t members)
      : FactorExtents(factorsOf(op), op, operands, results, members) {}
  /// Like the constructor above, with another row of factors, which must outlive this object.
  FactorExtents(const OpFactors &factors, const Op &op, std::span<const Type *const> operands,
                std::span<const Type *const> results, int64_t members);

  /// The extent of the factor; 0 if no type determines it.
  int64_t of(FactorId factor) const {
    return extents_[static_cast<size_t>(factors_.extentOf[static_cast<size_t>(factor)])];
  }
  /// The shape of a value with these dimensions, on one rank of the group; 1 in further dimensions,
  /// and 0 where an extent is not determined.
  std::array<int64_t, kDimsOfValueMax> shapeOf(const FactorValue &value) const;
  /// The first contradiction between types; nothing if they fit the row.
  const std::optional<ExtentFault> &fault() const { return fault_; }

private:
  static constexpr size_t kEquationsMax = (kOperandsOfOpMax + kResultsOfOpMax) * kDimsOfValueMax;
  struct Equation {
    const FactorValue *value = nullptr;
    bool isOperand = false, isDone = false;
    uint8_t index = 0;
    DimRange dims{};
    int64_t extent = 0; ///< the local extent, if the row marks the dimension `%`
  };

  /// Adds one equation per range of dimensions: the product of the type's extents equals the atoms
  /// of the row.
  void addEquations(const Op &op, std::span<const Type *const> types, bool isOperand);
  /// Applies one equation; true if it determined another extent.
  bool use(Equation &equation);
  /// Sets one undetermined factor to 1, as for the rows of a matrix that is given as a vector.
  /// Returns false if all factors are determined.
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

/// The dimension of the type that holds dimension `dim` of the row. `isTransposed` says whether the
/// value's transposing attribute is set.
uint8_t placeOfDim(const FactorValue &value, bool isTransposed, uint8_t dim);

/// The row's entry for operand or result i. If the op's `reversedBy` attribute is set, operands
/// have the entries of results and results those of operands.
const FactorValue &operandOf(const Op &op, const OpFactors &factors, size_t i);
const FactorValue &resultOf(const Op &op, const OpFactors &factors, size_t i);

/// The mapping of a row's dimensions to those of a type of this rank; returns the number of ranges.
uint8_t dimRanges(const FactorValue &value, uint8_t rank,
                  std::array<DimRange, kDimsOfValueMax> &ranges);

/// The factor of a type's dimension: for [B,S] under `r` it is r for both, for `(2 f)` or `(g n d)`
/// the outermost one. kNoFactor if the row has no dimensions.
FactorId factorAt(const FactorValue &value, bool isTransposed, uint8_t rank, uint8_t dim);
/// The dimension of the type that holds the factor; if there are several, the one nearest to
/// `like`, the position of that factor in another value. -1 if there is none.
int dimOf(const FactorValue &value, bool isTransposed, uint8_t rank, FactorId factor, uint8_t like);

/// Dimensions `first` to `last` as the row writes them, without marks.
std::string printDims(const OpFactors &factors, const FactorValue &value, uint8_t first,
                      uint8_t last);
/// The dimensions of all operands and results, without marks: `r (2 f) -> r f`.
std::string printFactors(const OpFactors &factors);

} // namespace shardc::plan
