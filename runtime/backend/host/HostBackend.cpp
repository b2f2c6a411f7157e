// The host backend: its devices, which share the memory of the process, and its channels.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>

#include "runtime/backend/host/HostStream.h"
#include "runtime/base/FreeMemory.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Status.h"
#include "runtime/hal/Buffer.h"

namespace shardc::host {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint8_t kGuardByte = 0xc5;
constexpr uint8_t kPoisonByte = 0xff;

/// One map of whole pages, which the destructor unmaps.
class HostBuffer final : public hal::Buffer {
public:
  /// Maps `bytes` bytes. With `guards`, a zone of known bytes is added before and after them. The
  /// pages are anonymous and use no physical memory until they are touched, so that an arena costs
  /// only what a run uses of it, unless it is filled with poison.
  static Result<std::unique_ptr<HostBuffer>> map(hal::MemoryKind kind, int64_t bytes,
                                                 std::string name, bool poison, bool guards) {
    SHARDC_CHECK(bytes >= 0, "a buffer has {} bytes", bytes);
    int64_t guardBytes = guards ? kPage : 0;
    if (bytes > std::numeric_limits<int64_t>::max() / 2)
      return makeStatus(StatusCode::Exhausted, "{}: {} bytes are more than an address space holds",
                        name, bytes);
    int64_t mapBytes =
        std::max<int64_t>((bytes + kPage - 1) / kPage * kPage, kPage) + 2 * guardBytes;
    void *map = mmap(nullptr, static_cast<size_t>(mapBytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
      return makeStatus(StatusCode::Exhausted, "{}: cannot allocate {} bytes; {} bytes are free",
                        name, bytes, machineBytesFree());
    auto *base = static_cast<uint8_t *>(map);
    if (guards) {
      // The upper zone begins right after the buffer, so the first byte past the end is checked. It
      // fills the rest of the last page.
      std::memset(base, kGuardByte, static_cast<size_t>(guardBytes));
      std::memset(base + guardBytes + bytes, kGuardByte,
                  static_cast<size_t>(mapBytes - guardBytes - bytes));
    }
    if (poison)
      std::memset(base + guardBytes, kPoisonByte, static_cast<size_t>(bytes));
    return std::unique_ptr<HostBuffer>(
        new HostBuffer(base, mapBytes, guardBytes, kind, bytes, std::move(name)));
  }

  ~HostBuffer() override { munmap(map_, static_cast<size_t>(mapBytes_)); }

  /// InvalidInput with the location of the first overwritten guard byte.
  Status checkGuards() const {
    if (guardBytes_ == 0)
      return Status::ok();
    const uint8_t *begin = data(), *end = data() + bytes();
    for (const uint8_t *at = begin - 1; at >= map_; --at)
      if (*at != kGuardByte)
        return makeStatus(report::WriteOutOfBounds, "{}: a write {} bytes before its first byte",
                          name_, begin - at);
    for (const uint8_t *at = end; at < map_ + mapBytes_; ++at)
      if (*at != kGuardByte)
        return makeStatus(report::WriteOutOfBounds, "{}: a write {} bytes past its {} bytes", name_,
                          at - end, bytes());
    return Status::ok();
  }
  const std::string &name() const { return name_; }

private:
  HostBuffer(uint8_t *map, int64_t mapBytes, int64_t guardBytes, hal::MemoryKind kind,
             int64_t bytes, std::string name)
      : Buffer(map + guardBytes, bytes, kind), map_(map), mapBytes_(mapBytes),
        guardBytes_(guardBytes), name_(std::move(name)) {}

  uint8_t *map_;
  int64_t mapBytes_;
  int64_t guardBytes_;
  std::string name_;
};

constexpr int kRanksMax = 1024;
constexpr int kWorkersMax = 1024;

/// Live buffers, for checkGuards().
class BufferList {
public:
  void add(const HostBuffer *buffer) {
    std::lock_guard lock(mutex_);
    buffers_.push_back(buffer);
  }
  void remove(const HostBuffer *buffer) {
    std::lock_guard lock(mutex_);
    std::erase(buffers_, buffer);
  }
  Status check() const {
    std::lock_guard lock(mutex_);
    for (const HostBuffer *buffer : buffers_)
      RETURN_IF_ERROR(buffer->checkGuards());
    return Status::ok();
  }

private:
  mutable std::mutex mutex_;
  std::vector<const HostBuffer *> buffers_;
};

/// Keeps a buffer on the list for as long as it lives.
class ListedBuffer final : public hal::Buffer {
public:
  ListedBuffer(std::unique_ptr<HostBuffer> buffer, std::shared_ptr<BufferList> list)
      : Buffer(buffer->data(), buffer->bytes(), buffer->kind()), buffer_(std::move(buffer)),
        list_(std::move(list)) {
    list_->add(buffer_.get());
  }
  ~ListedBuffer() override { list_->remove(buffer_.get()); }

private:
  std::unique_ptr<HostBuffer> buffer_;
  std::shared_ptr<BufferList> list_;
};

class HostDevice final : public hal::Device {
public:
  HostDevice(Engine &engine, const Options &options, int rank, std::shared_ptr<BufferList> buffers)
      : engine_(engine), options_(options), buffers_(std::move(buffers)) {
    state_.rank = rank;
  }

  int rank() const override { return state_.rank; }

  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    std::string fullName = fmt::format("rank {} {}", state_.rank, name);
    allocationCount_ += kind != hal::MemoryKind::Host;
    ASSIGN_OR_RETURN(auto buffer,
                     HostBuffer::map(kind, bytes, fullName, options_.poison, options_.guards));
    return std::unique_ptr<hal::Buffer>(new ListedBuffer(std::move(buffer), buffers_));
  }

  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view name,
                                                    hal::StreamUse) override {
    Lane *lane = engine_.addStream(state_.rank, std::string(name));
    return std::unique_ptr<hal::Stream>(new HostStream(engine_, state_, lane, std::string(name)));
  }

