// Runs one kernel over fresh memory and checks what it must not do: write outside its results or
// its workspace, change an operand, read the old content of a result, or give different bits the
// second time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::test {

/// A tensor by value; every element is a number that the type holds exactly.
struct Array {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t numel() const { return static_cast<int64_t>(values.size()); }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
};

/// The nearest number that the type holds.
double roundTo(DType dtype, double value);

/// An array of given values, rounded to the type.
Array array(DType dtype, std::vector<int64_t> shape, std::vector<double> values);
/// Numbers between -scale and scale, the same for the same seed.
Array randoms(DType dtype, std::vector<int64_t> shape, uint64_t seed, double scale = 1.0);
/// Integers in [0, bound).
Array indices(DType dtype, std::vector<int64_t> shape, uint64_t seed, int64_t bound);
/// The same number everywhere.
Array constant(DType dtype, std::vector<int64_t> shape, double value);
/// The bytes of a step state.
Array stateArray(const StepState &state);

class KernelRun {
public:
  explicit KernelRun(std::string_view op) : op_(op) {}

  Attrs attrs;
  std::vector<ParamRange> ranges;
  std::vector<int64_t> rangesOf; ///< empty: one shard
  std::vector<int64_t> copies;   ///< of a list; empty: 1 of each
  int64_t step = 0, microbatch = 0, microbatches = 1;
  int64_t index = 0, groupSize = 1;

  KernelRun &in(Array operand);
  KernelRun &listed(Array operand); ///< of a list
  KernelRun &out(DType dtype, std::vector<int64_t> shape);
  KernelRun &accumulate(Array onto); ///< a result that adds to what it holds
  KernelRun &over(Array content);    ///< a result that the kernel may write in part
  KernelRun &inPlace(int operand);   ///< a result in the operand's place

  /// Why the kernel does not take the call; null if it does.
  const char *refusal();
  /// Runs the kernel twice over differently poisoned memory; gives the results.
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

/// Largest difference that is taken for rounding: abs + |want|·factor·eps of the result's type.
struct Tolerance {
  double abs, factor;
};

/// Expects each element within the tolerance of what is wanted; fails with the first that is not.
void expectClose(const Array &got, const std::vector<double> &want, Tolerance tolerance,
                 const std::string &what);

/// Expects old + contribution, added in fp32 and rounded once, to the bit.
void expectAccumulated(const Array &got, const Array &contribution, const Array &old);

using Function = std::function<double(const std::vector<double> &)>;

/// Derivative of f at x in its i-th argument by five-point differences; f is smooth near x.
double numericPartial(const std::vector<double> &x, size_t i, const Function &f,
                      double step = 1e-3);

/// All of them.
std::vector<double> numericGradient(const std::vector<double> &x, const Function &f,
                                    double step = 1e-3);

/// Expects about `samples` elements of `got`, evenly spread, to be f's derivatives at x.
void expectGradient(const Array &got, const std::vector<double> &x, const Function &f,
                    Tolerance tolerance, const std::string &what, size_t samples = 40);

/// Sum of a[i]·b[i].
double inner(const std::vector<double> &a, const std::vector<double> &b);

inline constexpr DType kDataTypes[] = {DType::F32, DType::BF16, DType::F16};

} // namespace shardc::kernels::test
