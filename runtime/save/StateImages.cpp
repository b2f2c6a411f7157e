// A slot has a page for its header, then the image. Its header says that the image is complete only
// after the whole image has been written, and has a CRC-32 of its own.
#include "runtime/save/StateImages.h"

#include <utility>

#include "runtime/base/Crc32.h"
#include "runtime/base/Status.h"

namespace shardc::save {
namespace {

constexpr int64_t kImagePage = 4096; ///< bytes; headers and images begin at multiples

} // namespace

int64_t ImageSlots::bytesFor(int64_t imageBytesMax) {
  return kCount * (kImagePage + (imageBytesMax + kImagePage - 1) / kImagePage * kImagePage);
}

ImageSlots::ImageSlots(std::span<uint8_t> memory)
    : memory_(memory.data()),
      slotBytes_(static_cast<int64_t>(memory.size()) / kCount / kImagePage * kImagePage) {
  static_assert(sizeof(Header) <= kImagePage);
  static_assert(sizeof(ImageInfo) == 10 * sizeof(int64_t)); // no padding with undefined bytes
}

int64_t ImageSlots::imageBytesMax() const { return slotBytes_ - kImagePage; }

ImageSlots::Header &ImageSlots::header(int slot) const {
  SHARDC_CHECK(isThere() && slot >= 0 && slot < kCount, "slot {}", slot);
  return *reinterpret_cast<Header *>(memory_ + slot * slotBytes_);
}

std::optional<ImageInfo> ImageSlots::at(int slot) const {
  const Header &head = header(slot);
  if (head.isComplete.load(std::memory_order_acquire) == 0)
    return std::nullopt;
  ImageInfo info = head.info;
  if (crc32(0, &info, sizeof info) != head.crc || info.metaBytes < 0 || info.stateBytes < 0 ||
      info.bytes() > imageBytesMax())
    return std::nullopt;
  return info;
}

std::optional<int> ImageSlots::find(const ImageId &id) const {
  for (int slot = 0; isThere() && slot < kCount; ++slot)
    if (std::optional<ImageInfo> info = at(slot); info && info->id == id)
      return slot;
  return std::nullopt;
}

std::span<uint8_t> ImageSlots::bytesOf(int slot) const {
  header(slot); // also checks the number
  return {memory_ + slot * slotBytes_ + kImagePage, static_cast<size_t>(imageBytesMax())};
}

bool ImageSlots::isIntact(int slot) const {
  std::optional<ImageInfo> info = at(slot);
  return info && crc32(0, bytesOf(slot).data(), static_cast<size_t>(info->bytes())) == info->crc;
}

int ImageSlots::next() const {
  std::optional<ImageInfo> first = at(0), second = at(1);
  if (!first || !second)
    return first ? 1 : 0;
  auto age = [](const ImageId &id) { return std::pair(id.attempt, id.step); };
  return age(first->id) < age(second->id) ? 0 : 1;
}

void ImageSlots::begin(int slot) const {
  header(slot).isComplete.store(0, std::memory_order_seq_cst);
}

void ImageSlots::complete(int slot, const ImageInfo &info) const {
  Header &head = header(slot);
  head.info = info;
  head.crc = crc32(0, &info, sizeof info);
  head.isComplete.store(1, std::memory_order_release);
}

} // namespace shardc::save