  Result<std::unique_ptr<hal::Event>> createEvent() override {
    return std::unique_ptr<hal::Event>(new HostEvent(engine_));
  }
  Result<std::unique_ptr<hal::Event>> createTimedEvent() override {
    return std::unique_ptr<hal::Event>(new HostEvent(engine_, true));
  }

  int64_t bytesFree(hal::MemoryKind) const override { return machineBytesFree(); }
  int64_t allocationCount() const override { return allocationCount_; }

private:
  Engine &engine_;
  const Options &options_;
  std::shared_ptr<BufferList> buffers_;
  DeviceState state_;
  int64_t allocationCount_ = 0;
};

class HostBackend final : public hal::Backend, hal::TestPort {
public:
  explicit HostBackend(const Options &options)
      : options_(options), buffers_(std::make_shared<BufferList>()), engine_(options_) {
    int first = options.peers ? options.peers->rank() : 0;
    int end = options.peers ? first + 1 : options.ranks;
    for (int rank = first; rank < end; ++rank) {
      owned_.push_back(std::make_unique<HostDevice>(engine_, options_, rank, buffers_));
      devices_.push_back(owned_.back().get());
    }
  }

  std::string_view name() const override { return "host"; }
  int worldSize() const override { return options_.ranks; }
  bool devicesShareMemory() const override { return true; }
  std::span<hal::Device *const> devices() const override { return devices_; }

  Result<std::unique_ptr<hal::Channel>> createChannel(const hal::ChannelDesc &desc) override {
    RETURN_IF_ERROR(hal::checkMembers(desc, options_.ranks));
    if (!options_.peers || desc.members.size() == 1)
      return std::unique_ptr<hal::Channel>(new HostChannel(desc));
    ASSIGN_OR_RETURN(std::vector<Socket> sockets, meeting_->connect(desc.members));
    auto channel =
        std::make_unique<HostChannel>(desc, engine_, *options_.peers, std::move(sockets));
    if (Status status = channel->remote()->startThread(); !status.isOk())
      return std::move(status).withContext(fmt::format("channel '{}'", desc.name));
    return std::unique_ptr<hal::Channel>(std::move(channel));
  }

  Status startThreads() { return engine_.startThreads(); }

  /// Makes this process reachable for others.
  Status meet() {
    ASSIGN_OR_RETURN(meeting_, Meeting::create(*options_.peers));
    return Status::ok();
  }

  Status synchronize() override { return engine_.waitIdle(); }
  Status waitForAny(std::span<hal::Event *const> events) override {
    std::vector<Engine::Awaited> awaited;
    for (hal::Event *event : events)
      awaited.push_back(static_cast<HostEvent *>(event)->awaited());
    return engine_.waitForAny(awaited);
  }
  Status checkGuards() override { return buffers_->check(); }
  hal::TestPort *testPort() override { return this; }
  Status startTrace() override {
    engine_.startTrace();
    return Status::ok();
  }
  Result<std::vector<trace::Span>> stopTrace() override { return engine_.stopTrace(); }

private:
  Status injectError(hal::Stream &stream, hal::InjectedError error,
                     const hal::Channel &channel) override {
    return static_cast<HostStream &>(stream).injectError(error, channel);
  }

  Options options_;
  std::shared_ptr<BufferList> buffers_;
  Engine engine_;
  std::unique_ptr<Meeting> meeting_; ///< set if ranks are in other processes
  std::vector<std::unique_ptr<HostDevice>> owned_;
  std::vector<hal::Device *> devices_;
};

} // namespace

Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options) {
  if (options.ranks < 1 || options.ranks > kRanksMax)
    return makeStatus(StatusCode::InvalidInput, "the host backend runs 1 to {} ranks, not {}",
                      kRanksMax, options.ranks);
  if (options.workers < 0 || options.workers > kWorkersMax)
    return makeStatus(StatusCode::InvalidInput, "the host backend runs 1 to {} workers, not {}",
                      kWorkersMax, options.workers);
  if (options.peers && options.peers->worldSize() != options.ranks)
    return makeStatus(StatusCode::InvalidInput, "the job has {} ranks, but the plan has {}",
                      options.peers->worldSize(), options.ranks);
  auto backend = std::make_unique<HostBackend>(options);
  RETURN_IF_ERROR(backend->startThreads());
  if (options.peers)
    RETURN_IF_ERROR(backend->meet());
  return std::unique_ptr<hal::Backend>(std::move(backend));
}

} // namespace shardc::host
