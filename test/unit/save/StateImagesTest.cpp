// Images of state in memory: one generation stays complete while the other is filled, and damage is
// detected. The job's position is unpacked as it was packed.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/save/ImageLayout.h"
#include "runtime/save/StateImages.h"
#include "test/unit/save/Images.h"

namespace shardc::save {
namespace {

TEST(ImageSlots, KeepTheNewerGenerationWhileTheOlderIsFilled) {
  Memory memory;
  ImageSlots slots = memory.slots();
  EXPECT_FALSE(slots.at(0) || slots.at(1));
  for (int64_t step : {3, 6, 9}) {
    int slot = slots.next();
    std::optional<ImageInfo> kept = slots.at(1 - slot);
    slots.begin(slot);
    EXPECT_FALSE(slots.at(slot)) << "while it is filled";
    EXPECT_EQ(slots.at(1 - slot), kept);
    fill(slots, slot, {0, 0, step});
    EXPECT_EQ(slots.find({0, 0, step}), slot);
  }
  EXPECT_TRUE(slots.find({0, 0, 6}));
  EXPECT_FALSE(slots.find({0, 0, 3}));
}

TEST(ImageSlots, OutliveTheObject) {
  Memory memory;
  fill(memory.slots(), 1, {2, 1, 7});
  ImageSlots later = memory.slots(); // like another process with the same memory
  EXPECT_EQ(later.find({2, 1, 7}), 1);
  EXPECT_TRUE(later.isIntact(1));
  EXPECT_EQ(later.next(), 0);
}

TEST(ImageSlots, TakeALaterAttemptForTheNewer) {
  Memory memory;
  ImageSlots slots = memory.slots();
  fill(slots, 0, {0, 0, 9});
  fill(slots, 1, {0, 1, 6});
  EXPECT_EQ(slots.next(), 0);
}

TEST(ImageSlots, NoticeEachChangedByte) {
  Memory memory;
  ImageSlots slots = memory.slots();
  fill(slots, 0, {0, 0, 3});
  int64_t bytes = slots.at(0)->bytes();
  for (int64_t at = 0; at < bytes; ++at) {
    slots.bytesOf(0)[static_cast<size_t>(at)] ^= 0x10;
    EXPECT_FALSE(slots.isIntact(0)) << at;
    slots.bytesOf(0)[static_cast<size_t>(at)] ^= 0x10;
  }
  EXPECT_TRUE(slots.isIntact(0));
  // The header has its own checksum: a slot with a damaged header has no image.
  size_t header = 0;
  while (memory.bytes()[header] == 0) // the mark of a complete image comes first
    ++header;
  for (size_t at = header + sizeof(uint32_t); at < header + sizeof(ImageInfo); ++at) {
    memory.bytes()[at] ^= 1;
    EXPECT_FALSE(slots.at(0)) << at;
    memory.bytes()[at] ^= 1;
  }
  EXPECT_TRUE(slots.at(0));
}

Progress someProgress() {
  Progress progress;
  progress.step = 12;
  progress.applied = 11;
  progress.scheduledSamples = 96;
  progress.lr = 0.1f;
  progress.weightDecay = 0.01f;
  progress.lossScaler = LossScaler{4096, 3, 2};
  progress.amaxHistory = {1, 2, 3};
  progress.consumedTrainSamples = 480;
  progress.skippedTrainSamples = 40;
  progress.floatingPointOperations = 1e15;
  progress.countOffsets = {0, -3};
  return progress;
}

TEST(PackedProgress, ComesBackWhole) {
  Progress before = someProgress();
  Result<Progress> after = unpackProgress(packProgress(before));
  ASSERT_TRUE(after.isOk());
  EXPECT_EQ(packProgress(*after), packProgress(before));
  EXPECT_EQ(after->step, 12);
  EXPECT_EQ(after->lossScaler->growthTracker, 3);
  EXPECT_EQ(after->amaxHistory, before.amaxHistory);
  EXPECT_TRUE(after->expertBias.empty());
  EXPECT_EQ(after->countOffsets, before.countOffsets);
  EXPECT_EQ(after->skippedTrainSamples, 40);
}

TEST(PackedProgress, RefusesOtherBytes) {
  std::string whole = packProgress(someProgress());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(unpackProgress(std::string_view(whole).substr(0, size)).isOk()) << size;
  EXPECT_FALSE(unpackProgress(whole + "x").isOk());
}

} // namespace
} // namespace shardc::save
