// Runs a CUDA kernel on a call with host memory: copies it to the device between guard bytes,
// poisons the kernel's results, runs it twice, and checks what it must not do.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/api/Kernel.h"
#include "kernels/bench/Cases.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::test {

/// Bytes of each result.
using Results = std::vector<std::vector<std::byte>>;

/// A call with memory of its own, as makeCase gives it, to be changed before it runs.
class DeviceRun {
public:
  DeviceRun(std::string_view op, DType data, const bench::Model &model);

  Call &call() { return case_->call; }
  bench::Case &data() { return *case_; }
  /// Makes a result begin as what its host memory holds instead of poison: it accumulates, or is
  /// written in part.
  DeviceRun &keep(int result);
  /// An operand or result of another type, with fresh memory; operands get random numbers below 1.
  void retype(Tensor &tensor, DType dtype, bool random);
  void fill(Tensor &tensor, uint64_t seed, double scale = 1);

  /// Lets kernels of libraries add in any order.
  DeviceRun &inAnyOrder();

  /// What the host kernel makes of it.
  Results onHost() const;
  /// What the CUDA kernel makes of it; the same bits twice unless told otherwise, nothing else
  /// touched, no operand changed.
  Results onDevice(bool sameBits = true);
  /// Expects both to agree: the distance of a result to the host's in units of its length below the
  /// tolerance of its type, and no element further off than 8 times that of the largest.
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

/// What the CUDA kernels of all tests keep, since libraries take long to begin: one context that
/// keeps the order of additions and one that does not, otherwise as the environment says.
cuda::Context &testContext(bool deterministic = true);

/// Result `result` adds to numbers of its own.
void accumulate(DeviceRun &run, int result);

/// A result's elements.
std::vector<double> valuesOf(const Tensor &tensor, const std::vector<std::byte> &bytes);

/// Expects two results to agree within the tolerance of their type.
void expectNear(const Tensor &tensor, const std::vector<std::byte> &got,
                const std::vector<std::byte> &want, double f32Tolerance, double bf16Tolerance,
                const std::string &what);

/// Makes an element of f32, bf16 or f16 no number.
void setNan(const Tensor &tensor, int64_t i);
/// Gives an operand or result of the run another type and shape, with new random numbers.
void shape(DeviceRun &run, Tensor &tensor, DType dtype, std::initializer_list<int64_t> extents);

/// The name of a test's case, which lists of tests show, too.
template <typename Case> std::string nameOfCase(const testing::TestParamInfo<Case> &info) {
  return nameOf(info.param);
}

} // namespace shardc::kernels::test
