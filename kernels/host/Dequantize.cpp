// dequantize: w[r,64·k + i] = scale·value of code i of the record q[r,k] (runtime/base/Nf4.h), in
// fp32, rounded once to f32, bf16 or f16. dequantize_nested: of records of 512 numbers, whose
// scales are in 8 bits (runtime/base/Nf4Scales.h). Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Nf4Scales.h"

namespace shardc::kernels::host {
namespace {

const char *acceptsRecords(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  const Tensor &q = call.in[0], &w = call.out[0];
  SHARDC_REQUIRE(q.rank == 2 && isData(w) && w.rank == 2,
                 "q or w is not a matrix, or w is not of f32, bf16 or f16");
  SHARDC_REQUIRE(w.shape[0] == q.shape[0] && w.shape[1] == q.shape[1] * numbersIn(q.dtype),
                 "w does not have the numbers of each record of q");
  return nullptr;
}

const char *acceptsDequantize(const Call &call) {
  SHARDC_REQUIRE(call.in[0].dtype == DType::NF4x64, "q is not of nf4x64");
  return acceptsRecords(call);
}

const char *acceptsDequantizeNested(const Call &call) {
  SHARDC_REQUIRE(call.in[0].dtype == DType::NF4x512, "q is not of nf4x512");
  return acceptsRecords(call);
}

template <typename Record, void (&open)(const Record &, float *)>
void openRecords(const Call &call) {
  const auto *records = static_cast<const Record *>(call.in[0].data);
  float numbers[Record::kNumbers];
  for (int64_t i = 0; i < call.in[0].numel(); ++i) {
    open(records[i], numbers);
    writeF32(call.out[0], i * Record::kNumbers, Record::kNumbers, numbers);
  }
}

} // namespace

const Kernel kDequantize = {"dequantize_host", openRecords<Nf4Block, fromNf4>, acceptsDequantize};
const Kernel kDequantizeNested = {"dequantize_nested_host", openRecords<Nf4Record, fromNf4Record>,
                                  acceptsDequantizeNested};

} // namespace shardc::kernels::host
