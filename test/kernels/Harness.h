// Runs a kernel on fresh memory, and checks that it does not write outside its results or its
// workspace, change an operand, depend on the old content of a result, or give different bits in a
// second run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::test {

/// A tensor with its values; each value is exact in the type.
struct Array {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t numel() const { return static_cast<int64_t>(values.size()); }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
};

/// The nearest number of the type.
double roundTo(DType dtype, double value);

/// An array with these values, rounded to the type.
Array array(DType dtype, std::vector<int64_t> shape, std::vector<double> values);
/// Random numbers between -scale and scale; equal for equal seeds.
Array randoms(DType dtype, std::vector<int64_t> shape, uint64_t seed, double scale = 1.0);
/// Integers in [0, bound).
Array indices(DType dtype, std::vector<int64_t> shape, uint64_t seed, int64_t bound);
/// An array with one number in all elements.
Array constant(DType dtype, std::vector<int64_t> shape, double value);
/// The bytes of a step state.
Array stateArray(const StepState &state);

class KernelRun {
public:
  explicit KernelRun(std::string_view op) : op_(op) {}

  Attrs attrs;
  std::vector<ParamRange> ranges;
  std::vector<int64_t> rangesOf; ///< bounds of the shards' ranges; empty: one shard
  std::vector<int64_t> copies;   ///< by operand of the list; empty: 1 each
  int64_t step = 0, microbatch = 0, microbatches = 1;
  int64_t index = 0, groupSize = 1;

  KernelRun &in(Array operand);
  KernelRun &listed(Array operand); ///< adds an operand to the list
  KernelRun &out(DType dtype, std::vector<int64_t> shape);
  KernelRun &accumulate(Array onto); ///< a result to which the kernel adds
  KernelRun &over(Array content);    ///< a result that the kernel may write only in part
  KernelRun &inPlace(int operand);   ///< a result in the place of that operand

  /// Why the kernel refuses the call; null if it accepts it.
  const char *refusal();
  /// Runs the kernel twice, with different poison in memory; returns the results.
  std::vector<Array> run();

private:
  struct Result {
    Array initial;
    bool accumulate = false;
    int operand = -1;
  };
  struct Memory;

  std::vector<Array> runOnce(int poison);

  std::string op_;
  std::vector<Array> operands_, list_;
  std::vector<Result> results_;
};

/// The largest allowed difference: abs + |want|·factor·eps of the result's type.
struct Tolerance {
  double abs, factor;
};

/// Expects each element within the tolerance; reports the first that is not.
void expectClose(const Array &got, const std::vector<double> &want, Tolerance tolerance,
                 const std::string &what);

/// Expects old + contribution, added in fp32 and rounded once, bitwise.
void expectAccumulated(const Array &got, const Array &contribution, const Array &old);

using Function = std::function<double(const std::vector<double> &)>;

/// The derivative of f at x by its i-th argument, from five-point differences; f must be smooth
/// near x.
double numericPartial(const std::vector<double> &x, size_t i, const Function &f,
                      double step = 1e-3);

/// The derivatives by all arguments.
std::vector<double> numericGradient(const std::vector<double> &x, const Function &f,
                                    double step = 1e-3);

/// Expects about `samples` elements of `got`, evenly spread, to be derivatives of f at x.
void expectGradient(const Array &got, const std::vector<double> &x, const Function &f,
                    Tolerance tolerance, const std::string &what, size_t samples = 40);

/// Sum of a[i]·b[i].
double inner(const std::vector<double> &a, const std::vector<double> &b);

inline constexpr DType kDataTypes[] = {DType::F32, DType::BF16, DType::F16};

} // namespace shardc::kernels::test
