#include "kernels/host/Convert.h"

#include <algorithm>
#include <cstring>

namespace shardc::kernels::host {
namespace {

SHARDC_CLONES void addFloats(const float *values, int64_t n, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] += values[i];
}

SHARDC_CLONES void addBF16s(const float *values, int64_t n, BF16 *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toBF16(toFloat(to[i]) + values[i]);
}

SHARDC_CLONES void addF16s(const float *values, int64_t n, F16 *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toF16(toFloat(to[i]) + values[i]);
}

SHARDC_CLONES void fromBF16s(const BF16 *from, int64_t n, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toFloat(from[i]);
}

SHARDC_CLONES void fromF16s(const F16 *from, int64_t n, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toFloat(from[i]);
}

SHARDC_CLONES void toBF16s(const float *from, int64_t n, BF16 *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toBF16(from[i]);
}

SHARDC_CLONES void toF16s(const float *from, int64_t n, F16 *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = toF16(from[i]);
}

/// The fixed order of sums: element i is added to lane i mod 8, then lanes are added pairwise.
constexpr int kLanes = 8;

double addLanes(const double *lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

} // namespace

const float *readF32(const Tensor &t, int64_t offset, int64_t n, float *buffer) {
  if (t.dtype == DType::F32)
    return static_cast<const float *>(t.data) + offset;
  if (t.dtype == DType::BF16)
    fromBF16s(static_cast<const BF16 *>(t.data) + offset, n, buffer);
  else
    fromF16s(static_cast<const F16 *>(t.data) + offset, n, buffer);
  return buffer;
}

void writeF32(const Tensor &t, int64_t offset, int64_t n, const float *values) {
  if (t.dtype == DType::F32) {
    float *to = static_cast<float *>(t.data) + offset;
    if (t.accumulate)
      addFloats(values, n, to);
    else if (to != values)
      std::memcpy(to, values, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (t.dtype == DType::BF16) {
    BF16 *to = static_cast<BF16 *>(t.data) + offset;
    t.accumulate ? addBF16s(values, n, to) : toBF16s(values, n, to);
    return;
  }
  F16 *to = static_cast<F16 *>(t.data) + offset;
  t.accumulate ? addF16s(values, n, to) : toF16s(values, n, to);
}

SHARDC_CLONES double dot(const float *a, const float *b, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  for (int lane = 0; i < n; ++i, ++lane)
    lanes[lane] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return addLanes(lanes);
}

SHARDC_CLONES double sum(const float *a, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] += static_cast<double>(a[i + lane]);
  for (int lane = 0; i < n; ++i, ++lane)
    lanes[lane] += static_cast<double>(a[i]);
  return addLanes(lanes);
}

void addSquares(const Tensor &t, int64_t begin, int64_t end, double times, double &total) {
  float buffer[kBlock];
  for (; begin < end; begin += kBlock) {
    int64_t n = std::min(kBlock, end - begin);
    const float *values = readF32(t, begin, n, buffer);
    total += times * dot(values, values, n);
  }
}

SHARDC_CLONES float largest(const float *a, int64_t n) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, a[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = a[i + lane] > lanes[lane] ? a[i + lane] : lanes[lane];
  for (; i < n; ++i)
    lanes[0] = a[i] > lanes[0] ? a[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

} // namespace shardc::kernels::host
