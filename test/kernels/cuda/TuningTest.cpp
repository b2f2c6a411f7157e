// Products with timed algorithms equal those with any other algorithm, also if choices come from a
// file that names algorithms which the library refuses.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Choices.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Registry.h"
#include "kernels/cuda/Tuning.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

using cuda::ChoiceRecord;

constexpr int64_t kM = 528, kN = 784, kK = 272;
/// Bytes of a key and of a choice in a line of the text.
constexpr size_t kKeyBytes = 120, kChoiceBytes = 72;

struct FreeDevice {
  void operator()(void *address) const { cudaFree(address); }
};
using Memory = std::unique_ptr<void, FreeDevice>;

Memory allocate(size_t bytes) {
  void *address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, bytes), cudaSuccess);
  return Memory(address);
}

/// Small integers, whose products and sums are exact in any order.
std::vector<float> numbers(int64_t count, int64_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    out[static_cast<size_t>(i)] = static_cast<float>((i * seed + i / 7) % 5 - 2);
  return out;
}

void copyAsBf16(const std::vector<float> &values, void *to) {
  std::vector<uint16_t> bits;
  for (float value : values)
    bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)); // exact
  ASSERT_EQ(cudaMemcpy(to, bits.data(), bits.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
}

class Tuned : public testing::Test {
protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    if (cuda::ContextOptions::fromEnvironment().ownKernels)
      GTEST_SKIP() << "products are hand-written";
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    queue_ = std::make_unique<cuda::Queue>(context_, stream_);
    a_ = allocate(kM * kK * 2), b_ = allocate(kK * kN * 2), c_ = allocate(kM * kN * 4);
    workspace_ = allocate(cuda::kGemmWorkspace);
    gemm_.a = a_.get(), gemm_.b = b_.get(), gemm_.c = c_.get();
    gemm_.m = kM, gemm_.n = kN, gemm_.k = kK;
    gemm_.in = DType::BF16, gemm_.out = DType::F32;
  }
  void TearDown() override {
    if (stream_)
      cudaStreamDestroy(stream_);
  }

  void tune() { cuda::tuneGemm(gemm_, workspace_.get(), *queue_); }

  void expectTheProduct() {
    std::vector<float> a = numbers(kM * kK, 3), b = numbers(kK * kN, 11);
    copyAsBf16(a, a_.get());
    copyAsBf16(b, b_.get());
    ASSERT_EQ(cudaMemset(c_.get(), 0xff, kM * kN * 4), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cuda::runGemm(gemm_, workspace_.get(), *queue_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_FALSE(queue_->takeError());
    std::vector<float> got(kM * kN), want(kM * kN, 0.0f);
    ASSERT_EQ(cudaMemcpy(got.data(), c_.get(), got.size() * 4, cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (int64_t m = 0; m < kM; ++m)
      for (int64_t k = 0; k < kK; ++k)
        for (int64_t n = 0; n < kN; ++n)
          want[static_cast<size_t>(m * kN + n)] +=
              a[static_cast<size_t>(m * kK + k)] * b[static_cast<size_t>(k * kN + n)];
    EXPECT_TRUE(got == want);
  }

  /// The first line of the choices' text, which names their library and device.
  std::string head() {
    std::string text = cuda::gemmChoices(context_);
    return text.substr(0, text.find('\n') + 1);
  }
  /// The choice for this test's product; null if there is none. Keys begin with m, n and k.
  static const ChoiceRecord *find(const std::vector<ChoiceRecord> &records) {
    int64_t extents[] = {kM, kN, kK};
    for (const ChoiceRecord &record : records)
      if (std::memcmp(record.key.data(), extents, sizeof extents) == 0)
        return &record;
    return nullptr;
  }
  std::vector<ChoiceRecord> choices() {
    return cuda::readChoices(head(), cuda::gemmChoices(context_), kKeyBytes, kChoiceBytes);
  }

  cuda::Gemm gemm_;
  cuda::Context context_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Queue> queue_;
  Memory a_, b_, c_, workspace_;
};

TEST_F(Tuned, ProductsAreThoseOfTheHost) {
  expectTheProduct(); // the library chooses the algorithm
  tune();
  std::vector<ChoiceRecord> made = choices();
  ASSERT_NE(find(made), nullptr);
  expectTheProduct();
  cuda::takeGemmChoices(context_,
                        // The choices may come from a file or another rank.
                        cuda::gemmChoices(context_));
  EXPECT_EQ(choices(), made);
  expectTheProduct();
}

TEST_F(Tuned, WhatTheLibraryDoesNotTakeIsForgotten) {
  expectTheProduct();
  tune();
  std::vector<ChoiceRecord> made = choices();
  const ChoiceRecord *mine = find(made);
  ASSERT_NE(mine, nullptr);
  std::string noAlgorithm(kChoiceBytes, '\xff'), apart = mine->choice;
  std::fill(noAlgorithm.end() - 8, noAlgorithm.end(), '\0');
  apart[kChoiceBytes - 8] = 1; // this product has no epilogue that could run apart
  for (const std::string &wrong : {noAlgorithm, apart}) {
    cuda::takeGemmChoices(context_, cuda::writeChoices(head(), {{mine->key, wrong}}));
    EXPECT_EQ(find(choices()), nullptr);
    expectTheProduct();
    cuda::takeGemmChoices(context_, cuda::writeChoices(head(), {*mine}));
    EXPECT_EQ(choices(), made);
  }
}

} // namespace
} // namespace shardc::kernels::test
