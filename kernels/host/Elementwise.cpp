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

const char *acceptsAdd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1, 1}));
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  SHARDC_REQUIRE(isData(a) && isData(b) && isData(c), "add takes f32, bf16 and f16");
  SHARDC_REQUIRE(a.numel() == c.numel() && b.numel() == c.numel(),
                 "the terms and the sum differ in size");
  return nullptr;
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

const char *acceptsBiasAdd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  const Tensor &x = call.in[0], &bias = call.in[1], &y = call.out[0];
  SHARDC_REQUIRE(isData(x) && isData(bias) && isData(y), "bias_add takes f32, bf16 and f16");
  SHARDC_REQUIRE(sameMatrix(x, y), "x and y differ in shape");
  SHARDC_REQUIRE(isVector(bias, x.cols()), "the bias is not as long as a row");
  return nullptr;
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

const char *acceptsCast(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1, 1}));
  SHARDC_REQUIRE(isData(call.in[0]) && isData(call.out[0]), "cast takes f32, bf16 and f16");
  SHARDC_REQUIRE(call.in[0].numel() == call.out[0].numel(), "x and y differ in size");
  return nullptr;
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
  SHARDC_REQUIRE_OK(checkArity(call, {0, 0, 1, 1}));
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

const Kernel kAdd = {"add_host", runAdd, acceptsAdd};
const Kernel kBiasAdd = {"bias_add_host", runBiasAdd, acceptsBiasAdd};
const Kernel kCast = {"cast_host", runCast, acceptsCast};
const Kernel kFill = {"fill_host", runFill, acceptsFill};

} // namespace shardc::kernels::host
