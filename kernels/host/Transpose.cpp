// Ops that move elements without changing them, so that operand and result have one type.
//  transpose: x as [outer, inner, n] becomes y as [inner, outer, n], in f32, bf16 or f16; in f8e4m3
//    or f8e5m2 only matrices, n = 1
//  merge_slices: x as [inner, outer, 2, n], the slices of `inner` members, becomes y as [outer,
//    2·inner, n], whole sequences: member i has the chunks i and 2·inner-1-i; `inverse` makes x
//    from y; also for i32
//  join: the elements of a list of parts, one part after the other, in f32, bf16 or f16
// Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"

#include <cstring>

namespace shardc::kernels::host {
namespace {

const char *acceptsMoves(const Call &call) {
  SHARDC_REQUIRE(call.attrs.outer > 0 && call.attrs.inner > 0,
                 "outer and inner do not divide the elements of x");
  return nullptr;
}

const char *accepts(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsMoves(call));
  const Tensor &x = call.in[0];
  bool isMatrixOf8Bits = (x.dtype == DType::F8E4M3 || x.dtype == DType::F8E5M2) &&
                         call.attrs.outer * call.attrs.inner == x.numel();
  SHARDC_REQUIRE(isData(x) || isMatrixOf8Bits,
                 "x is not f32, bf16 or f16, and no matrix of numbers of 8 bits");
  return nullptr;
}

const char *acceptsMerge(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsMoves(call));
  const Tensor &x = call.in[0];
  SHARDC_REQUIRE(isData(x) || x.dtype == DType::I32, "x is not f32, bf16, f16 or i32");
  return nullptr;
}

void runMerge(const Call &call) {
  const Tensor &x = call.in[0];
  int64_t samples = call.attrs.outer, members = call.attrs.inner;
  int64_t bytes = x.numel() / (samples * members * 2) * dtypeBytes(x.dtype);
  const auto *from = static_cast<const std::byte *>(x.data);
  auto *to = static_cast<std::byte *>(call.out[0].data);
  for (int64_t member = 0; member < members; ++member)
    for (int64_t sample = 0; sample < samples; ++sample)
      for (int64_t half = 0; half < 2; ++half) {
        int64_t sliced = (member * samples + sample) * 2 + half;
        int64_t chunk = half == 0 ? member : 2 * members - 1 - member;
        int64_t merged = sample * 2 * members + chunk;
        int64_t source = call.attrs.inverse ? merged : sliced;
        int64_t target = call.attrs.inverse ? sliced : merged;
        std::memcpy(to + target * bytes, from + source * bytes, static_cast<size_t>(bytes));
      }
}

void run(const Call &call) {
  const Tensor &x = call.in[0];
  int64_t outer = call.attrs.outer, inner = call.attrs.inner;
  int64_t bytes = x.numel() / (outer * inner) * dtypeBytes(x.dtype);
  const auto *from = static_cast<const std::byte *>(x.data);
  auto *to = static_cast<std::byte *>(call.out[0].data);
  for (int64_t a = 0; a < outer; ++a)
    for (int64_t b = 0; b < inner; ++b)
      std::memcpy(to + (b * outer + a) * bytes, from + (a * inner + b) * bytes,
                  static_cast<size_t>(bytes));
}

const char *acceptsJoin(const Call &call) {
  const Tensor &whole = call.out[0];
  SHARDC_REQUIRE(isData(whole), "join takes f32, bf16 and f16");
  SHARDC_REQUIRE(call.listCount > 0 && call.list, "the list of parts is not given");
  int64_t left = whole.numel();
  for (int64_t i = 0; i < call.listCount; ++i) {
    SHARDC_REQUIRE_OK(checkTensor(call.list[i]));
    SHARDC_REQUIRE(call.list[i].dtype == whole.dtype, "parts and whole differ in type");
    SHARDC_REQUIRE(call.list[i].numel() <= left, "the parts have more elements than the whole");
    left -= call.list[i].numel();
  }
  SHARDC_REQUIRE(left == 0, "the parts have fewer elements than the whole");
  return nullptr;
}

void runJoin(const Call &call) {
  auto *to = static_cast<std::byte *>(call.out[0].data);
  for (int64_t i = 0; i < call.listCount; ++i) {
    const Tensor &part = call.list[i];
    auto bytes = static_cast<size_t>(part.numel() * dtypeBytes(part.dtype));
    std::memcpy(to, part.data, bytes);
    to += bytes;
  }
}

} // namespace

SHARDC_HOST_KERNEL(Transpose, run, accepts);
SHARDC_HOST_KERNEL(MergeSlices, runMerge, acceptsMerge);
SHARDC_HOST_KERNEL(Join, runJoin, acceptsJoin);

} // namespace shardc::kernels::host
