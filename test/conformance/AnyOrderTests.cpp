// Sums whose order a backend may choose: each element must be within the rounding error of the
// operand's type, and all members of an all-reduce must get the same bits.
#include <algorithm>
#include <cmath>

#include "runtime/base/Reduction.h"
#include "test/conformance/Conformance.h"

namespace shardc::conformance {

using hal::Collective;
using hal::CollectiveKind;

struct Sum {
  CollectiveKind kind = CollectiveKind::ReduceScatter;
  DType in = DType::F32, out = DType::F32;
  bool average = false, accumulate = false, inPlace = false;
};

namespace {

/// Elements of a shard, or of a whole all-reduce: below and above the sizes at which backends
/// change their method.
const int64_t kCounts[] = {1, 1000, 4096, 5000, 50000};

constexpr float kBegin = 7.0f; ///< old value of results to which a sum is added

std::vector<Sum> sums() {
  using enum DType;
  std::vector<Sum> all;
  for (bool average : {false, true}) {
    for (auto [in, out] : {std::pair(F32, F32), std::pair(BF16, BF16), std::pair(BF16, F32),
                           std::pair(F16, F16), std::pair(F16, F32)})
      for (bool accumulate : {false, true})
        all.push_back({CollectiveKind::ReduceScatter, in, out, average, accumulate});
    for (auto [in, out] : {std::pair(F32, F32), std::pair(BF16, BF16), std::pair(BF16, F32),
                           std::pair(F16, F16), std::pair(F16, F32)})
      for (bool inPlace : {false, true})
        if (in == out || !inPlace)
          all.push_back({CollectiveKind::AllReduce, in, out, average, false, inPlace});
  }
  return all;
}

std::string nameOf(const Sum &sum, int64_t count) {
  return fmt::format("{} of {} elements, {} to {}{}{}{}", hal::toString(sum.kind), count,
                     dtypeName(sum.in), dtypeName(sum.out), sum.average ? ", average" : "",
                     sum.accumulate ? ", accumulated" : "", sum.inPlace ? ", in place" : "");
}

/// Half the relative distance between neighbouring numbers.
double roundoff(DType type) {
  return type == DType::BF16 ? 0x1p-8 : type == DType::F16 ? 0x1p-11 : 0x1p-24;
}

/// Values of both signs, exact in bf16 and f16; ranks differ about as much as elements.
float summandOf(int rank, int64_t i) {
  return toFloat(toBF16(0.37f * static_cast<float>((i * 7 + rank * 31) % 97 - 48)));
}

/// Distance from the exact result, divided by the largest allowed rounding error. Each addition,
/// the factor of an average and its product round once in the type in which the backend adds; the
/// store and the addition to the old result round in the result's type.
double distance(const Sum &sum, int ranks, int64_t i, float got) {
  double exact = 0, size = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    exact += summandOf(rank, i);
    size += std::abs(summandOf(rank, i));
  }
  if (sum.average)
    exact /= ranks, size /= ranks;
  double begin = sum.accumulate ? kBegin : 0;
  double allowed = (ranks + 1) * roundoff(sum.in) * size +
                   2 * roundoff(sum.out) * (size + begin); // sizes bound all intermediate values
  double off = std::abs(got - (exact + begin));
  return off == 0 ? 0 : off / allowed;
}

} // namespace

/// Does one sum of `count` elements on all ranks. Returns the largest distance; more than 1 after a
/// failure.
double Conformance::addOnce(const Sum &sum, int64_t count, hal::Channel &channel) {
  int ranks = channel.size();
  bool scatters = sum.kind == CollectiveKind::ReduceScatter;
  std::vector<uint8_t *> in, out;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> values;
    for (int64_t i = 0; i < (scatters ? count * ranks : count); ++i)
      values.push_back(summandOf(rank, i));
    in.push_back(putValues(*this, rank, sum.in, values));
    values.assign(static_cast<size_t>(count), kBegin);
    out.push_back(sum.inPlace ? in.back() : putValues(*this, rank, sum.out, values));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    auto at = static_cast<size_t>(rank);
    Collective part{sum.kind, in[at], out[at], count, sum.in, sum.out};
    part.average = sum.average, part.accumulate = sum.accumulate;
    part.anyOrder = true;
    Status status = stream(rank, "reduce").collective(channel, part, "reduce");
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  Status status = backend->synchronize();
  EXPECT_TRUE(status.isOk()) << status.message();
  double worst = 0;
  std::vector<float> first;
  for (int rank = 0; computes() && rank < ranks; ++rank) {
    std::vector<float> got = getValues(*this, rank, sum.out, out[static_cast<size_t>(rank)], count);
    for (int64_t i = 0; i < count; ++i) {
      float value = got[static_cast<size_t>(i)];
      double off = distance(sum, ranks, scatters ? rank * count + i : i, value);
      EXPECT_LE(off, 1.0) << nameOf(sum, count) << ", rank " << rank << ": element " << i << " is "
                          << value;
      if (!(off <= 1.0))
        return 2;
      worst = std::max(worst, off);
    }
    if (rank == 0)
      first = got;
    EXPECT_TRUE(scatters || got == first) << nameOf(sum, count) << ": ranks differ";
  }
  buffers_.clear();
  return worst;
}

/// One thread enqueues for all ranks, so no call may wait for another rank. Therefore the
/// channel's description names its uses.
void Conformance::addInAnyOrder(int ranks) {
  hal::ChannelDesc desc{"dp reduce", {}};
  for (int rank = 0; rank < ranks; ++rank)
    desc.members.push_back(rank);
  for (CollectiveKind kind : {CollectiveKind::ReduceScatter, CollectiveKind::AllReduce}) {
    bool scatters = kind == CollectiveKind::ReduceScatter;
    int64_t bytes = kCounts[std::size(kCounts) - 1] * (scatters ? ranks : 1) * 4;
    desc.uses = {{kind, bytes, true},
                 {kind, bytes, false}}; // a library cannot compute all of these sums
    desc.receiveBufferBytes = 0;
    for (int64_t count : kCounts)
      for (const Sum &sum : sums())
        if (sum.kind == kind)
          desc.receiveBufferBytes = std::max(
              desc.receiveBufferBytes, receiveBufferBytes({scatters, ranks, count, sum.in, sum.out,
                                                           sum.accumulate, /*anyOrder=*/true}));
    auto channel = backend->createChannel(desc);
    ASSERT_TRUE(channel.isOk()) << channel.status().message();
    double worst = 0;
    std::string worstName = "none";
    for (int64_t count : kCounts)
      for (const Sum &sum : sums()) {
        if (sum.kind != kind)
          continue;
        double off = addOnce(sum, count, **channel);
        if (off > worst)
          worst = off, worstName = nameOf(sum, count);
        if (HasFailure())
          return;
      }
    if (computes())
      fmt::print("{} ranks: at most {:.2f} of what rounding allows, in {}\n", ranks, worst,
                 worstName);
  }
}

namespace {

TEST_P(Conformance, TwoRanksAddInAnyOrder) {
  START(2);
  addInAnyOrder(2);
}

TEST_P(Conformance, ThreeRanksAddInAnyOrder) {
  START(3);
  addInAnyOrder(3);
}

TEST_P(Conformance, FourRanksAddInAnyOrder) {
  START(4);
  addInAnyOrder(4);
}

} // namespace
} // namespace shardc::conformance
