// Rates of kernels on one H200, inside captured steps, without overlapping transfers
// (docs/benchmarks/cuda-step-time.md; for 4,096 channels from 16 layers of llama3_8b on one GPU,
// docs/benchmarks/cuda-multi-gpu.md). Other devices are assumed to reach the same fraction of their
// sustained rates. Arrays of two numbers are of the forward and of the backward op. KernelTable.def
// has the rates of ops that memory limits.
#pragma once

#include <array>

#include "compiler/predict/KernelRates.h"

namespace shardc::predict {

/// Matrix products: TFLOP/s by the smallest of m, n and k.
inline constexpr Point kProductTflops[] = {{768, 712}, {2048, 745}, {4096, 743}};

/// The fraction of that rate that grouped products reach, by rows per group.
inline constexpr Point kGroupedShares[] = {{1024, 0.82}, {4096, 0.97}};

/// Output projection with loss and both gradients: TFLOP/s by hidden size.
inline constexpr Point kHeadTflops[] = {{768, 625}, {2048, 680}, {4096, 690}};

/// The factor by which the power limit reduces the rates of products, head and attention, by the
/// fraction of a step that is products and head. Linear between the two points.
inline constexpr Point kPowerFactors[] = {{0.45, 1.055}, {0.80, 0.91}};

/// TFLOP/s of cuDNN's attention, by head size and sequence length.
struct AttentionRate {
  int64_t head;
  double sequence, forward, backward;
};
inline constexpr AttentionRate kAttentionTflops[] = {
    {64, 512, 223, 142},   {64, 1024, 282, 213},  {64, 2048, 322, 259},  {64, 4096, 378, 317},
    {64, 8192, 385, 348},  {64, 16384, 395, 365}, {64, 32768, 413, 367}, {64, 131072, 419, 392},
    {128, 1024, 365, 255}, {128, 2048, 481, 318}, {128, 4096, 552, 396}, {128, 8192, 545, 424},
};
/// Seconds per call in addition.
inline constexpr std::array<double, 2> kAttentionBegin = {5 * 1e-6, 12 * 1e-6};

/// The hand-written kernels for Hopper's tensor cores, as a fraction of cuDNN's rate
/// (docs/benchmarks/documents.md).
inline constexpr std::array<double, 2> kTileAttention = {0.93, 0.96};

/// TFLOP/s of the hand-written kernels by mma.sync, for heads of up to `channels`, for 4,096
/// positions (docs/benchmarks/mma.md).
struct MmaRate {
  int64_t channels;
  double forward, backward;
};
inline constexpr MmaRate kMmaAttentionTflops[] = {
    {64, 258, 172}, {128, 274, 185}, {192, 253, 164}, {256, 227, 116}};
/// Factor of dropout on them.
inline constexpr std::array<double, 2> kMmaDropout = {0.5, 0.63};
/// Grouped products by mma.sync, as a fraction of the rate of products.
inline constexpr double kMmaGrouped = 0.5;

/// TFLOP/s of the hand-written kernels on CUDA cores, which run calls that no others support
/// (runtime/base/KernelPath.h). Measured separately (docs/benchmarks/cuda-one-gpu.md).
inline constexpr std::array<double, 2> kPlainAttentionTflops = {6.8, 4.4};

/// The fraction of the peak of fp32 that grouped products on CUDA cores reach, with 128 fp32 cores
/// a multiprocessor and with 64. Assumed: 256 of the 650 instructions of 16 steps are products.
/// `shardc-cuda-bench` with SHARDC_KERNEL_PATH=grouped:plain measures it.
inline constexpr std::array<double, 2> kPlainGroupedShares = {0.25, 0.4};

/// GB/s of delta rules on CUDA cores, with operands and results counted once
/// (docs/benchmarks/linear-attention.md).
inline constexpr std::array<double, 2> kPlainDeltaGBs = {11, 1.4};

} // namespace shardc::predict
