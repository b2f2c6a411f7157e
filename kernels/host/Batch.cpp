// batch.load copies entry (step·microbatches + microbatch) mod slots of the ring that the host
// fills. An entry consists of tokens[B·S], labels[B·S] i32, mask[B·S] f32, positions[B·S],
// docs[B·S] i32, samples[B] i64 as two words each and, depending on the recipe, places in the
// sequence i32[B·S] or a reference f32[B·S]. roll shifts x[B,S], of 4-byte elements. Limited by
// memory.
#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"
#include "runtime/base/BatchFields.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace shardc::kernels::host {
namespace {

using batch::Fields;
using batch::Mask;
using batch::Places;
using batch::Samples;
using batch::Tokens;

/// The length of a ring's entry must be exactly that of the fields, with or without the last one,
/// since run() finds the fields by their offsets.
const char *acceptsBatchLoad(const Call &call) {
  const Tensor &feed = call.in[0], &tokens = call.out[Tokens], &samples = call.out[Samples];
  SHARDC_REQUIRE(tokens.rank == 2, "tokens are not [B, S]");
  bool hasPlaces = call.outCount > Places;
  DType type = hasPlaces ? call.out[Places].dtype : DType::I32;
  SHARDC_REQUIRE(type == DType::I32 || type == DType::F32,
                 "places are not i32[B, S], and no reference f32[B, S]");
  int64_t others = feed.cols() - 2 * samples.numel();
  SHARDC_REQUIRE(others == (Samples + 1) * tokens.numel() ||
                     (!hasPlaces && others == Samples * tokens.numel()),
                 "an entry of the ring is not as long as a batch");
  SHARDC_REQUIRE(call.attrs.slots == 0 || call.attrs.slots == feed.shape[0],
                 "the ring does not have the number of entries that slots says");
  SHARDC_REQUIRE(call.microbatches > 0 && call.microbatch >= 0 && call.step >= 0,
                 "step, microbatch or their number is negative");
  return nullptr;
}

/// The feed is a ring with one entry per microbatch, in which all arrays of the batch follow each
/// other.
void runBatchLoad(const Call &call) {
  const Tensor &feed = call.in[0];
  int64_t entry = (call.step * call.microbatches + call.microbatch) % feed.shape[0];
  const int32_t *words = static_cast<const int32_t *>(feed.data) + entry * feed.cols();
  for (int r = Tokens; r < call.outCount; ++r) {
    const Tensor &to = call.out[r];
    int64_t bytes = to.numel() * dtypeBytes(to.dtype);
    std::memcpy(to.data, words, static_cast<size_t>(bytes));
    words += bytes / dtypeBytes(feed.dtype);
  }
}

const char *acceptsRoll(const Call &call) {
  const Tensor &x = call.in[0];
  SHARDC_REQUIRE(x.dtype == DType::F32 || x.dtype == DType::I32, "x is not f32 or i32");
  SHARDC_REQUIRE(x.rank == 2, "operand and result are not [B, S]");
  SHARDC_REQUIRE(call.attrs.by > 0 && call.attrs.by < x.shape[1],
                 "a sequence is not longer than what it is rolled by");
  SHARDC_REQUIRE(!call.attrs.per_token || x.dtype == DType::F32, "x that is scaled is not f32");
  return nullptr;
}

/// Shifts every row to the left and fills it with zeros. Elements are copied as 32 bits whatever
/// their type. With `per_token`, x is a mask, which is scaled so that its sum stays the same.
void runRoll(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  int64_t columns = x.shape[1], by = call.attrs.by;
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    const uint32_t *from = static_cast<const uint32_t *>(x.data) + row * columns;
    uint32_t *to = static_cast<uint32_t *>(y.data) + row * columns;
    std::copy(from + by, from + columns, to);
    std::fill(to + columns - by, to + columns, 0U);
  }
  if (!call.attrs.per_token)
    return;
  auto sumOf = [](const Tensor &mask) {
    const float *values = static_cast<const float *>(mask.data);
    return std::accumulate(values, values + mask.numel(), 0.0);
  };
  auto factor = static_cast<float>(sumOf(x) / std::max(sumOf(y), 1.0));
  float *values = static_cast<float *>(y.data);
  for (int64_t i = 0; i < y.numel(); ++i)
    values[i] *= factor;
}

} // namespace

SHARDC_HOST_KERNEL(BatchLoad, runBatchLoad, acceptsBatchLoad);
SHARDC_HOST_KERNEL(Roll, runRoll, acceptsRoll);

} // namespace shardc::kernels::host
