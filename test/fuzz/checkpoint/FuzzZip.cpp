// Any bytes as a torch archive; its tensor, if there is one, is copied out.
#include <cstdint>
#include <vector>

#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Result<ArchiveReader> archive = ArchiveReader::open({data, size});
  if (!archive.isOk())
    return 0;
  for (const ArchiveEntry &entry : archive->entries())
    static_cast<void>(archive->verify(entry));
  Result<TensorView> view = readTensorRecord(*archive);
  if (!view.isOk())
    return 0;
  std::optional<int64_t> bytes = tensorBytes(view->type, view->shape);
  if (!bytes || *bytes > (1 << 20)) // with strides of 0, small files have large tensors
    return 0;
  std::vector<uint8_t> copy(static_cast<size_t>(*bytes));
  Shape dense = denseStrides(view->shape);
  copyBox(view->shape, {view->type, view->strides}, view->origin(), {view->type, dense},
          copy.data());
  return 0;
}

} // namespace shardc::checkpoint
