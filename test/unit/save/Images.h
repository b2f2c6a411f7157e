// Memory for images of state, and images with recognizable bytes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "runtime/base/Crc32.h"
#include "runtime/save/StateImages.h"

namespace shardc::save {

/// Zeroed memory with two slots for small images.
class Memory {
public:
  static constexpr int64_t kImageBytes = 300;

  Memory() : size_(static_cast<size_t>(ImageSlots::bytesFor(kImageBytes))) {
    bytes_.reset(static_cast<uint8_t *>(std::aligned_alloc(4096, size_)));
    clear();
  }
  std::span<uint8_t> bytes() const { return {bytes_.get(), size_}; }
  ImageSlots slots() const { return ImageSlots(bytes()); }
  void clear() const { std::memset(bytes_.get(), 0, size_); }

private:
  struct Free {
    void operator()(uint8_t *bytes) const { std::free(bytes); }
  };
  size_t size_;
  std::unique_ptr<uint8_t, Free> bytes_;
};

/// The description of an image of this id, without the sum of its bytes.
inline ImageInfo infoOf(const ImageId &id) {
  ImageInfo info;
  info.id = id;
  info.metaBytes = 50;
  info.stateBytes = Memory::kImageBytes - 50;
  return info;
}

/// Writes bytes that differ between ids.
inline void writeBytes(const ImageId &id, std::span<uint8_t> bytes) {
  for (size_t i = 0; i < Memory::kImageBytes; ++i)
    bytes[i] = static_cast<uint8_t>(i + 31 * static_cast<size_t>(id.owner) +
                                    7 * static_cast<size_t>(id.step) +
                                    101 * static_cast<size_t>(id.attempt));
}

inline ImageInfo fill(const ImageSlots &slots, int slot, const ImageId &id) {
  ImageInfo info = infoOf(id);
  slots.begin(slot);
  writeBytes(id, slots.bytesOf(slot));
  info.crc = crc32(0, slots.bytesOf(slot).data(), Memory::kImageBytes);
  slots.complete(slot, info);
  return info;
}

} // namespace shardc::save
