// Allocates addresses in the order of a segment: bytes are reused once their users must have ended.
#include "compiler/passes/Allocator.h"

#include <gtest/gtest.h>

#include <random>

namespace shardc::passes {
namespace {

/// A clock at which the compute stream has ended ops up to `op`.
Clock compute(int32_t op) {
  Clock clock = kClockZero;
  clock[0] = op;
  return clock;
}

TEST(Allocator, BuffersLieBehindEachOtherAligned) {
  Allocator allocator;
  EXPECT_EQ(allocator.allocate(1, kClockZero), 0);
  EXPECT_EQ(allocator.allocate(300, kClockZero), 256);
  EXPECT_EQ(allocator.allocate(256, kClockZero), 768);
  EXPECT_EQ(allocator.peakBytes(), 1024);
}

TEST(Allocator, FreeBytesAreTakenAgain) {
  Allocator allocator;
  int64_t first = allocator.allocate(512, kClockZero);
  allocator.allocate(256, compute(0));
  allocator.release(first, 512, compute(1));
  EXPECT_EQ(allocator.allocate(512, compute(1)), first);
  EXPECT_EQ(allocator.peakBytes(), 768);
}

TEST(Allocator, BytesThatAnotherStreamMayStillUseAreLeft) {
  Allocator allocator;
  int64_t first = allocator.allocate(256, kClockZero);
  Clock until = compute(1);
  until[2] = 2; // a reduction reads it
  allocator.release(first, 256, until);
  EXPECT_EQ(allocator.allocate(256, compute(5)), 256);
  Clock waited = compute(6);
  waited[2] = 2;
  EXPECT_EQ(allocator.allocate(256, waited), first);
}

TEST(Allocator, TheSmallestStretchThatFitsIsTaken) {
  Allocator allocator;
  int64_t large = allocator.allocate(1024, kClockZero);
  allocator.allocate(256, kClockZero);
  int64_t small = allocator.allocate(512, kClockZero);
  allocator.allocate(256, kClockZero);
  allocator.release(large, 1024, kClockZero);
  allocator.release(small, 512, kClockZero);
  EXPECT_EQ(allocator.allocate(512, kClockZero), small);
  EXPECT_EQ(allocator.allocate(512, kClockZero), large);
}

TEST(Allocator, NeighboursWithDifferentHistoriesAreTakenTogether) {
  Allocator allocator;
  int64_t first = allocator.allocate(256, kClockZero), second = allocator.allocate(256, kClockZero);
  allocator.allocate(256, kClockZero);
  allocator.release(first, 256, compute(1));
  allocator.release(second, 256, compute(2));
  EXPECT_EQ(allocator.allocate(512, compute(1)), 768) << "the second half may still be in use";
  EXPECT_EQ(allocator.allocate(512, compute(2)), first);
}

TEST(Allocator, TheArenaGrowsFromAFreeEnd) {
  Allocator allocator;
  allocator.allocate(256, kClockZero);
  int64_t last = allocator.allocate(256, kClockZero);
  allocator.release(last, 256, kClockZero);
  EXPECT_EQ(allocator.allocate(512, kClockZero), last);
  EXPECT_EQ(allocator.peakBytes(), 768);
}

TEST(Allocator, ReservedBytesAreKeptOut) {
  Allocator allocator;
  allocator.reserve(512, 256);
  EXPECT_EQ(allocator.allocate(512, kClockZero), 0);
  EXPECT_EQ(allocator.allocate(256, kClockZero), 768);
  allocator.release(512, 256, compute(3));
  EXPECT_EQ(allocator.allocate(256, compute(2)), 1024);
  EXPECT_EQ(allocator.allocate(256, compute(3)), 512);
}

TEST(AllocatorDeathTest, BytesInUseCannotBeReserved) {
  Allocator allocator;
  allocator.allocate(512, kClockZero);
  EXPECT_DEATH(allocator.reserve(256, 256), "bytes 256 to 512 are in use");
}

TEST(Allocator, RandomBuffersNeverOverlapOneThatMayBeInUse) {
  struct Held {
    int64_t offset, bytes;
    Clock until; ///< when a released buffer becomes free
    bool released = false;
  };
  std::mt19937_64 random(11);
  for (int round = 0; round < 50; ++round) {
    Allocator allocator;
    std::vector<Held> held;
    for (int32_t op = 0; op < 200; ++op) {
      Clock now = compute(op - 1);
      now[2] = op - 10; // the reduce stream is ten ops behind
      auto bytes = static_cast<int64_t>(1 + random() % 2000);
      int64_t offset = allocator.allocate(bytes, now);
      ASSERT_LE(offset + bytes, allocator.peakBytes());
      for (const Held &other : held) {
        bool apart = offset + bytes <= other.offset || other.offset + other.bytes <= offset;
        ASSERT_TRUE(apart || (other.released && covers(now, other.until))) << "op " << op;
      }
      held.push_back({offset, bytes, kClockZero, false});
      size_t victim = random() % held.size();
      if (!held[victim].released) {
        Clock until = compute(op);
        until[2] = random() % 2 == 0 ? op : -1;
        held[victim].until = until;
        held[victim].released = true;
        allocator.release(held[victim].offset, held[victim].bytes, until);
      }
    }
  }
}

} // namespace
} // namespace shardc::passes
