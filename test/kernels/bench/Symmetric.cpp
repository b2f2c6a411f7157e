#include "test/kernels/bench/Symmetric.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Symmetric.h"
#include "runtime/base/Philox.h"
#include "test/kernels/bench/MedianTime.h"

namespace shardc::kernels::bench {
namespace {

using cuda::Gemm, cuda::SymmetricGroup;

constexpr float kAlpha = 2.3037f, kBeta = -5.5913f; ///< coefficients of a step

/// Groups of matrices X, with two results for each: S = X·Xᵀ, and alpha·S·S + beta·S. The tile
/// kernel writes them to `c` and `mixed_`, the library to `wholes_` and `wholeMixed_`.
class Matrices {
public:
  Matrices(cuda::Queue &queue, std::vector<SymmetricGroup> groups)
      : queue_(queue), groups_(std::move(groups)) {
    std::vector<uint16_t> numbers;
    for (SymmetricGroup &group : groups_) {
      const int64_t n = group.side * group.depth * group.matrices;
      fill(numbers, group, n);
      group.x = take(n);
      group.c = take(sums(group));
      wholes_.push_back(take(sums(group)));
      mixed_.push_back(take(sums(group)));
      wholeMixed_.push_back(take(sums(group)));
      cudaMemcpy(const_cast<void *>(group.x), numbers.data(), static_cast<size_t>(2 * n),
                 cudaMemcpyHostToDevice);
    }
    workspace_ = take(cuda::kGemmWorkspace / 2);
  }
  ~Matrices() {
    for (void *memory : memory_)
      cudaFree(memory);
  }
  Matrices(const Matrices &) = delete;
  Matrices &operator=(const Matrices &) = delete;

  void square() { cuda::launchSymmetric(groups_, 1, 0, 0, queue_); }
  void mix() {
    std::vector<SymmetricGroup> squares = groups_;
    for (size_t i = 0; i < squares.size(); ++i)
      squares[i].x = wholes_[i], squares[i].c = mixed_[i], squares[i].depth = squares[i].side,
      squares[i].isAcross = false;
    cuda::launchSymmetric(squares, kAlpha, kBeta, 0, queue_);
  }
  void squareWhole() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      const SymmetricGroup &group = groups_[i];
      Gemm gemm = product(group, group.depth, group.x, wholes_[i]);
      gemm.transA = group.isAcross, gemm.transB = !group.isAcross;
      cuda::runGemm(gemm, workspace_, queue_);
    }
  }
  void mixWhole() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      Gemm gemm = product(groups_[i], groups_[i].side, wholes_[i], wholeMixed_[i]);
      gemm.added = wholes_[i], gemm.alpha = kAlpha, gemm.beta = kBeta;
      cuda::runGemm(gemm, workspace_, queue_);
    }
  }

  /// The largest difference from the library's results, relative to the largest result. Infinite if
  /// a result is not a number, as before the first product, or if all are zero.
  double differenceOfSquares() const {
    double most = 0;
    for (size_t i = 0; i < groups_.size(); ++i)
      most = std::max(most, difference(groups_[i], groups_[i].c, wholes_[i]));
    return most;
  }
  double differenceOfMixed() const {
    double most = 0;
    for (size_t i = 0; i < groups_.size(); ++i)
      most = std::max(most, difference(groups_[i], mixed_[i], wholeMixed_[i]));
    return most;
  }

private:
  static int64_t sums(const SymmetricGroup &group) {
    return group.side * group.side * group.matrices;
  }
  /// Random numbers, of which the sums of squares of a row are about 1.
  static void fill(std::vector<uint16_t> &numbers, const SymmetricGroup &group, int64_t n) {
    numbers.resize(static_cast<size_t>(n));
    constexpr int64_t kDrawn = 1 << 18;
    const float scale = 1.0f / std::sqrt(static_cast<float>(group.depth));
    for (int64_t i = 0; i < n; ++i)
      numbers[static_cast<size_t>(i)] =
          i < kDrawn
              ? toBF16(static_cast<float>(normalAt(7, static_cast<uint64_t>(i))) * scale).bits
              : numbers[static_cast<size_t>(i * 17 % (kDrawn - 5))];
  }
  void *take(int64_t elements) {
    void *memory = nullptr;
    cudaMalloc(&memory, static_cast<size_t>(2 * elements));
    cudaMemset(memory, 0xff, static_cast<size_t>(2 * elements)); // NaN
    return memory_.emplace_back(memory);
  }
  static Gemm product(const SymmetricGroup &group, int64_t depth, const void *x, void *c) {
    Gemm gemm;
    gemm.a = gemm.b = x, gemm.c = c;
    gemm.m = gemm.n = group.side, gemm.k = depth, gemm.batches = group.matrices;
    gemm.in = gemm.out = DType::BF16;
    return gemm;
  }
  static std::vector<uint16_t> read(const void *from, int64_t n) {
    std::vector<uint16_t> to(static_cast<size_t>(n));
    cudaMemcpy(to.data(), from, static_cast<size_t>(2 * n), cudaMemcpyDeviceToHost);
    return to;
  }
  static double difference(const SymmetricGroup &group, const void *got, const void *want) {
    std::vector<uint16_t> a = read(got, sums(group)), b = read(want, sums(group));
    double most = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double x = toFloat(BF16{a[i]}), y = toFloat(BF16{b[i]});
      if (!(std::abs(x - y) <= 1e9))
        return INFINITY;
      most = std::max(most, std::abs(x - y)), largest = std::max(largest, std::abs(y));
    }
    return largest > 0 ? most / largest : INFINITY;
  }

  cuda::Queue &queue_;
  std::vector<SymmetricGroup> groups_;
  std::vector<void *> memory_, wholes_, mixed_, wholeMixed_;
  void *workspace_;
};

