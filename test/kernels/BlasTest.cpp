// Rows of products must not depend on the number of other rows that are computed with them, or on
// their place among them, with any of BLIS' kernels that this machine can run. BLIS chooses its
// kernels once per process, so each set of kernels is tested in its own process.
#include "kernels/host/Blas.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shardc::kernels::test {
namespace {

using host::Factor;
using host::gemm;

constexpr int64_t kRowsMax = 130;
constexpr int kKernelsMax = 40; // BLIS 0.9 has 27

struct Product {
  int64_t n, k;
  bool transposedA, transposedB;
  float alpha, beta;
};

std::vector<float> randoms(int64_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float &value : out)
    value = normal(bits);
  return out;
}

/// Operands, and the old content of the result.
struct Operands {
  Product product;
  std::vector<float> a, b, c;

  explicit Operands(const Product &p)
      : product(p), a(randoms(kRowsMax * p.k, 1)), b(randoms(p.n * p.k, 2)),
        c(randoms(kRowsMax * p.n, 3)) {}

  /// Rows [begin, end) of the product.
  std::vector<float> rows(int64_t begin, int64_t end) const {
    const auto &[n, k, transposedA, transposedB, alpha, beta] = product;
    std::vector<float> out(c.begin() + begin * n, c.begin() + end * n);
    Factor first = transposedA ? Factor{a.data() + begin, kRowsMax, true}
                               : Factor{a.data() + begin * k, k, false};
    gemm(end - begin, n, k, alpha, first, {b.data(), transposedB ? k : n, transposedB}, beta,
         out.data(), n);
    return out;
  }

  double exact(int64_t i, int64_t j) const {
    const auto &[n, k, transposedA, transposedB, alpha, beta] = product;
    double sum = 0;
    for (int64_t l = 0; l < k; ++l)
      sum += double{a[static_cast<size_t>(transposedA ? l * kRowsMax + i : i * k + l)]} *
             b[static_cast<size_t>(transposedB ? j * k + l : l * n + j)];
    return alpha * sum + beta * double{c[static_cast<size_t>(i * n + j)]};
  }
};

std::vector<Product> allProducts() {
  std::vector<Product> out;
  for (auto [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {257, 33}, {16, 300}, {1, 64}, {96, 1}})
    for (bool transposedA : {false, true})
      for (bool transposedB : {false, true}) {
        out.push_back({n, k, transposedA, transposedB, 1.0f, 0.0f});
        out.push_back({n, k, transposedA, transposedB, 0.25f, 1.0f});
      }
  return out;
}

bool sameBits(const std::vector<float> &rows, const float *expected) {
  return std::memcmp(rows.data(), expected, rows.size() * sizeof(float)) == 0;
}

void checkRows(const Product &product) {
  Operands operands(product);
  std::vector<float> whole = operands.rows(0, kRowsMax);
  for (int64_t i : {int64_t{0}, kRowsMax / 2, kRowsMax - 1})
    for (int64_t j : {int64_t{0}, product.n - 1})
      ASSERT_NEAR(whole[static_cast<size_t>(i * product.n + j)], operands.exact(i, j), 1e-4);
  for (int64_t count = 1; count < kRowsMax; ++count)
    for (int64_t begin : {int64_t{0}, (kRowsMax - count) / 2, kRowsMax - count})
      ASSERT_TRUE(sameBits(operands.rows(begin, begin + count),
                           &whole[static_cast<size_t>(begin * product.n)]))
          << count << " rows from row " << begin << ", n " << product.n << ", k " << product.k;
}

TEST(Blas, RowsDoNotDependOnEachOther) {
  for (const Product &product : allProducts())
    ASSERT_NO_FATAL_FAILURE(checkRows(product));
}

/// Runs a test of this program with set `number` of BLIS' kernels. Returns its status and its
/// output.
std::pair<int, std::string> runWithKernels(int number, const std::string &test) {
  int pipe[2];
  if (::pipe(pipe) != 0)
    return {-1, "no pipe"};
  pid_t child = fork();
  if (child == 0) {
    dup2(pipe[1], STDOUT_FILENO);
    dup2(pipe[1], STDERR_FILENO);
    setenv("BLIS_ARCH_TYPE", std::to_string(number).c_str(), 1);
    std::string filter = "--gtest_filter=" + test;
    execl("/proc/self/exe", "unit_kernels", filter.c_str(), nullptr);
    _exit(127);
  }
  close(pipe[1]);
  std::string printed;
  char buffer[4096];
  for (ssize_t got; (got = read(pipe[0], buffer, sizeof buffer)) > 0;)
    printed.append(buffer, static_cast<size_t>(got));
  close(pipe[0]);
  int status = -1;
  waitpid(child, &status, 0);
  return {status, printed};
}

/// Prints the name of the kernels; without kernels of the chosen number, BLIS ends the process by a
/// signal.
TEST(Blas, ComputesOneProduct) {
  Operands operands({64, 64, false, false, 1.0f, 0.0f});
  ASSERT_NEAR(operands.rows(0, 64)[0], operands.exact(0, 0), 1e-4);
  std::printf("kernels: %s\n", host::blasVersion().c_str());
}

TEST(Blas, RowsDoNotDependOnEachOtherWithAnyKernels) {
  int found = 0;
  for (int number = 0; number < kKernelsMax; ++number) {
    auto [one, name] = runWithKernels(number, "Blas.ComputesOneProduct");
    if (WIFSIGNALED(one))
      continue; // the set does not exist, or the processor lacks an instruction
    ASSERT_EQ(one, 0) << name;
    auto [status, printed] = runWithKernels(number, "Blas.RowsDoNotDependOnEachOther");
    EXPECT_EQ(status, 0) << name << printed;
    ++found;
  }
  EXPECT_GE(found, 2); // the generic kernels, and others
}

} // namespace
} // namespace shardc::kernels::test
