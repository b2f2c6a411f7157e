// batch.load: copies entry (step·microbatches + microbatch) mod slots of the ring that the host
// fills. An entry is tokens[B·S], labels[B·S] i32, mask[B·S] f32 bits, positions[B·S], docs[B·S]
// i32, samples[B] i64 as two words each, and where it has them places in the sequence at[B·S] i32.
// Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"
#include "runtime/base/BatchFields.h"

#include <cstring>

namespace shardc::kernels::host {
namespace {

using namespace batch;

const char *acceptsBatchLoad(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, Places, Fields}));
  const Tensor &feed = call.in[0], &tokens = call.out[Tokens], &samples = call.out[Samples];
  SHARDC_REQUIRE(feed.dtype == DType::I32 && feed.rank == 2, "the feed is not i32[slots, words]");
  SHARDC_REQUIRE(tokens.rank == 2, "tokens are not [B, S]");
  for (int r = Tokens; r < Samples; ++r) {
    DType type = r == Mask ? DType::F32 : DType::I32;
    SHARDC_REQUIRE(call.out[r].dtype == type, "mask is not f32, or another field not i32");
    SHARDC_REQUIRE(call.out[r].rank == 2 && sameMatrix(call.out[r], tokens),
                   "the fields of a batch differ in shape");
  }
  SHARDC_REQUIRE(samples.dtype == DType::I64 && isVector(samples, tokens.shape[0]),
                 "samples are not i64[B]");
  bool hasPlaces = call.outCount > Places;
  SHARDC_REQUIRE(!hasPlaces || (call.out[Places].dtype == DType::I32 &&
                                call.out[Places].rank == 2 && sameMatrix(call.out[Places], tokens)),
                 "places are not i32[B, S]");
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

} // namespace

const Kernel kBatchLoad = {"batch_load_host", runBatchLoad, acceptsBatchLoad};

} // namespace shardc::kernels::host