void timeGroups(cuda::Queue &queue, const char *name, std::vector<SymmetricGroup> groups) {
  Matrices matrices(queue, groups);
  double square = 0, polynomial = 0; // operations of whole products
  for (const SymmetricGroup &group : groups) {
    auto side = static_cast<double>(group.side);
    double each = 2 * side * side * static_cast<double>(group.matrices);
    square += each * static_cast<double>(group.depth), polynomial += each * side;
  }
  auto print = [&](const char *what, double flops, double tiles, double whole, double difference) {
    std::printf("%-24s %-6s %9.1f us %7.1f TFLOP/s %9.1f us %7.1f TFLOP/s %6.2f x %10.1e %s\n",
                name, what, tiles, flops / tiles * 1e-6, whole, flops / whole * 1e-6, whole / tiles,
                difference, cudaGetErrorString(cudaGetLastError()));
    std::fflush(stdout);
  };
  double whole = medianMicroseconds([&] { matrices.squareWhole(); });
  double tiles = medianMicroseconds([&] { matrices.square(); });
  print("x xT", square, tiles, whole, matrices.differenceOfSquares());
  whole = medianMicroseconds([&] { matrices.mixWhole(); });
  tiles = medianMicroseconds([&] { matrices.mix(); });
  print("bA+cAA", polynomial, tiles, whole, matrices.differenceOfMixed());
  if (std::optional<Report> failed = queue.takeError())
    std::printf("%s\n", failed->text.c_str());
}

} // namespace

void timeSymmetric() {
  cuda::Context context(cuda::ContextOptions::fromEnvironment());
  cuda::Queue queue(context, nullptr);
  std::printf("%-24s %-6s %s\n", "matrices", "",
              "tiles up to the diagonal, whole by the library, "
              "their ratio, largest difference");
  auto of = [](int64_t side, int64_t depth, int64_t matrices, bool isAcross = false) {
    return SymmetricGroup{nullptr, nullptr, side, depth, matrices, isAcross};
  };
  timeGroups(queue, "odd sizes",
             {of(8, 16, 3), of(72, 40, 2), of(136, 200, 5, true), of(264, 264, 3), of(520, 1000, 2),
              of(1288, 1032, 1, true), of(640, 4104, 2, true)});
  timeGroups(queue, "many shapes",
             {of(64, 64, 64), of(128, 256, 9), of(384, 512, 5, true), of(256, 256, 7),
              of(768, 2048, 3), of(512, 520, 3, true), of(8, 8, 3), of(16, 8, 2), of(24, 48, 3),
              of(192, 1032, 4)});
  timeGroups(queue, "16 of 1024 x 1024", {of(1024, 1024, 16)});
  timeGroups(queue, "16 of 1024 x 4096", {of(1024, 4096, 16)});
  timeGroups(queue, "16 of 2048 x 2048", {of(2048, 2048, 16)});
  timeGroups(queue, "16 of 2048 x 2048 across", {of(2048, 2048, 16, true)});
  timeGroups(queue, "16 of 4096 x 4096", {of(4096, 4096, 16)});
  timeGroups(queue, "1 of 2048 x 16384 across", {of(2048, 16384, 1, true)});
  timeGroups(queue, "1 of 8192 x 8192", {of(8192, 8192, 1)});
  timeGroups(queue, "llama_1b layer",
             {of(2048, 16384, 1, true), of(2048, 8192, 1), of(2048, 2048, 2), of(512, 2048, 2)});
  timeGroups(queue, "llama3_8b layer",
             {of(4096, 28672, 1, true), of(4096, 14336, 1), of(4096, 4096, 2), of(1024, 4096, 2)});
  timeGroups(queue, "qwen3_moe 32 experts", {of(1536, 2048, 32), of(768, 2048, 32)});
}

} // namespace shardc::kernels::bench
