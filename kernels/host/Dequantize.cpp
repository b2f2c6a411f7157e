// dequantize: w[r,64·k + i] = scale·value of code i of the record q[r,k] (runtime/base/Nf4.h), in
// fp32, rounded once to f32, bf16 or f16. dequantize_nested: of records of 512 numbers, whose
// scales are in 8 bits (runtime/base/Nf4Scales.h). Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Nf4Scales.h"

namespace shardc::kernels::host {
namespace {

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

SHARDC_HOST_KERNEL(Dequantize, (openRecords<Nf4Block, fromNf4>));
SHARDC_HOST_KERNEL(DequantizeNested, (openRecords<Nf4Record, fromNf4Record>));

} // namespace shardc::kernels::host
