// Any bytes as a safetensors file; every tensor of an accepted file must be inside the file.
#include <cstdint>
#include <cstdlib>

#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Result<SafeTensorsHeader> header = readSafeTensorsHeader({data, size});
  if (!header.isOk())
    return 0;
  for (const SafeTensor &tensor : header->tensors)
    if (tensor.end > size - header->dataAt || tensor.begin > tensor.end)
      std::abort();
  return 0;
}

} // namespace shardc::checkpoint
