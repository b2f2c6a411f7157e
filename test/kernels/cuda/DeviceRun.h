// Runs a CUDA kernel on a call with host memory: copies operands to the device between guard bytes,
// poisons results, runs the kernel twice, and checks its side effects.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Context.h"
#include "test/kernels/bench/Cases.h"

namespace shardc::kernels::test {

/// The bytes of each result.
using Results = std::vector<std::vector<std::byte>>;

/// A call with its own memory, made by makeCase; tests may change it before it runs.
class DeviceRun {
public:
  DeviceRun(std::string_view op, DType data, const bench::Model &model);

  Call &call() { return case_->call; }
  bench::Case &data() { return *case_; }
  /// A result begins with the content of its host memory instead of poison: for results to which
  /// the kernel adds, or which it writes only in part.
  DeviceRun &keep(int result);
  /// Gives an operand or result another type and new memory; with `random`, random numbers below 1.
  void retype(Tensor &tensor, DType dtype, bool random);
  void fill(Tensor &tensor, uint64_t seed, double scale = 1);

  /// Allows libraries' kernels to add in any order.
  DeviceRun &inAnyOrder();

  /// The host kernel's results.
  Results onHost() const;
  /// The CUDA kernel's results. Expects equal bits in both runs if `sameBits`, no other memory
  /// changed, and unchanged operands.
  Results onDevice(bool sameBits = true);
  /// Compares both: the L2 distance of the results, divided by the host's norm, must be within the
  /// tolerance of its type, and no element may differ by more than 8 times the tolerance of the
  /// largest.
  void compare(double f32Tolerance = 2e-6, double bf16Tolerance = 3e-3);

private:
  Results onDeviceOnce(int poison);

  std::string op_;
  std::unique_ptr<bench::Case> case_;
  bool deterministic_ = true;
  unsigned kept_ = 0;
};

/// Skips unless SHARDC_GPU is 1.
#define SKIP_WITHOUT_GPU()                                                                         \
  if (!::shardc::kernels::test::wantsGpu())                                                        \
  GTEST_SKIP() << "SHARDC_GPU is not 1"
bool wantsGpu();

/// CUDA contexts that all tests share, because libraries start slowly: one keeps the order of
/// additions, the other does not. Other options are from the environment.
cuda::Context &testContext(bool deterministic = true);

/// Makes the kernel add to result `result`, which gets random numbers.
void accumulate(DeviceRun &run, int result);

/// The elements of a result.
std::vector<double> valuesOf(const Tensor &tensor, const std::vector<std::byte> &bytes);

/// Expects that two results agree within the tolerance of their type.
void expectNear(const Tensor &tensor, const std::vector<std::byte> &got,
                const std::vector<std::byte> &want, double f32Tolerance, double bf16Tolerance,
                const std::string &what);

/// Sets an element of f32, bf16 or f16 to NaN.
void setNan(const Tensor &tensor, int64_t i);
/// Gives an operand or result another type and shape, with new random numbers.
void shape(DeviceRun &run, Tensor &tensor, DType dtype, std::initializer_list<int64_t> extents);

/// The name of a test's case, as lists of tests show it.
template <typename Case> std::string nameOfCase(const testing::TestParamInfo<Case> &info) {
  return nameOf(info.param);
}

} // namespace shardc::kernels::test
