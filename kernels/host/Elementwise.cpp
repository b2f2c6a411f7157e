// Elementwise ops: add c = a + b, bias_add y[t,:] = x[t,:] + bias, cast y = x in another type, fill
// x = value. Operands and results are f32, bf16 or f16 each, computed in fp32 and rounded once. add
// and cast may accumulate. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

SHARDC_CLONES void addBlock(const float *a, const float *b, int64_t n, float *c) {
  for (int64_t i = 0; i < n; ++i)
    c[i] = a[i] + b[i];
}

void runAdd(const Call &call) {
  float a[kBlock], b[kBlock], c[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    float *to = targetF32(call.out[0], begin, c);
    addBlock(readF32(call.in[0], begin, n, a), readF32(call.in[1], begin, n, b), n, to);
    writeF32(call.out[0], begin, n, to);
  }
}

/// Columns are the outer loop, so that a block of the bias is converted once for all rows.
void runBiasAdd(const Call &call) {
  float x[kBlock], bias[kBlock], y[kBlock];
  int64_t rows = call.out[0].rows(), cols = call.out[0].cols();
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    int64_t n = std::min(kBlock, cols - begin);
    const float *term = readF32(call.in[1], begin, n, bias);
    for (int64_t row = 0; row < rows; ++row) {
      int64_t offset = row * cols + begin;
      float *to = targetF32(call.out[0], offset, y);
      addBlock(readF32(call.in[0], offset, n, x), term, n, to);
      writeF32(call.out[0], offset, n, to);
    }
  }
}

/// Writes n numbers times `scale` to `to`, which may be `from`.
const float *scaled(const float *from, int64_t n, float scale, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = from[i] * scale;
  return to;
}

void runCast(const Call &call) {
  float x[kBlock];
  const auto scale = static_cast<float>(call.attrs.scale);
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    const float *from = readF32(call.in[0], begin, n, x);
    if (scale != 1)
      from = scaled(from, n, scale, x);
    writeF32(call.out[0], begin, n, from);
  }
}

const char *acceptsFill(const Call &call) {
  DType type = call.out[0].dtype;
  SHARDC_REQUIRE(isData(call.out[0]) || type == DType::F64 || type == DType::I32 ||
                     type == DType::I64,
                 "fill writes f32, bf16, f16, f64, i32 and i64");
  // The value of an integer fill is a float attribute too, so it must be exact in that type.
  bool integral = type == DType::I32 || type == DType::I64;
  double value = call.attrs.value, limit = type == DType::I32 ? 0x1p31 : 0x1p53;
  SHARDC_REQUIRE(!integral || (value >= -limit && value < limit &&
                               value == static_cast<double>(static_cast<int64_t>(value))),
                 "the value to fill with is not an integer of the result's type");
  return nullptr;
}

template <typename T> void fill(const Tensor &x, T value) {
  std::fill_n(static_cast<T *>(x.data), x.numel(), value);
}

/// The value is a double, whatever the type of the result.
void runFill(const Call &call) {
  const Tensor &x = call.out[0];
  double value = call.attrs.value;
  if (x.dtype == DType::F32)
    fill(x, static_cast<float>(value));
  else if (x.dtype == DType::BF16)
    fill(x, toBF16(static_cast<float>(value)));
  else if (x.dtype == DType::F16)
    fill(x, toF16(static_cast<float>(value)));
  else if (x.dtype == DType::F64)
    fill(x, value);
  else if (x.dtype == DType::I32)
    fill(x, static_cast<int32_t>(value));
  else
    fill(x, static_cast<int64_t>(value));
}

} // namespace

SHARDC_HOST_KERNEL(Add, runAdd, nullptr, 1);
SHARDC_HOST_KERNEL(BiasAdd, runBiasAdd);
SHARDC_HOST_KERNEL(Cast, runCast, nullptr, 1);
SHARDC_HOST_KERNEL(Fill, runFill, acceptsFill);

} // namespace shardc::kernels::host
