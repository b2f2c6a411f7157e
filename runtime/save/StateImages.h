// Images of ranks' state in memory that outlives the processes that fill it: two slots for each
// rank, so that one image is complete while the other is filled. This code does not interpret the
// bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

namespace shardc::save {

/// Reports an image from all others of a job. Steps of two attempts are never mixed: sums may
/// differ where a backend does not add in a fixed order.
struct ImageId {
  int64_t owner = 0;   ///< the rank whose state it is
  int64_t attempt = 0; ///< restarts before the start of the ranks that made it
  int64_t step = 0;    ///< after which the state is
  int64_t ranks = 0;   ///< of the attempt; other attempts of an elastic job may have others
  auto operator<=>(const ImageId &) const = default;
};

/// The content of an image's header. Sent as raw bytes between processes of the same program.
struct ImageInfo {
  ImageId id;
  uint64_t planHash = 0; ///< of the job's plans
  int64_t phase = 0;     ///< of the plans the one that the state is of
  int64_t metaBytes = 0; ///< of the job's position, which comes first
  int64_t stateBytes = 0;
  int64_t endedNs = 0; ///< when the step had ended, since 1970
  uint64_t crc = 0;    ///< of all bytes
  int64_t bytes() const { return metaBytes + stateBytes; }
  bool operator==(const ImageInfo &) const = default;
};

class ImageSlots {
public:
  static constexpr int kCount = 2;
  /// Memory for images of at most so many bytes.
  static int64_t bytesFor(int64_t imageBytesMax);

  ImageSlots() = default;
  /// Memory of zeros has no images. It is aligned to a page, and stays where it is.
  explicit ImageSlots(std::span<uint8_t> memory);

  bool isThere() const { return slotBytes_ > 0; }
  int64_t imageBytesMax() const;
  /// The complete image of a slot; none if it has none, or if its header is damaged.
  std::optional<ImageInfo> at(int slot) const;
  std::optional<int> find(const ImageId &id) const;
  std::span<uint8_t> bytesOf(int slot) const;
  /// Reads all bytes: false if they are not those that were completed.
  bool isIntact(int slot) const;

  /// The slot without an image, or else the one with the older image.
  int next() const;
  /// Marks the slot as without an image until `complete`.
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
