// The sum of squares that a reduce_scatter computes of its shard: of valid elements only, of the
// stored results, in fp64, deterministic. The shard must be the same as without squares.
#include <algorithm>

#include "test/conformance/Conformance.h"

namespace shardc::conformance {
namespace {

using hal::Collective;
using hal::CollectiveKind;

struct SquaredSum {
  DType in = DType::F32, out = DType::F32;
  bool average = false, accumulate = false;
  int64_t count = 0;
  std::vector<ElementRange> valid;
};

/// Valid ranges: everything, nothing, padding before, between and after, and more ranges than fit
/// into one launch. None of the latter begins or ends at a chunk of elements.
std::vector<std::vector<ElementRange>> validOf(int64_t count) {
  std::vector<std::vector<ElementRange>> all = {{{0, count}}, {}};
  if (count < 1000)
    return all;
  all.push_back({{5, 6}, {7, count / 3}, {count / 3 + 1, count - 11}});
  std::vector<ElementRange> many;
  for (int64_t begin = 3; begin + 21 < count; begin += 21)
    many.push_back({begin, begin + 1 + begin % 19});
  all.push_back(std::move(many));
  return all;
}

std::vector<SquaredSum> squaredSums(std::initializer_list<int64_t> counts) {
  using enum DType;
  std::vector<SquaredSum> all;
  for (int64_t count : counts)
    for (const std::vector<ElementRange> &valid : validOf(count))
      for (auto [in, out] : {std::pair(F32, F32), std::pair(BF16, BF16), std::pair(BF16, F32),
                             std::pair(F16, F16), std::pair(F16, F32)})
        for (bool average : {false, true})
          for (bool accumulate : {false, true})
            all.push_back({in, out, average, accumulate, count, valid});
  return all;
}

std::string nameOf(const SquaredSum &sum, int rank) {
  return fmt::format("{} elements in {} ranges, {} to {}{}{}, rank {}", sum.count, sum.valid.size(),
                     dtypeName(sum.in), dtypeName(sum.out), sum.average ? ", average" : "",
                     sum.accumulate ? ", accumulated" : "", rank);
}

float rootOf(int rank, int64_t i) {
  return 0.013f * static_cast<float>((i * 7 + rank * 31) % 997 - 498);
}

/// Computed in long double, since backends add tens of thousands of squares in fp64, each in its
/// own order.
double squaresOf(const std::vector<float> &values, const std::vector<ElementRange> &valid) {
  long double sum = 0;
  for (const ElementRange &range : valid)
    for (int64_t i = range.begin; i < range.end; ++i) {
      long double value = values[static_cast<size_t>(i)];
      sum += value * value;
    }
  return static_cast<double>(sum);
}

/// Names the channel's uses, because one thread enqueues for all ranks.
std::unique_ptr<hal::Channel> channelFor(Conformance &test, int ranks,
                                         const std::vector<SquaredSum> &sums) {
  hal::ChannelDesc desc{"dp reduce", {}};
  for (int rank = 0; rank < ranks; ++rank)
    desc.members.push_back(rank);
  int64_t most = 0;
  for (const SquaredSum &sum : sums) {
    Reduction reduction = {true, ranks, sum.count, sum.in, sum.out, sum.accumulate, false, true};
    desc.receiveBufferBytes = std::max(desc.receiveBufferBytes, receiveBufferBytes(reduction));
    most = std::max(most, sum.count * ranks * 4);
  }
  desc.uses = {{CollectiveKind::ReduceScatter, most, false}};
  auto channel = test.backend->createChannel(desc);
  EXPECT_TRUE(channel.isOk()) << channel.status().message();
  return channel.isOk() ? std::move(*channel) : nullptr;
}

/// The memory of one sum, by rank.
struct Memory {
  std::vector<uint8_t *> in, out;
  std::vector<double *> squares;
};

Memory allocate(Conformance &test, int ranks, const SquaredSum &sum) {
  Memory memory;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> values(static_cast<size_t>(sum.count * ranks));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = rootOf(rank, static_cast<int64_t>(i));
    memory.in.push_back(putValues(test, rank, sum.in, values));
    values.assign(static_cast<size_t>(sum.count), 7.0f);
    memory.out.push_back(putValues(test, rank, sum.out, values));
    memory.squares.push_back(test.put<double>(rank, {-1.0}));
  }
  return memory;
}

Collective collectiveOf(const Memory &memory, int rank, const SquaredSum &sum) {
  auto at = static_cast<size_t>(rank);
  Collective desc{CollectiveKind::ReduceScatter, memory.in[at], memory.out[at], sum.count};
  desc.inType = sum.in, desc.outType = sum.out;
  desc.average = sum.average, desc.accumulate = sum.accumulate;
  desc.squares = memory.squares[at], desc.valid = sum.valid;
  return desc;
}

/// Results and squares by rank.
struct Found {
  std::vector<std::vector<float>> shards;
  std::vector<double> squares;
};

Found addOnce(Conformance &test, hal::Channel &channel, const SquaredSum &sum, bool squares) {
  int ranks = channel.size();
  Memory memory = allocate(test, ranks, sum);
  for (int rank = 0; rank < ranks; ++rank) {
    Collective desc = collectiveOf(memory, rank, sum);
    if (!squares)
      desc.squares = nullptr;
    Status status = test.stream(rank, "reduce").collective(channel, desc, "reduce");
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  Status status = test.backend->synchronize();
  EXPECT_TRUE(status.isOk()) << status.message();
  Found found;
  for (int rank = 0; rank < ranks; ++rank) {
    auto at = static_cast<size_t>(rank);
    found.shards.push_back(getValues(test, rank, sum.out, memory.out[at], sum.count));
    found.squares.push_back(test.get(rank, memory.squares[at], 1)[0]);
  }
  return found;
}

void addAll(Conformance &test, int ranks, const std::vector<SquaredSum> &sums) {
  std::unique_ptr<hal::Channel> channel = channelFor(test, ranks, sums);
  for (const SquaredSum &sum : sums) {
    if (!channel || testing::Test::HasFailure())
      return;
    Found found = addOnce(test, *channel, sum, true), again = addOnce(test, *channel, sum, true);
    Found plain = addOnce(test, *channel, sum, false);
    for (int rank = 0; test.computes() && rank < ranks; ++rank) {
      auto at = static_cast<size_t>(rank);
      double want = squaresOf(found.shards[at], sum.valid);
      EXPECT_NEAR(found.squares[at], want, 1e-12 * want) << nameOf(sum, rank);
      EXPECT_EQ(found.squares[at], again.squares[at]) << nameOf(sum, rank);
      EXPECT_TRUE(found.shards[at] == plain.shards[at]) << nameOf(sum, rank);
      EXPECT_EQ(plain.squares[at], -1.0) << nameOf(sum, rank);
    }
  }
}

TEST_P(Conformance, TwoRanksSumSquaresOfShards) {
  START(2);
  addAll(*this, 2, squaredSums({1, 1001, 50000}));
}

TEST_P(Conformance, ThreeRanksSumSquaresOfShards) {
  START(3);
  addAll(*this, 3, squaredSums({8, 1000, 5003}));
}

TEST_P(Conformance, FourRanksSumSquaresOfShards) {
  START(4);
  addAll(*this, 4, squaredSums({16, 4096, 50008}));
}

/// There are enough tiles for each partial sum to cover several of them.
TEST_P(Conformance, SquaresOfLargeShards) {
  START(2);
  constexpr int64_t kCount = (int64_t{9} << 20) + 13;
  addAll(*this, 2, {{DType::BF16, DType::F32, true, true, kCount, {{0, 12345}, {20000, kCount}}}});
}

TEST_P(Conformance, SquaresExceedWhatFloatsHold) {
  START(2);
  SquaredSum sum{DType::F32, DType::F32, false, false, 1000, {{0, 999}}};
  std::unique_ptr<hal::Channel> channel = channelFor(*this, 2, {sum});
  ASSERT_TRUE(channel);
  Memory memory = allocate(*this, 2, sum);
  for (int rank = 0; rank < 2; ++rank)
    write(rank, memory.in[static_cast<size_t>(rank)], std::vector<float>(2000, 1e30f).data(), 8000);
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_STATUS(
        stream(rank, "reduce").collective(*channel, collectiveOf(memory, rank, sum), "reduce"));
  ASSERT_STATUS(backend->synchronize());
  double value = 1e30f + 1e30f;
  for (int rank = 0; computes() && rank < 2; ++rank)
    EXPECT_NEAR(get(rank, memory.squares[static_cast<size_t>(rank)], 1)[0], 999 * value * value,
                1e-13 * 999 * value * value);
}

/// Each launch squares the results that it has stored.
TEST_P(Conformance, SquaresAreSummedInEveryLaunch) {
  START(2);
  SquaredSum sum{DType::BF16, DType::F32, true, true, 5000, validOf(5000).back()};
  std::unique_ptr<hal::Channel> channel = channelFor(*this, 2, {sum});
  ASSERT_TRUE(channel);
  Memory memory = allocate(*this, 2, sum);
  std::vector<std::unique_ptr<hal::Graph>> graphs;
  for (int rank = 0; rank < 2; ++rank) {
    hal::Stream &reduce = stream(rank, "reduce");
    ASSERT_STATUS(reduce.beginCapture());
    ASSERT_STATUS(reduce.collective(*channel, collectiveOf(memory, rank, sum), "reduce"));
    auto graph = reduce.endCapture();
    ASSERT_TRUE(graph.isOk()) << graph.status().message();
    graphs.push_back(std::move(*graph));
  }
  for (int launch = 0; launch < 2; ++launch) {
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_STATUS(stream(rank, "reduce").launch(*graphs[static_cast<size_t>(rank)], {}));
    ASSERT_STATUS(backend->synchronize());
    for (int rank = 0; computes() && rank < 2; ++rank) {
      auto at = static_cast<size_t>(rank);
      double want =
          squaresOf(getValues(*this, rank, sum.out, memory.out[at], sum.count), sum.valid);
      EXPECT_NEAR(get(rank, memory.squares[at], 1)[0], want, 1e-13 * want) << launch;
    }
  }
}

} // namespace
} // namespace shardc::conformance
