// Results of collectives, their types, and the order of ranks.
#include <cstring>

#include "test/conformance/Conformance.h"

#include <algorithm>

namespace shardc::conformance {
namespace {

using hal::Collective;
using hal::CollectiveKind;

/// Sizes below and above the sizes at which backends change their method.
const int64_t kShardSizes[] = {1, 1000, 50000};

float valueOf(int rank, int64_t i) {
  return 0.1f * static_cast<float>(rank + 1) + static_cast<float>(i % 97);
}

std::vector<int> allRanks(int ranks) {
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.push_back(rank);
  return members;
}

TEST_P(Conformance, AllGatherInPlace) {
  START(3);
  auto channel = backend->createChannel({"dp gather", allRanks(3)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t shard : kShardSizes) {
    std::vector<float *> full;
    std::vector<float> expected;
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<float> mine(3 * shard, -1.0f);
      for (int64_t i = 0; i < shard; ++i) {
        mine[rank * shard + i] = valueOf(rank, i);
        expected.push_back(valueOf(rank, i));
      }
      full.push_back(put(rank, mine));
    }
    for (int rank = 0; rank < 3; ++rank) {
      Collective desc{CollectiveKind::AllGather, full[rank] + rank * shard, full[rank], shard};
      ASSERT_STATUS(stream(rank, "gather").collective(**channel, desc, "gather"));
    }
    ASSERT_STATUS(backend->synchronize());
    for (int rank = 0; computes() && rank < 3; ++rank)
      EXPECT_EQ(get(rank, full[rank], 3 * shard), expected);
  }
}

TEST_P(Conformance, ReduceScatterWidensAveragesAndAccumulates) {
  START(3);
  auto channel = backend->createChannel({"dp reduce", allRanks(3)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t shard : kShardSizes) {
    std::vector<std::vector<BF16>> in(3, std::vector<BF16>(3 * shard));
    std::vector<float *> out;
    std::vector<BF16 *> whole;
    for (int rank = 0; rank < 3; ++rank) {
      for (int64_t i = 0; i < 3 * shard; ++i)
        in[rank][i] = toBF16(valueOf(rank, i));
      whole.push_back(put(rank, in[rank]));
      out.push_back(put(rank, std::vector<float>(shard, 7.0f)));
    }
    for (int rank = 0; rank < 3; ++rank) {
      Collective desc{CollectiveKind::ReduceScatter, whole[rank], out[rank], shard};
      desc.inType = DType::BF16;
      desc.average = desc.accumulate = true;
      ASSERT_STATUS(stream(rank, "reduce").collective(**channel, desc, "reduce"));
    }
    ASSERT_STATUS(backend->synchronize());
    for (int rank = 0; computes() && rank < 3; ++rank) {
      std::vector<float> expected(shard);
      for (int64_t i = 0; i < shard; ++i) {
        int64_t at = rank * shard + i;
        expected[i] =
            7.0f + ((toFloat(in[0][at]) + toFloat(in[1][at])) + toFloat(in[2][at])) / 3.0f;
      }
      EXPECT_EQ(get(rank, out[rank], shard), expected);
    }
  }
}

TEST_P(Conformance, AllReduceInPlaceAddsInRankOrder) {
  START(4);
  auto channel = backend->createChannel({"dp misc", allRanks(4)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t count : kShardSizes) {
    std::vector<float *> x;
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<float> mine(count);
      for (int64_t i = 0; i < count; ++i)
        mine[i] = valueOf(rank, i);
      x.push_back(put(rank, mine));
    }
    for (int rank = 0; rank < 4; ++rank) {
      Collective desc{CollectiveKind::AllReduce, x[rank], x[rank], count};
      ASSERT_STATUS(stream(rank, "compute").collective(**channel, desc, "sum"));
    }
    ASSERT_STATUS(backend->synchronize());
    std::vector<float> expected(count);
    for (int64_t i = 0; i < count; ++i)
      expected[i] = ((valueOf(0, i) + valueOf(1, i)) + valueOf(2, i)) + valueOf(3, i);
    for (int rank = 0; computes() && rank < 4; ++rank)
      EXPECT_EQ(get(rank, x[rank], count), expected);
  }
}

TEST_P(Conformance, AllReduceMaxTakesTheLargest) {
  START(3);
  auto channel = backend->createChannel({"dp misc", allRanks(3)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t count : kShardSizes)
    for (bool inPlace : {false, true}) {
      std::vector<std::vector<BF16>> in(3, std::vector<BF16>(count));
      std::vector<BF16 *> x, y;
      for (int rank = 0; rank < 3; ++rank) {
        for (int64_t i = 0; i < count; ++i)
          in[rank][i] = toBF16(valueOf(rank, i + 31 * rank) * (i % 5 == rank ? -1.0f : 1.0f));
        x.push_back(put(rank, in[rank]));
        y.push_back(inPlace ? x[rank] : put(rank, std::vector<BF16>(count)));
      }
      for (int rank = 0; rank < 3; ++rank) {
        Collective desc{
            CollectiveKind::AllReduceMax, x[rank], y[rank], count, DType::BF16, DType::BF16};
        ASSERT_STATUS(stream(rank, "compute").collective(**channel, desc, "max"));
      }
      ASSERT_STATUS(backend->synchronize());
      for (int rank = 0; computes() && rank < 3; ++rank) {
        std::vector<BF16> got = get(rank, y[rank], count);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(toFloat(got[i]),
                    std::max({toFloat(in[0][i]), toFloat(in[1][i]), toFloat(in[2][i])}))
              << i;
      }
    }
}

/// Elements may be of any type; here, 32-bit integers.
TEST_P(Conformance, AllToAllGivesEachMemberItsPart) {
  START(3);
  auto channel = backend->createChannel({"cp exchange", allRanks(3)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t part : kShardSizes) {
    std::vector<int32_t *> x, y;
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<int32_t> mine(3 * part);
      for (int64_t i = 0; i < 3 * part; ++i)
        mine[i] = static_cast<int32_t>(1000000 * rank + i);
      x.push_back(put(rank, mine));
      y.push_back(put(rank, std::vector<int32_t>(3 * part, -1)));
    }
    for (int rank = 0; rank < 3; ++rank) {
      Collective desc{CollectiveKind::AllToAll, x[rank], y[rank], part, DType::I32, DType::I32};
      ASSERT_STATUS(stream(rank, "exchange").collective(**channel, desc, "exchange"));
    }
    ASSERT_STATUS(backend->synchronize());
    for (int rank = 0; computes() && rank < 3; ++rank) {
      std::vector<int32_t> expected;
      for (int64_t from = 0; from < 3; ++from)
        for (int64_t i = 0; i < part; ++i)
          expected.push_back(static_cast<int32_t>(1000000 * from + rank * part + i));
      EXPECT_EQ(get(rank, y[rank], 3 * part), expected);
    }
  }
}

/// Number of rows in a slot; it differs between turns, members and slots.
int64_t rowsThere(int64_t turn, int64_t member, int64_t slot, int64_t capacity) {
  int64_t mixed = (7 * turn + 5 * member + 3 * slot) % 4;
  return mixed == 0 ? 0 : mixed == 1 ? capacity : (11 * member + 13 * slot + turn) % (capacity + 1);
}

/// Rows beyond the counts may have any content. The exchange is repeated, because members count
/// calls.
TEST_P(Conformance, AllToAllGivesTheRowsThatAreThere) {
  constexpr int kRanks = 3;
  START(kRanks);
  constexpr int64_t kCapacity = 37, kSlots = 2 * kRanks,
                    kRows = kSlots * kCapacity; // two slots per part
  constexpr int64_t kMost = kRows * 4096;
  std::vector<uint8_t *> y;
  hal::ChannelDesc desc{"experts", allRanks(kRanks)};
  for (int rank = 0; rank < kRanks; ++rank) {
    y.push_back(memory(rank, kMost));
    desc.reached.push_back({rank, y.back(), kMost});
  }
  auto channel = backend->createChannel(desc);
  ASSERT_TRUE(channel.isOk());
  int64_t turn = 0;
  for (int64_t rowBytes : {1, 2, 12, 40, 64, 4096})
    for (int64_t groups : {1, 3, 70}) {
      ++turn;
      std::vector<std::vector<uint8_t>> x;
      std::vector<Collective> moves;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        x.emplace_back(kRows * rowBytes);
        for (size_t i = 0; i < x.back().size(); ++i)
          x.back()[i] = static_cast<uint8_t>(131 * turn + 71 * rank + i * 7 + i / 251);
        std::vector<int32_t> counts(kSlots * groups);
        for (int64_t slot = 0; slot < kSlots; ++slot) {
          int64_t rows = rowsThere(turn, rank, slot, kCapacity);
          for (int64_t group = 0; group < groups; ++group)
            counts[slot * groups + group] =
                static_cast<int32_t>(rows * (group + 1) / groups - rows * group / groups);
        }
        auto at = static_cast<int>(rank);
        Collective move{CollectiveKind::AllToAll,  put(at, x.back()), y[rank],
                        kRows / kRanks * rowBytes, DType::U8,         DType::U8};
        move.counted = {put(at, counts), kSlots, groups, kRows};
        moves.push_back(move);
      }
      for (int rank = 0; rank < kRanks; ++rank)
        ASSERT_STATUS(stream(rank, "exchange").collective(**channel, moves[rank], "exchange"));
      ASSERT_STATUS(backend->synchronize());
      for (int64_t rank = 0; computes() && rank < kRanks; ++rank) {
        std::vector<uint8_t> got = get(static_cast<int>(rank), y[rank], kRows * rowBytes);
        for (int64_t slot = 0; slot < kSlots; ++slot) { // slots are in the order of senders
          int64_t from = slot / 2, given = 2 * rank + slot % 2;
          int64_t bytes = rowsThere(turn, from, given, kCapacity) * rowBytes;
          const uint8_t *wanted = x[from].data() + given * kCapacity * rowBytes;
          EXPECT_TRUE(std::equal(wanted, wanted + bytes, got.begin() + slot * kCapacity * rowBytes))
              << "rows of " << rowBytes << " bytes, slot " << slot << " of rank " << rank;
        }
      }
    }
}

TEST_P(Conformance, ShiftTakesWhatAMemberBeforeHas) {
  START(4);
  auto channel = backend->createChannel({"cp ring", allRanks(4)});
  ASSERT_TRUE(channel.isOk());
  for (int64_t count : kShardSizes)
    for (int64_t by : {1, 2, -1, 3, 4, 0, -7}) {
      std::vector<float *> x, y;
      for (int rank = 0; rank < 4; ++rank) {
        std::vector<float> mine(count);
        for (int64_t i = 0; i < count; ++i)
          mine[i] = valueOf(rank, i);
        x.push_back(put(rank, mine));
        y.push_back(put(rank, std::vector<float>(count, -1.0f)));
      }
      for (int rank = 0; rank < 4; ++rank) {
        Collective desc{CollectiveKind::Shift, x[rank], y[rank], count};
        desc.by = by;
        ASSERT_STATUS(stream(rank, "ring").collective(**channel, desc, "shift"));
      }
      ASSERT_STATUS(backend->synchronize());
      for (int rank = 0; computes() && rank < 4; ++rank) {
        std::vector<float> expected(count);
        for (int64_t i = 0; i < count; ++i)
          expected[i] = valueOf(static_cast<int>((rank - by + 8) % 4), i);
        EXPECT_EQ(get(rank, y[rank], count), expected) << by;
      }
    }
}

TEST_P(Conformance, AllReduceOfDoublesKeepsTheirPrecision) {
  START(2);
  auto channel = backend->createChannel({"dp misc", allRanks(2)});
  ASSERT_TRUE(channel.isOk());
  std::vector<double *> x = {put<double>(0, {1.0, 1e300}), put<double>(1, {1e-15, -1e300})};
  for (int rank = 0; rank < 2; ++rank) {
    Collective desc{CollectiveKind::AllReduce, x[rank], x[rank], 2, DType::F64, DType::F64};
    ASSERT_STATUS(stream(rank, "compute").collective(**channel, desc, "sum"));
  }
  ASSERT_STATUS(backend->synchronize());
  if (!computes())
    return;
  EXPECT_EQ(get(0, x[0], 2), (std::vector<double>{1.0 + 1e-15, 0.0}));
  EXPECT_EQ(get(1, x[1], 2), (std::vector<double>{1.0 + 1e-15, 0.0}));
}

TEST_P(Conformance, GroupsAreApart) {
  START(4);
  auto even = backend->createChannel({"even", {0, 2}}),
       odd = backend->createChannel({"odd", {1, 3}});
  ASSERT_TRUE(even.isOk() && odd.isOk());
  std::vector<float *> x;
  for (int rank = 0; rank < 4; ++rank)
    x.push_back(put<float>(rank, {static_cast<float>(1 << rank)}));
  for (int rank = 0; rank < 4; ++rank) {
    Collective desc{CollectiveKind::AllReduce, x[rank], x[rank], 1};
    ASSERT_STATUS(stream(rank, "compute").collective(rank % 2 ? **odd : **even, desc, "sum"));
  }
  ASSERT_STATUS(backend->synchronize());
  for (int rank = 0; computes() && rank < 4; ++rank)
    EXPECT_EQ(get(rank, x[rank], 1)[0], rank % 2 ? 10.0f : 5.0f);
}

TEST_P(Conformance, ChannelKeepsIssueOrderAcrossStreams) {
  START(2);
  auto channel = backend->createChannel({"dp misc", allRanks(2)});
  ASSERT_TRUE(channel.isOk());
  std::vector<float *> x, y;
  std::vector<std::unique_ptr<hal::Graph>> graphs;
  for (int rank = 0; rank < 2; ++rank) {
    x.push_back(put<float>(rank, {1.0f}));
    y.push_back(put<float>(rank, {10.0f}));
    hal::Stream &a = stream(rank, "a"), &b = stream(rank, "b");
    std::unique_ptr<hal::Event> fork = event(rank), join = event(rank);
    ASSERT_STATUS(a.beginCapture());
    ASSERT_STATUS(a.record(*fork));
    ASSERT_STATUS(b.wait(*fork));
    for (int i = 0; i < 4; ++i) {
      Collective sumX{CollectiveKind::AllReduce, x[rank], x[rank], 1};
      Collective sumY{CollectiveKind::AllReduce, y[rank], y[rank], 1};
      ASSERT_STATUS(a.collective(**channel, sumX, "sum x"));
      ASSERT_STATUS(b.collective(**channel, sumY, "sum y"));
    }
    ASSERT_STATUS(b.record(*join));
    ASSERT_STATUS(a.wait(*join));
    auto graph = a.endCapture();
    ASSERT_TRUE(graph.isOk()) << graph.status().message();
    graphs.push_back(std::move(*graph));
  }
  for (int launch = 0; launch < 2; ++launch)
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_STATUS(stream(rank, "a").launch(*graphs[rank], {}));
  ASSERT_STATUS(backend->synchronize());
  for (int rank = 0; computes() && rank < 2; ++rank) {
    EXPECT_EQ(get(rank, x[rank], 1)[0], 256.0f);
    EXPECT_EQ(get(rank, y[rank], 1)[0], 2560.0f);
  }
}

/// A channel for each two neighbouring ranks.
std::vector<std::vector<int>> neighbours(int ranks) {
  std::vector<std::vector<int>> pairs;
  for (int rank = 0; rank + 1 < ranks; ++rank)
    pairs.push_back({rank, rank + 1});
  return pairs;
}

TEST_P(Conformance, TransfersGoFromOneRankToTheOther) {
  START(3);
  std::vector<std::unique_ptr<hal::Channel>> channels;
  for (const std::vector<int> &pair : neighbours(3)) {
    auto channel = backend->createChannel({"pp up", pair});
    ASSERT_TRUE(channel.isOk());
    channels.push_back(std::move(*channel));
  }
  for (int64_t count : kShardSizes) {
    std::vector<BF16 *> buffers;
    std::vector<BF16> first(count);
    for (int64_t i = 0; i < count; ++i)
      first[i] = toBF16(valueOf(0, i));
    for (int rank = 0; rank < 3; ++rank)
      buffers.push_back(put(rank, rank == 0 ? first : std::vector<BF16>(count)));
    auto transfer = [&](int rank, CollectiveKind kind, hal::Channel &channel) {
      bool sends = kind == CollectiveKind::Send;
      Collective desc{kind, sends ? buffers[rank] : nullptr, sends ? nullptr : buffers[rank],
                      count};
      desc.inType = desc.outType = DType::BF16;
      return stream(rank, "transfers").collective(channel, desc, "transfer");
    };
    ASSERT_STATUS(transfer(2, CollectiveKind::Recv, *channels[1])); // waits for the others
    ASSERT_STATUS(transfer(1, CollectiveKind::Recv, *channels[0]));
    ASSERT_STATUS(transfer(1, CollectiveKind::Send, *channels[1]));
    ASSERT_STATUS(transfer(0, CollectiveKind::Send, *channels[0]));
    ASSERT_STATUS(backend->synchronize());
    for (int rank = 0; computes() && rank < 3; ++rank)
      EXPECT_EQ(std::memcmp(get(rank, buffers[rank], count).data(), first.data(),
                            static_cast<size_t>(count) * sizeof(BF16)),
                0)
          << rank;
  }
}

/// Transfers in both directions at once, each with its own channel and stream: neither end waits
/// for its own receive before it sends.
TEST_P(Conformance, TransfersBothWaysRunInGraphs) {
  START(2);
  auto up = backend->createChannel({"pp up", {0, 1}});
  auto down = backend->createChannel({"pp down", {1, 0}});
  ASSERT_TRUE(up.isOk() && down.isOk());
  std::vector<float *> given, taken;
  std::vector<std::unique_ptr<hal::Graph>> graphs;
  for (int rank = 0; rank < 2; ++rank) {
    given.push_back(put<float>(rank, {1.0f + static_cast<float>(rank), 5.0f}));
    taken.push_back(put<float>(rank, {0.0f, 0.0f}));
    hal::Stream &main = stream(rank, "a"), &out = stream(rank, "out"), &in = stream(rank, "in");
    std::unique_ptr<hal::Event> fork = event(rank), sent = event(rank), received = event(rank);
    ASSERT_STATUS(main.beginCapture());
    ASSERT_STATUS(main.record(*fork));
    ASSERT_STATUS(out.wait(*fork));
    ASSERT_STATUS(in.wait(*fork));
    Collective send{CollectiveKind::Send, given[rank], nullptr, 2};
    Collective receive{CollectiveKind::Recv, nullptr, taken[rank], 2};
    ASSERT_STATUS(in.collective(rank == 0 ? **down : **up, receive, "receive"));
    ASSERT_STATUS(out.collective(rank == 0 ? **up : **down, send, "send"));
    ASSERT_STATUS(out.record(*sent));
    ASSERT_STATUS(in.record(*received));
    ASSERT_STATUS(main.wait(*sent));
    ASSERT_STATUS(main.wait(*received));
    auto graph = main.endCapture();
    ASSERT_TRUE(graph.isOk()) << graph.status().message();
    graphs.push_back(std::move(*graph));
  }
  for (int launch = 0; launch < 3; ++launch)
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_STATUS(stream(rank, "a").launch(*graphs[rank], {}));
  ASSERT_STATUS(backend->synchronize());
  for (int rank = 0; computes() && rank < 2; ++rank)
    EXPECT_EQ(get(rank, taken[rank], 2),
              (std::vector<float>{2.0f - static_cast<float>(rank), 5.0f}));
}

/// The host continues as soon as the first of several transfers ends.
TEST_P(Conformance, TheHostWaitsForAnyOfSeveralEvents) {
  START(2);
  if (!computes())
    GTEST_SKIP() << "nothing takes time";
  auto up = backend->createChannel({"pp up", {0, 1}});
  auto down = backend->createChannel({"pp down", {1, 0}});
  ASSERT_TRUE(up.isOk() && down.isOk());
  hal::Channel *channels[] = {up->get(), down->get()}; // by sending rank
  std::vector<std::unique_ptr<hal::Event>> received;
  float *data[2]; // allocated before the transfers, since an allocation may need an idle device
  for (int rank = 0; rank < 2; ++rank) {
    data[rank] = put<float>(rank, {1.0f, 2.0f, 0.0f, 0.0f});
    stream(rank, "in"), stream(rank, "out");
  }
  auto transfer = [&](int rank, bool sends) {
    Collective desc{sends ? CollectiveKind::Send : CollectiveKind::Recv,
                    sends ? data[rank] : nullptr, sends ? nullptr : data[rank] + 2, 2};
    return stream(rank, sends ? "out" : "in")
        .collective(*channels[sends ? rank : 1 - rank], desc, "transfer");
  };
  for (int rank = 0; rank < 2; ++rank) {
    received.push_back(event(rank));
    ASSERT_STATUS(transfer(rank, false));
    ASSERT_STATUS(stream(rank, "in").record(*received[rank]));
  }
  std::vector<hal::Event *> events = {received[0].get(), received[1].get()};
  for (int first : {0, 1}) { // the rank that sends first
    ASSERT_STATUS(transfer(first, true));
    ASSERT_STATUS(backend->waitForAny(events));
    EXPECT_TRUE(received[1 - first]->isDone());
    EXPECT_EQ(received[first]->isDone(), first == 1);
    std::erase(events, received[1 - first].get());
  }
  ASSERT_STATUS(backend->synchronize());
}

} // namespace
} // namespace shardc::conformance
