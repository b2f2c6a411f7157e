// Any bytes as the index of a dataset. The first eight bytes are the size of the .bin file, so that
// consistent and inconsistent pairs occur. Accepted indexes must have the properties that readers
// rely on.
#include <algorithm>
#include <cstring>

#include "runtime/data/GptIndex.h"
#include "runtime/data/IndexFile.h"

namespace shardc::data {
namespace {

void checkAccepted(const IndexFile &index, uint64_t binBytes) {
  int64_t width = tokenBytes(index.type()), end = 0;
  for (int64_t i = 0; i < index.numSequences(); ++i) {
    int32_t length = index.lengths()[static_cast<size_t>(i)];
    SHARDC_CHECK(length >= 0 && index.offsetOf(i) == end, "sequence {}", i);
    end += length * width;
  }
  SHARDC_CHECK(static_cast<uint64_t>(end) == binBytes, "{} bytes of {}", end, binBytes);
}

void checkOrder(const IndexFile &index) {
  GptIndexSpec spec{.endSequence = index.numSequences(), .sequenceLength = 5, .numSamples = 3};
  spec.bytesMax = 1 << 20;
  Result<GptIndex> order = GptIndex::build(index.lengths(), spec, "fuzz");
  if (!order.isOk())
    return;
  SHARDC_CHECK(order->numSamples() >= 3, "{} samples", order->numSamples());
  for (int64_t i = 0; i < order->numSamples(); ++i) {
    int64_t cut = order->shuffled(i);
    GptIndex::TokenPosition begin = order->position(cut), last = order->position(cut + 1);
    int64_t length = index.lengths()[static_cast<size_t>(order->sequence(last.document))];
    SHARDC_CHECK(begin.document <= last.document && last.offset < length, "cut {}", cut);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 8)
    return 0;
  uint64_t binBytes = 0;
  std::memcpy(&binBytes, data, 8);
  std::span<const uint8_t> bytes(data + 8, size - 8);
  auto read = [bytes](uint64_t offset, std::span<uint8_t> out) {
    SHARDC_CHECK(offset <= bytes.size() && out.size() <= bytes.size() - offset,
                 "read of {} bytes at {} of {}", out.size(), offset, bytes.size());
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
    return Status::ok();
  };
  Result<IndexFile> index = IndexFile::parse("fuzz", bytes.size(), binBytes, read);
  if (!index.isOk()) {
    SHARDC_CHECK(!index.status().message().empty(), "refused without a reason");
    return 0;
  }
  checkAccepted(*index, binBytes);
  checkOrder(*index);
  return 0;
}

} // namespace shardc::data
