// The suite that every backend must pass: the promises of hal/, tested from outside. It is compiled
// once; a backend registers its cases in a file of its own and links the suite.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/hal/Backend.h"

namespace shardc::conformance {

/// One configuration of the suite, and the few kernels that it needs, in the backend's form.
struct BackendCase {
  std::string name;
  std::function<Result<std::unique_ptr<hal::Backend>>(int ranks)> make;
  kernels::KernelFn addValue =
      nullptr; ///< out[0][i] = in[0][i] + attrs.value, f32; slow enough to expose races
  kernels::KernelFn writeStep = nullptr; ///< out[0] i64[3] = step, microbatch, microbatches
  /// The same with zones around buffers; empty if the backend has no such thing.
  std::function<Result<std::unique_ptr<hal::Backend>>(int ranks)> makeGuarded;
  /// False: all calls are made, and no results are looked at.
  bool computes = true;
};

inline std::ostream &operator<<(std::ostream &out, const BackendCase &case_) {
  return out << case_.name;
}

struct Sum;

class Conformance : public ::testing::TestWithParam<BackendCase> {
public:
  /// Makes the backend; skips where it is not available with so many ranks. Tests say START.
  void start(int ranks) { startWith(GetParam().make, ranks); }
  void startWith(const std::function<Result<std::unique_ptr<hal::Backend>>(int)> &make, int ranks);
  /// Whether results have values. Tests ask before they look at some.
  bool computes() const { return GetParam().computes; }
  hal::Device &device(int rank) { return *backend->devices()[rank]; }
  hal::Stream &stream(int rank, const std::string &name);
  std::unique_ptr<hal::Event> event(int rank);
  /// Device memory that lives as long as the test.
  uint8_t *memory(int rank, int64_t bytes);
  /// Writes to and reads from device memory through the rank's stream "transfer"; waits.
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
  /// Sums in every form that a plan has, in whatever order the backend likes.
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

/// Puts numbers into a rank's memory, and gets them, as f32, bf16 or f16.
uint8_t *putValues(Conformance &test, int rank, DType type, const std::vector<float> &values);
std::vector<float> getValues(Conformance &test, int rank, DType type, const uint8_t *from,
                             int64_t count);

/// Starts the backend, or leaves the test.
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
