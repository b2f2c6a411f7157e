// transpose: x as [outer, inner, n] becomes y as [inner, outer, n]; elements are moved as they are,
// so operand and result have one type, f32 or bf16. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"

#include <cstring>

namespace shardc::kernels::host {
namespace {

const char *accepts(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  const Tensor &x = call.in[0], &y = call.out[0];
  SHARDC_REQUIRE(isData(x) && x.dtype == y.dtype, "x and y are not both f32 or both bf16");
  SHARDC_REQUIRE(x.numel() == y.numel(), "x and y differ in elements");
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE(attrs.outer > 0 && attrs.inner > 0 && attrs.outer <= x.numel() &&
                     attrs.inner <= x.numel() / attrs.outer &&
                     x.numel() % (attrs.outer * attrs.inner) == 0,
                 "outer and inner do not divide the elements of x");
  return nullptr;
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

} // namespace

const Kernel kTranspose = {"transpose_host", run, accepts};

} // namespace shardc::kernels::host
