// dequantize: w[r,64·k + i] = scale·value of code i of the record q[r,k] (runtime/base/Nf4.h), in
// fp32, rounded once to f32, bf16 or f16. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Nf4.h"

namespace shardc::kernels::host {
namespace {

const char *acceptsDequantize(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  const Tensor &q = call.in[0], &w = call.out[0];
  SHARDC_REQUIRE(q.dtype == DType::NF4x64 && q.rank == 2, "q is not a matrix of nf4x64");
  SHARDC_REQUIRE(isData(w) && w.rank == 2, "w is not a matrix of f32, bf16 or f16");
  SHARDC_REQUIRE(w.shape[0] == q.shape[0] && w.shape[1] == q.shape[1] * Nf4Block::kNumbers,
                 "w does not have 64 numbers for each record of q");
  return nullptr;
}

void runDequantize(const Call &call) {
  const auto *blocks = static_cast<const Nf4Block *>(call.in[0].data);
  float numbers[Nf4Block::kNumbers];
  for (int64_t i = 0; i < call.in[0].numel(); ++i) {
    fromNf4(blocks[i], numbers);
    writeF32(call.out[0], i * Nf4Block::kNumbers, Nf4Block::kNumbers, numbers);
  }
}

} // namespace

const Kernel kDequantize = {"dequantize_host", runDequantize, acceptsDequantize};

} // namespace shardc::kernels::host
