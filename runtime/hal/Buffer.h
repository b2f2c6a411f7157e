// Memory of one rank. A plan's arenas are buffers; the plan's addresses are offsets in them.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardc::hal {

/// The purpose of memory determines how a backend allocates it.
enum class MemoryKind : uint8_t {
  State, ///< parameters, moments, step state: device memory that a checkpoint reads
  Work,  ///< everything else on the device
  Sym,   ///< device memory for peers: same size on all members, registered with channels
  Host   ///< pinned memory that the calling thread reads and writes directly
};
inline constexpr int kMemoryKindCount = 4;
std::string_view toString(MemoryKind kind);

/// An allocation, freed on destruction. Destroy it only when nothing that uses it is running.
class Buffer {
public:
  virtual ~Buffer() = default;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  /// Device address of the first byte, 256-byte aligned. Only `Host` memory may be dereferenced by
  /// the caller.
  uint8_t *data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }

protected:
  Buffer(uint8_t *data, int64_t bytes, MemoryKind kind) : data_(data), bytes_(bytes), kind_(kind) {}

private:
  uint8_t *data_;
  int64_t bytes_;
  MemoryKind kind_;
};

} // namespace shardc::hal
