#include "runtime/generate/Loading.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

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

/// The parts, of which each thread takes the next one until one has failed.
class Loading {
public:
  Loading(Work &work, std::vector<Part> parts, const ReadTensor &read)
      : work_(work), parts_(std::move(parts)), read_(read) {}

  Status run(int threads) {
    const size_t most = std::min(parts_.size(), static_cast<size_t>(std::max(threads, 1)));
    for (size_t i = 0; i < std::max<size_t>(most, 1); ++i) {
      ASSIGN_OR_RETURN(Work::Staging staging, work_.stage(bytesMax()));
      stagings_.push_back(std::move(staging));
    }
    {
      std::vector<std::jthread> others(stagings_.size() - 1);
      for (size_t i = 0; i < others.size(); ++i) // with fewer threads, loading is only slower
        if (!startThread(others[i], [this, i] { takeParts(stagings_[i + 1]); }).isOk())
          break;
      takeParts(stagings_[0]);
    }
    return status_;
  }

private:
  int64_t bytesMax() const {
    int64_t bytes = 1;
    for (const Part &part : parts_)
      bytes = std::max(bytes, part.bytes);
    return bytes;
  }

  void takeParts(Work::Staging &staging) {
    for (size_t i = next_++; i < parts_.size() && !isFailed_; i = next_++)
      if (Status status = take(parts_[i], staging); !status.isOk()) {
        std::lock_guard lock(mutex_);
        if (!isFailed_)
          status_ = std::move(status);
        isFailed_ = true;
      }
    static_cast<void>(staging.done->synchronize()); // the device still reads the thread's bytes
  }

  Status take(const Part &part, Work::Staging &staging) {
    RETURN_IF_ERROR(staging.done->synchronize());
    RETURN_IF_ERROR(readPart(part, read_, staging.host->data()));
    std::lock_guard lock(mutex_);
    return work_.send(part.to, staging, part.bytes);
  }

  Work &work_;
  const std::vector<Part> parts_;
  const ReadTensor &read_;
  std::vector<Work::Staging> stagings_; ///< by thread
  std::atomic<size_t> next_{0};
  std::atomic<bool> isFailed_{false};
  std::mutex mutex_; ///< guards the stream and the status
  Status status_;
};

} // namespace

Status loadWeights(Work &work, const std::vector<Destination> &to, const ReadTensor &read,
                   int threads) {
  return Loading(work, partsOf(to), read).run(threads);
}

} // namespace shardc::generate
