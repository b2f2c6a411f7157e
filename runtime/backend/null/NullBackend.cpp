// The null backend: executes nothing, and returns device addresses without memory behind them.
#include <algorithm>
#include <limits>

#include <sys/mman.h>

#include "runtime/backend/null/NullStream.h"
#include "runtime/backend/null/Options.h"

namespace shardc::null {
namespace {

constexpr int kRanksMax = 1 << 20;
/// Device addresses begin where no processor has memory, so that every access fails at once.
constexpr uintptr_t kDeviceMemory = uintptr_t{1} << 62;
constexpr int64_t kPage = 4096;

/// Addresses without memory. Memory that the caller reads and writes is real host memory.
class NullBuffer final : public hal::Buffer {
public:
  NullBuffer(std::shared_ptr<Ledger> ledger, int rank, uint8_t *data, int64_t bytes, int64_t mapped,
             hal::MemoryKind kind, std::string name)
      : Buffer(data, bytes, kind), ledger_(std::move(ledger)), mapped_(mapped) {
    block_ = ledger_->addBlock(rank, data, bytes, kind, std::move(name));
  }
  ~NullBuffer() override {
    {
      std::lock_guard lock(ledger_->mutex);
      ledger_->dropBlock(block_);
    }
    if (mapped_ > 0)
      ::munmap(data(), static_cast<size_t>(mapped_));
  }

private:
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Block> block_;
  int64_t mapped_; ///< bytes of real memory
};

class NullDevice final : public hal::Device {
public:
  NullDevice(std::shared_ptr<Ledger> ledger, int rank, uintptr_t &nextAddress)
      : ledger_(std::move(ledger)), rank_(rank), state_(makeDeviceState(ledger_, rank)),
        nextAddress_(nextAddress) {}

  int rank() const override { return rank_; }

  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    std::lock_guard lock(ledger_->mutex);
    RETURN_IF_ERROR(ledger_->checkOpen());
    if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() / 4)
      return Ledger::refuse("rank {}: buffer '{}' has {} bytes", rank(), name, bytes);
    int64_t reserved = (bytes / kPage + 2) * kPage; // leaves a gap between buffers
    void *data = nullptr;
    if (kind == hal::MemoryKind::Host) {
      data = ::mmap(nullptr, static_cast<size_t>(reserved), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED)
        return makeStatus(StatusCode::Exhausted, "rank {} {}: cannot allocate {} bytes", rank(),
                          name, bytes);
    } else {
      data = reinterpret_cast<void *>(nextAddress_);
      nextAddress_ += static_cast<uintptr_t>(reserved);
      ++allocationCount_;
    }
    return std::unique_ptr<hal::Buffer>(std::make_unique<NullBuffer>(
        ledger_, rank(), static_cast<uint8_t *>(data), bytes,
        kind == hal::MemoryKind::Host ? reserved : 0, kind, std::string(name)));
  }

  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view name,
                                                    hal::StreamUse) override {
    return make<hal::Stream>([&] { return makeStream(state_, std::string(name)); });
  }
  Result<std::unique_ptr<hal::Event>> createEvent() override {
    return make<hal::Event>([&] { return makeEvent(ledger_, rank(), false); });
  }
  Result<std::unique_ptr<hal::Event>> createTimedEvent() override {
    return make<hal::Event>([&] { return makeEvent(ledger_, rank(), true); });
  }
  Result<std::unique_ptr<hal::Mark>> createMark() override {
    return make<hal::Mark>([&] { return makeMark(ledger_, rank()); });
  }
  int64_t bytesFree(hal::MemoryKind) const override { return std::numeric_limits<int64_t>::max(); }
  int64_t allocationCount() const override { return allocationCount_; }

