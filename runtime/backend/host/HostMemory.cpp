#include "runtime/backend/host/HostMemory.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <sys/mman.h>

#include "runtime/base/FreeMemory.h"
#include "runtime/base/Reports.h"

namespace shardc::host {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint8_t kGuardByte = 0xc5;
constexpr uint8_t kPoisonByte = 0xff;

} // namespace

HostBuffer::HostBuffer(uint8_t *map, int64_t mapBytes, int64_t guardBytes, hal::MemoryKind kind,
                       int64_t bytes, std::string name)
    : Buffer(map + guardBytes, bytes, kind), map_(map), mapBytes_(mapBytes),
      guardBytes_(guardBytes), name_(std::move(name)) {}

HostBuffer::~HostBuffer() { munmap(map_, static_cast<size_t>(mapBytes_)); }

/// Maps anonymous pages. They use no physical memory until they are touched, so that an arena costs
/// only what a run uses of it, unless it is filled with poison.
Result<std::unique_ptr<HostBuffer>> HostBuffer::map(hal::MemoryKind kind, int64_t bytes,
                                                    std::string name, bool poison, bool guards) {
  SHARDC_CHECK(bytes >= 0, "a buffer has {} bytes", bytes);
  int64_t guardBytes = guards ? kPage : 0;
  if (bytes > std::numeric_limits<int64_t>::max() / 2)
    return makeStatus(StatusCode::Exhausted, "{}: {} bytes are more than an address space holds",
                      name, bytes);
  int64_t mapBytes = std::max<int64_t>((bytes + kPage - 1) / kPage * kPage, kPage) + 2 * guardBytes;
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

Status HostBuffer::checkGuards() const {
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

} // namespace shardc::host
