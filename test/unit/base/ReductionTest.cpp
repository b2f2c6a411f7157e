// The method of a sum over ranks, and the receive buffer of each.
#include <gtest/gtest.h>

#include "runtime/base/Reduction.h"

namespace shardc {
namespace {

constexpr int64_t kShard = 131338240; ///< llama3_8b's head on four devices

Reduction scatterOf(DType in, DType out, bool accumulates, bool anyOrder) {
  return {true, 4, kShard, in, out, accumulates, anyOrder};
}

TEST(Reduction, TheLibraryAloneNeedsNoLandingBuffer) {
  for (DType type : {DType::BF16, DType::F32}) {
    Reduction direct = scatterOf(type, type, false, true);
    EXPECT_EQ(wayOf(direct), ReductionWay::Library);
    EXPECT_EQ(receiveBufferBytes(direct), 0);
  }
}

TEST(Reduction, WiderSumsAndAddedOnesLandAsTheyTravel) {
  Reduction wider = scatterOf(DType::BF16, DType::F32, false, true);
  EXPECT_EQ(wayOf(wider), ReductionWay::LibraryThen);
  EXPECT_EQ(receiveBufferBytes(wider), 2 * kShard);
  EXPECT_EQ(receiveBufferBytes(scatterOf(DType::F32, DType::F32, true, true)), 4 * kShard);
}

TEST(Reduction, SumsInRankOrderLandEverybodysVersion) {
  Reduction ordered = scatterOf(DType::BF16, DType::BF16, false, false);
  EXPECT_EQ(wayOf(ordered), ReductionWay::Exchange);
  EXPECT_EQ(receiveBufferBytes(ordered), 4 * 2 * kShard);
  EXPECT_EQ(receiveBufferBytes(scatterOf(DType::F32, DType::F32, true, false)), 4 * 4 * kShard);
  EXPECT_EQ(wayOf(scatterOf(DType::F64, DType::F64, false, true)), ReductionWay::Exchange)
      << "f64 is added in order always";
}

TEST(Reduction, SquaresAreAddedUpBehindTheVersions) {
  Reduction squares = {true, 3, 1001, DType::BF16, DType::F32, true, false, true};
  EXPECT_EQ(wayOf(squares), ReductionWay::Exchange);
  EXPECT_EQ(squareSumsOffset(squares), 6016) << "3 times 1001 numbers of 2 bytes, aligned to 16";
  EXPECT_EQ(receiveBufferBytes(squares), 6016 + 8) << "one sum for one tile";
  EXPECT_EQ(squareSumsOf(2048), 1);
  EXPECT_EQ(squareSumsOf(2049), 2);
  EXPECT_EQ(squareSumsOf(4095 * 2048), 4095);
  EXPECT_EQ(squareSumsOf(4096 * 2048), 2048) << "of two tiles each";
  EXPECT_EQ(squareSumsOf(kShard), 8017) << "of eight tiles each";
}

TEST(Reduction, SumsForAllLandWholesOrChunks) {
  Reduction small = {false, 4, 4096, DType::F64, DType::F64, false, true};
  EXPECT_EQ(wayOf(small), ReductionWay::Gather);
  EXPECT_EQ(receiveBufferBytes(small), 4 * 4096 * 8);
  Reduction large = {false, 3, 4097, DType::F32, DType::F32, false, false};
  EXPECT_EQ(wayOf(large), ReductionWay::Exchange);
  EXPECT_EQ(chunkOf(4097, 3), 1368) << "a multiple of 8 elements";
  EXPECT_EQ(receiveBufferBytes(large), 3 * 1368 * 4);
  large.anyOrder = true;
  EXPECT_EQ(wayOf(large), ReductionWay::Library);
  EXPECT_EQ(receiveBufferBytes(large), 0);
}

TEST(Reduction, NothingLandsInAGroupOfOne) {
  for (bool scatters : {false, true})
    for (int64_t count : {int64_t{8}, kShard}) {
      Reduction alone = {scatters, 1, count, DType::BF16, DType::F32, scatters, true};
      EXPECT_NE(wayOf(alone), ReductionWay::Library) << "the result may be wider";
      EXPECT_EQ(receiveBufferBytes(alone), 0);
    }
}

} // namespace
} // namespace shardc