private:
  template <typename T> Result<std::unique_ptr<T>> make(auto &&create) {
    std::lock_guard lock(ledger_->mutex);
    RETURN_IF_ERROR(ledger_->checkOpen());
    return create();
  }

  std::shared_ptr<Ledger> ledger_;
  int rank_;
  std::shared_ptr<DeviceState> state_;
  uintptr_t &nextAddress_; ///< shared by all devices, so that no two ranks use the same address
  int64_t allocationCount_ = 0;
};

/// Chooses at most `most` ranks: the first, the last, and evenly spaced ranks between them.
std::vector<int> spread(int ranks, int most) {
  std::vector<int> chosen;
  int count = std::min(ranks, most);
  for (int64_t i = 0; i < count; ++i)
    chosen.push_back(count == 1 ? 0 : static_cast<int>(i * (ranks - 1) / (count - 1)));
  return chosen;
}

class NullBackend final : public hal::Backend {
public:
  explicit NullBackend(const Options &options)
      : options_(options), ledger_(std::make_shared<Ledger>(options.onBreach)),
        ranks_(options.rank >= 0 ? std::vector<int>{options.rank}
                                 : spread(options.ranks, options.ranksHereMax)) {
    for (int rank : ranks_) {
      owned_.push_back(std::make_unique<NullDevice>(ledger_, rank, nextAddress_));
      devices_.push_back(owned_.back().get());
    }
  }
  ~NullBackend() override {
    std::lock_guard lock(ledger_->mutex);
    ledger_->end();
  }

  std::string_view name() const override { return "null"; }
  int worldSize() const override { return options_.ranks; }
  bool devicesShareMemory() const override { return false; }
  std::span<hal::Device *const> devices() const override { return devices_; }

  Result<std::unique_ptr<hal::Channel>> createChannel(const hal::ChannelDesc &desc) override {
    ASSIGN_OR_RETURN(auto channel, NullChannel::create(desc, ranks_, options_, ledger_));
    return std::unique_ptr<hal::Channel>(std::move(channel));
  }

  /// Checks that all members of each channel have issued the same collectives, since only then
  /// their work ends.
  Status synchronize() override {
    std::lock_guard lock(ledger_->mutex);
    RETURN_IF_ERROR(ledger_->checkOpen());
    RETURN_IF_ERROR(ledger_->firstBreach());
    for (const std::shared_ptr<Line> &line : ledger_->lines)
      for (const auto &[rank, issued] : line->issued)
        if (const auto &[first, wanted] = *line->issued.begin(); !(issued == wanted))
          return Ledger::refuse("channel '{}': rank {} has issued {} collectives and rank {} {}{}",
                                line->name, first, wanted.count, rank, issued.count,
                                issued.count == wanted.count ? ", of which some differ" : "");
    ledger_->knowAll();
    return Status::ok();
  }

  void abort() override {
    std::lock_guard lock(ledger_->mutex);
    ledger_->abort();
  }

private:
  Options options_;
  std::shared_ptr<Ledger> ledger_;
  uintptr_t nextAddress_ = kDeviceMemory;
  std::vector<int> ranks_;
  std::vector<std::unique_ptr<NullDevice>> owned_;
  std::vector<hal::Device *> devices_;
};

} // namespace

Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options) {
  if (options.ranks < 1 || options.ranks > kRanksMax || options.ranksHereMax < 1)
    return makeStatus(
        StatusCode::InvalidInput,
        "the null backend runs 1 to {} ranks, at least one of them here; not {} and {}", kRanksMax,
        options.ranks, options.ranksHereMax);
  if (options.rank >= options.ranks)
    return makeStatus(StatusCode::InvalidInput, "rank {} is not one of {} ranks", options.rank,
                      options.ranks);
  if (options.rank >= 0 && options.ranks > 1 && !options.rendezvous)
    return makeStatus(StatusCode::InvalidInput,
                      "{} of {} ranks are in other processes, and there is no connection to them",
                      options.ranks - 1, options.ranks);
  return std::unique_ptr<hal::Backend>(std::make_unique<NullBackend>(options));
}

} // namespace shardc::null
