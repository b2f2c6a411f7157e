// Memory of one rank. A plan's arenas are buffers; the plan's addresses are offsets in them.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardc::hal {

/// The purpose of memory, which determines how a backend allocates it.
enum class MemoryKind : uint8_t {
  State, ///< parameters, moments, step state: device memory that a checkpoint reads
  Work,  ///< everything else on the device
  Sym,   ///< device memory that peers access: same size on all members, registered with channels
  Host   ///< pinned memory that the calling thread reads and writes directly
};
/// The word for messages.
std::string_view toString(MemoryKind kind);

/// An allocation, freed on destruction. Destroy it only when nothing that uses it is running.
class Buffer {
public:
  virtual ~Buffer() = default;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  /// Device address of the first byte, aligned to 256 bytes. The caller may dereference it only for
  /// `Host` memory.
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
