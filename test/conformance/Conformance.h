// The suite that every backend must pass: it tests the promises of hal/ from outside. It is
// compiled once; a backend registers its cases in its own file and links the suite.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/hal/Backend.h"

namespace shardc::conformance {

/// A configuration of the suite, and the few kernels that the suite needs, for the backend.
struct BackendCase {
  std::string name;
  std::function<Result<std::unique_ptr<hal::Backend>>(int ranks)> make;
  kernels::KernelFn addValue =
      nullptr; ///< out[0][i] = in[0][i] + attrs.value, f32; slow enough to expose races
  kernels::KernelFn writeStep = nullptr; ///< out[0] i64[3] = step, microbatch, microbatches
  /// Makes the backend with guard zones around buffers; empty if it has none.
  std::function<Result<std::unique_ptr<hal::Backend>>(int ranks)> makeGuarded;
  /// If false, all calls are made, but their results are not checked.
  bool computes = true;
};

inline std::ostream &operator<<(std::ostream &out, const BackendCase &case_) {
  return out << case_.name;
}

struct Sum;

class Conformance : public ::testing::TestWithParam<BackendCase> {
public:
  /// Makes the backend; skips the test if it does not support this number of ranks. Tests call
  /// START.
  void start(int ranks) { startWith(GetParam().make, ranks); }
  void startWith(const std::function<Result<std::unique_ptr<hal::Backend>>(int)> &make, int ranks);
  /// Whether results have values. Tests ask before they check results.
  bool computes() const { return GetParam().computes; }
  hal::Device &device(int rank) { return *backend->devices()[rank]; }
  hal::Stream &stream(int rank, const std::string &name);
  std::unique_ptr<hal::Event> event(int rank);
  /// Device memory that lives as long as the test.
  uint8_t *memory(int rank, int64_t bytes);
  /// Write to and read from device memory through the rank's stream "transfer", and wait for it.
  void write(int rank, void *to, const void *from, int64_t bytes);
  void read(int rank, void *to, const void *from, int64_t bytes);

  template <typename T> T *put(int rank, const std::vector<T> &values) {
    auto *to = reinterpret_cast<T *>(memory(rank, static_cast<int64_t>(values.size() * sizeof(T))));
    write(rank, to, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    return to;
  }
  template <typename T> std::vector<T> get(int rank, const T *from, size_t count) {
    std::vector<T> values(count);
    read(rank, values.data(), from, static_cast<int64_t>(count * sizeof(T)));
    return values;
  }
  /// Tests sums in every form that plans use, in an order that the backend chooses.
  void addInAnyOrder(int ranks);
  /// A call of addValue on `count` elements; lives as long as the test.
  kernels::Call &addCall(const float *in, float *out, int64_t count, double value);

  std::unique_ptr<hal::Backend> backend;

private:
  double addOnce(const Sum &sum, int64_t count, hal::Channel &channel);

  struct Named {
    int rank;
    std::string name;
    std::unique_ptr<hal::Stream> stream;
  };
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
  std::vector<std::unique_ptr<kernels::Call>> calls_;
  std::vector<Named> streams_;
};

/// Write numbers to a rank's memory as f32, bf16 or f16, and read them.
uint8_t *putValues(Conformance &test, int rank, DType type, const std::vector<float> &values);
std::vector<float> getValues(Conformance &test, int rank, DType type, const uint8_t *from,
                             int64_t count);

/// Starts the backend, or returns from the test.
#define START(ranks)                                                                               \
  do {                                                                                             \
    start(ranks);                                                                                  \
    if (IsSkipped() || HasFatalFailure())                                                          \
      return;                                                                                      \
  } while (false)

#define ASSERT_STATUS(expr)                                                                        \
  do {                                                                                             \
    ::shardc::Status status_ = (expr);                                                             \
    ASSERT_TRUE(status_.isOk()) << status_.message();                                              \
  } while (false)

} // namespace shardc::conformance
