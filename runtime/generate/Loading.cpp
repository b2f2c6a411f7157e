#include "runtime/generate/Loading.h"

#include <algorithm>
#include <mutex>

#include "runtime/base/Nf4.h"
#include "runtime/base/Thread.h"

namespace shardc::generate {
namespace {

/// Bytes of a part, and of the pinned memory of a thread.
constexpr int64_t kPartBytes = int64_t{16} << 20;

/// Some rows of a tensor.
struct Part {
  const plan::Param *param;
  bool isIn4Bits;
  int64_t number; ///< of the tensor
  int64_t first, count;
  int64_t bytes; ///< on the device
  uint8_t *to;
};

std::vector<Part> partsOf(const std::vector<Destination> &destinations) {
  std::vector<Part> parts;
  for (const Destination &each : destinations) {
    const plan::Param &param = *each.param;
    const plan::Type type = param.tensorType();
    const int64_t rows = type.shape[0], all = rows * param.tensorCount();
    if (all == 0)
      continue;
    const int64_t rowBytes = each.cell.bytes() / all;
    const int64_t step = std::max<int64_t>(kPartBytes / std::max<int64_t>(rowBytes, 1), 1);
    for (int64_t i = 0; i < param.tensorCount(); ++i)
      for (int64_t first = 0; first < rows; first += step) {
        const int64_t count = std::min(step, rows - first);
        parts.push_back({&param, each.cell.dtype == DType::NF4x64, i, first, count,
                         count * rowBytes, each.block.get() + (i * rows + first) * rowBytes});
      }
  }
  return parts;
}

Status readPart(const Part &part, const ReadTensor &read, uint8_t *to) {
  const plan::Type type = part.param->tensorType();
  const std::string name = part.param->tensorName(part.number);
  if (!part.isIn4Bits)
    return read(name, type, part.first, part.count, to);
  std::vector<float> numbers(static_cast<size_t>(type.numel() / type.shape[0] * part.count));
  RETURN_IF_ERROR(read(name, type, part.first, part.count, numbers.data()));
  auto *blocks = reinterpret_cast<Nf4Block *>(to);
  for (size_t i = 0; i < numbers.size(); i += Nf4Block::kNumbers)
    *blocks++ = toNf4(&numbers[i]);
  return Status::ok();
}

} // namespace

Status loadWeights(Work &work, const std::vector<Destination> &to, const ReadTensor &read,
                   int threads) {
  const std::vector<Part> parts = partsOf(to);
  int64_t bytesMax = 1;
  for (const Part &part : parts)
    bytesMax = std::max(bytesMax, part.bytes);
  std::vector<Work::Staging> stagings; // by thread
  for (size_t i = 0; i < std::min(parts.size(), static_cast<size_t>(std::max(threads, 1))); ++i) {
    ASSIGN_OR_RETURN(Work::Staging staging, work.stage(bytesMax));
    stagings.push_back(std::move(staging));
  }
  std::mutex mutex; // guards the stream
  Status status =
      runOnThreads(stagings.size(), parts.size(), [&](size_t i, size_t thread) -> Status {
        const Part &part = parts[i];
        Work::Staging &staging = stagings[thread];
        RETURN_IF_ERROR(staging.done->synchronize());
        RETURN_IF_ERROR(readPart(part, read, staging.host->data()));
        std::lock_guard lock(mutex);
        return work.send(part.to, staging, part.bytes);
      });
  for (Work::Staging &staging : stagings) // the device still reads the thread's bytes
    static_cast<void>(staging.done->synchronize());
  return status;
}

} // namespace shardc::generate
