// Images of ranks' state in memory that outlives the processes that write it. Each rank has two
// slots, so that one image is complete while the other one is written. This code does not interpret
// the bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

namespace shardc::save {

/// Identifies an image among all images of a job. Steps of different attempts are never combined,
/// since sums may differ if a backend does not add in a fixed order.
struct ImageId {
  int64_t owner = 0;   ///< the rank whose state it is
  int64_t attempt = 0; ///< number of the attempt that created it
  int64_t step = 0;    ///< the step after which the state was copied
  int64_t ranks = 0;   ///< ranks of the attempt; may differ between attempts of an elastic job
  auto operator<=>(const ImageId &) const = default;
};

/// The header of an image. Sent as raw bytes between processes of the same program.
struct ImageInfo {
  ImageId id;
  uint64_t planHash = 0; ///< hash of the job's plans
  int64_t phase = 0;     ///< index of the plan whose state it is
  int64_t metaBytes = 0; ///< bytes of the job's progress, which comes first
  int64_t stateBytes = 0;
  int64_t endedNs = 0; ///< end of the step, since 1970
  uint64_t crc = 0;    ///< of all bytes
  int64_t bytes() const { return metaBytes + stateBytes; }
  bool operator==(const ImageInfo &) const = default;
};

class ImageSlots {
public:
  static constexpr int kCount = 2;
  /// Bytes of memory for images of at most `imageBytesMax` bytes.
  static int64_t bytesFor(int64_t imageBytesMax);

  ImageSlots() = default;
  /// Uses this memory, which must be page-aligned and stay valid. Zeros mean that there are no
  /// images.
  explicit ImageSlots(std::span<uint8_t> memory);

  bool isThere() const { return slotBytes_ > 0; }
  int64_t imageBytesMax() const;
  /// The complete image in a slot; nothing if it has none or its header is damaged.
  std::optional<ImageInfo> at(int slot) const;
  std::optional<int> find(const ImageId &id) const;
  std::span<uint8_t> bytesOf(int slot) const;
  /// Reads all bytes of an image. False if they have changed since it was completed.
  bool isIntact(int slot) const;

  /// A slot without an image; otherwise the one with the older image.
  int next() const;
  /// Marks the slot as having no image, until `complete`.
  void begin(int slot) const;
  void complete(int slot, const ImageInfo &info) const;

private:
  struct Header {
    std::atomic<uint32_t> isComplete;
    uint32_t crc; ///< of the info
    ImageInfo info;
  };
  Header &header(int slot) const;

  uint8_t *memory_ = nullptr;
  int64_t slotBytes_ = 0;
};

} // namespace shardc::save
