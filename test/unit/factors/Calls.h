// Calls of kernels with random operands. Operands and results can be changed, cut and compared
// along the factors of their op.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::plan::factors {

/// An operand or a result by value.
struct Array {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  Type type() const;
  int64_t numel() const { return type().numel(); }
  double get(int64_t i) const;
  void put(int64_t i, double number);
  bool isFloat() const;
};

/// The range of an element along a factor; a scale of a block covers several elements of the
/// factor. Empty for elements outside the factor (`x+2`), or if the value lacks the factor.
struct Along {
  int64_t first = -1, last = -1;
  bool isNowhere() const { return first < 0; }
};

/// One call of an op's kernel on the host.
struct Sample {
  OpKind kind = OpKind::Add;
  kernels::Attrs attrs;
  std::vector<Array> operands, results; ///< results have the types; their content is not used
  bool isList = false;
  std::vector<kernels::ParamRange> ranges;
  std::vector<int64_t> rangesOf;
  std::vector<int> inPlace; ///< for each result: the operand that it overwrites in place, or -1
  int64_t index = 0, members = 1;
  const OpFactors *otherRow = nullptr; ///< in place of the row of the op table

  const OpFactors &factors() const { return otherRow ? *otherRow : factorsOf(kind); }
  const FactorValue &operandRow(size_t i) const { return operandOf(op(), factors(), i); }
  const FactorValue &resultRow(size_t i) const { return resultOf(op(), factors(), i); }
  /// The op with its attributes, without values.
  Op op() const;
  FactorExtents extents() const;
  /// Why the kernel refuses the call; null if it accepts it.
  const char *refusal() const;
  std::vector<Array> run() const;
};

/// A call with random numbers and random small extents. Several forms of one op have their own case
/// names. If `hasBlocks`, extents have two blocks of scales. Empty if the bench has no case of
/// that name.
std::optional<Sample> makeSample(OpKind kind, std::string_view caseName, uint64_t seed,
                                 bool hasBlocks, DType dtype = DType::F32);

/// The positions of a value's elements along a factor.
class Places {
public:
  Places(const Sample &sample, const FactorValue &row, const FactorExtents &extents,
         FactorId factor);
  Along of(int64_t i) const;

private:
  const FactorAtom *atom_ = nullptr;
  int64_t stride_ = 1, radix_ = 1, extent_ = 0;
  int64_t first_ = 0; ///< where the second factor of `x+y` begins
};

/// The elements of a value between two positions of a factor, in order; for `x+2` including the 2.
Array sliced(const Sample &sample, const Array &array, const FactorValue &row,
             const FactorExtents &extents, FactorId factor, int64_t begin, int64_t end);

} // namespace shardc::plan::factors
