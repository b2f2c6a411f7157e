// Any bytes as a `.metadata`; accepted metadata must be the same after writing and reading it.
#include <cstdint>
#include <cstdlib>

#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Result<Metadata> metadata = readMetadata({data, size});
  if (!metadata.isOk())
    return 0;
  std::string bytes = writeMetadata(*metadata);
  Result<Metadata> again =
      readMetadata({reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size()});
  if (!again.isOk() || writeMetadata(*again) != bytes)
    std::abort();
  return 0;
}

} // namespace shardc::checkpoint
