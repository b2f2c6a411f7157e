// Ranks with separate backends give the same bits as ranks of one backend, and name ranks they
// lost.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/host/Options.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Socket.h"

namespace shardc::host {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

/// State that the peers of one test share.
struct Exchange {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> parts{kRanks};
  std::vector<std::string> all;
  int come = 0;
  uint64_t turn = 0;
  std::set<int> lost;
  Key key = randomBytes32();
  /// Connections from strangers to each rank, after the rank has published its address.
  int strangers = 0;
  std::vector<Socket> connected;
};

class FakePeers final : public hal::Peers {
public:
  FakePeers(Exchange &exchange, int rank) : exchange_(exchange), rank_(rank) {}
  int rank() const override { return rank_; }
  int worldSize() const override { return kRanks; }
  int localRank() const override { return rank_; }
  int localSize() const override { return kRanks; }
  std::string address() const override { return "127.0.0.1"; }
  Key jobKey() const override { return exchange_.key; }
  Result<std::vector<std::string>> exchange(std::string_view, const std::vector<int> &,
                                            std::string_view mine, Fold fold) override {
    std::unique_lock lock(exchange_.mutex);
    exchange_.parts[rank_] = mine;
    uint64_t turn = exchange_.turn;
    if (++exchange_.come == kRanks) {
      exchange_.come = 0;
      exchange_.all = exchange_.parts;
      sendStrangers();
      ++exchange_.turn;
      exchange_.changed.notify_all();
    }
    exchange_.changed.wait(lock, [&] { return exchange_.turn > turn; });
    return folded(exchange_.all, fold);
  }
  void reportLost(int rank, std::string_view) override {
    std::lock_guard lock(exchange_.mutex);
    exchange_.lost.insert(rank);
  }

private:
  /// Half of the strangers send nothing, the others send noise instead of a greeting.
  void sendStrangers() {
    std::string noise(100, 'x');
    for (const std::string &where : exchange_.all)
      for (int i = 0; i < exchange_.strangers; ++i) {
        int port = std::atoi(where.c_str() + sizeof(Nonce));
        exchange_.connected.push_back(std::move(*connectTo("127.0.0.1", port, 10)));
        if (i % 2 == 0)
          continue;
        EXPECT_TRUE(sendAll(exchange_.connected.back(), noise.data(), noise.size(), 10).isOk());
      }
  }

  Exchange &exchange_;
  int rank_;
};

struct Case {
  hal::CollectiveKind kind;
  DType in, out;
  int64_t count;
  bool average = false, accumulate = false, inPlace = false;
  int64_t by = 0;
};

int64_t inCount(const Case &c) {
  return c.kind == hal::CollectiveKind::ReduceScatter || c.kind == hal::CollectiveKind::AllToAll
             ? c.count * kRanks
             : c.count;
}
int64_t outCount(const Case &c) {
  return c.kind == hal::CollectiveKind::AllGather || c.kind == hal::CollectiveKind::AllToAll
             ? c.count * kRanks
             : c.count;
}

/// Values whose sums depend on the order of additions.
void fill(void *data, DType type, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    float value =
        static_cast<float>(normalAt(seed, static_cast<uint64_t>(i))) * (i % 3 == 0 ? 1e4f : 1e-3f);
    if (type == DType::F64)
      static_cast<double *>(data)[i] = value;
    else if (type == DType::BF16)
      static_cast<BF16 *>(data)[i] = fromFloat<BF16>(value);
    else
      static_cast<float *>(data)[i] = value;
  }
}

template <typename T> T take(Result<T> result) {
  EXPECT_TRUE(result.isOk()) << result.status().message();
  return std::move(*result);
}

/// One rank's memory and its part in a collective.
struct Part {
  Part(hal::Device &device, const Case &c)
      : in(take(device.allocate(hal::MemoryKind::Work, inCount(c) * dtypeBytes(c.in), "in"))),
        out(take(device.allocate(hal::MemoryKind::Work, outCount(c) * dtypeBytes(c.out), "out"))),
        stream(take(device.createStream("s", hal::StreamUse::Compute))) {
    auto seed = static_cast<uint64_t>(device.rank());
    fill(in->data(), c.in, inCount(c), seed);
    fill(out->data(), c.out, outCount(c), seed + 100);
  }
  hal::Collective desc(const Case &c) const {
    hal::Collective desc{c.kind,    in->data(),  c.inPlace ? in->data() : out->data(),
                         c.count,   c.in,        c.out,
                         c.average, c.accumulate};
    desc.by = c.by;
    return desc;
  }
  std::string result(const Case &c) const {
    const hal::Buffer &to = c.inPlace ? *in : *out;
    return std::string(reinterpret_cast<const char *>(to.data()),
                       static_cast<size_t>(outCount(c) * dtypeBytes(c.out)));
  }
  std::unique_ptr<hal::Buffer> in, out;
  std::unique_ptr<hal::Stream> stream;
};

hal::ChannelDesc everybody() { return {"dp misc", {0, 1, 2}}; }

std::vector<std::string> together(const Case &c) {
  auto backend = std::move(*makeBackend({.ranks = kRanks}));
  auto channel = std::move(*backend->createChannel(everybody()));
  std::vector<std::unique_ptr<Part>> parts;
  for (hal::Device *device : backend->devices())
    parts.push_back(std::make_unique<Part>(*device, c));
  for (auto &part : parts)
    EXPECT_TRUE(part->stream->collective(*channel, part->desc(c), "sum").isOk());
  EXPECT_TRUE(backend->synchronize().isOk());
  std::vector<std::string> results;
  for (auto &part : parts)
    results.push_back(part->result(c));
  return results;
}

/// Runs `work` as each rank in its own thread, with its own backend.
void apart(Exchange &exchange,
           const std::function<void(int, hal::Backend &, hal::Channel &)> &work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      FakePeers peers(exchange, rank);
      auto backend = makeBackend({.ranks = kRanks, .peers = &peers, .workers = 1});
      ASSERT_TRUE(backend.isOk()) << backend.status().message();
      auto channel = (*backend)->createChannel(everybody());
      ASSERT_TRUE(channel.isOk()) << channel.status().message();
      work(rank, **backend, **channel);
    });
  for (std::thread &thread : threads)
    thread.join();
}

TEST(Remote, GivesTheBitsOfOneProcess) {
  using enum hal::CollectiveKind;
  for (const Case &c :
       {Case{AllGather, DType::F32, DType::F32, 1000}, Case{AllGather, DType::BF16, DType::BF16, 1},
        Case{ReduceScatter, DType::F32, DType::F32, 5000},
        Case{ReduceScatter, DType::BF16, DType::F32, 3000, true, true},
        Case{ReduceScatter, DType::F64, DType::F64, 7},
        Case{AllReduce, DType::F32, DType::F32, 5, true},
        Case{AllReduce, DType::F64, DType::F64, 4, false, false, true},
        Case{AllReduce, DType::F32, DType::F32, 100'003, false, false, true},
        Case{AllReduce, DType::BF16, DType::F32, 50'001, true},
        Case{AllReduceMax, DType::F32, DType::F32, 5, false, false, true},
        Case{AllReduceMax, DType::BF16, DType::BF16, 50'001},
        Case{AllReduceMax, DType::F64, DType::F64, 7}, Case{AllToAll, DType::F32, DType::F32, 1},
        Case{AllToAll, DType::BF16, DType::BF16, 40'000},
        Case{Shift, DType::F32, DType::F32, 1000, false, false, false, 1},
        Case{Shift, DType::BF16, DType::BF16, 40'001, false, false, false, -1},
        Case{Shift, DType::F32, DType::F32, 9, false, false, false, 3}}) {
    std::vector<std::string> expected = together(c), results(kRanks);
    Exchange exchange;
    apart(exchange, [&](int rank, hal::Backend &backend, hal::Channel &channel) {
      Part part(*backend.devices()[0], c);
      EXPECT_EQ(backend.devices()[0]->rank(), rank);
      EXPECT_TRUE(part.stream->collective(channel, part.desc(c), "sum").isOk());
      EXPECT_TRUE(backend.synchronize().isOk());
      results[static_cast<size_t>(rank)] = part.result(c);
    });
    EXPECT_TRUE(results == expected)
        << hal::toString(c.kind) << " of " << c.count << " " << dtypeName(c.in);
  }
}

TEST(Remote, StrangersHoldNoChannelUp) {
  Exchange exchange;
  exchange.strangers = 100;
  Case c{hal::CollectiveKind::AllGather, DType::F32, DType::F32, 100};
  auto begin = std::chrono::steady_clock::now();
  apart(exchange, [&](int, hal::Backend &backend, hal::Channel &channel) {
    Part part(*backend.devices()[0], c);
    EXPECT_TRUE(part.stream->collective(channel, part.desc(c), "gather").isOk());
    EXPECT_TRUE(backend.synchronize().isOk());
  });
  // A rank that waited 10 s for each silent stranger in turn would need more than 100 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
  EXPECT_TRUE(exchange.lost.empty());
}

TEST(Remote, SumsSquaresToTheSameBits) {
  Case c{hal::CollectiveKind::ReduceScatter, DType::BF16, DType::F32, 3000, true, true};
  const std::vector<ElementRange> valid = {{3, 1000}, {1001, 2999}};
  std::vector<double> together(kRanks), found(kRanks);
  auto queue = [&](hal::Channel &channel, Part &part, double &squares) {
    hal::Collective desc = part.desc(c);
    desc.squares = &squares, desc.valid = valid;
    EXPECT_TRUE(part.stream->collective(channel, desc, "sum").isOk());
  };
  auto backend = std::move(*makeBackend({.ranks = kRanks}));
  auto channel = std::move(*backend->createChannel(everybody()));
  std::vector<std::unique_ptr<Part>> parts;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    parts.push_back(std::make_unique<Part>(*backend->devices()[rank], c));
    queue(*channel, *parts.back(), together[rank]);
  }
  EXPECT_TRUE(backend->synchronize().isOk());
  Exchange exchange;
  apart(exchange, [&](int rank, hal::Backend &own, hal::Channel &remote) {
    Part part(*own.devices()[0], c);
    queue(remote, part, found[static_cast<size_t>(rank)]);
    EXPECT_TRUE(own.synchronize().isOk());
  });
  EXPECT_EQ(found, together);
  EXPECT_GT(found[0], 0);
}

TEST(Remote, NamesMembersThatDisagree) {
  Exchange exchange;
  apart(exchange, [&](int rank, hal::Backend &backend, hal::Channel &channel) {
    Case c{hal::CollectiveKind::AllReduce, DType::F32, DType::F32, rank == 1 ? 8 : 9};
    Part part(*backend.devices()[0], c);
    EXPECT_TRUE(part.stream->collective(channel, part.desc(c), rank == 1 ? "b" : "a").isOk());
    EXPECT_THAT(backend.synchronize().message(),
                AnyOf(HasSubstr("members disagree"), HasSubstr("does not answer")));
  });
}

TEST(Remote, TellsWhomItLost) {
  Exchange exchange;
  apart(exchange, [&](int rank, hal::Backend &backend, hal::Channel &channel) {
    Case c{hal::CollectiveKind::AllGather, DType::F32, DType::F32, 100};
    if (rank == 1)
      return; // its connections close
    Part part(*backend.devices()[0], c);
    EXPECT_TRUE(part.stream->collective(channel, part.desc(c), "gather").isOk());
    Status status = backend.synchronize();
    EXPECT_EQ(status.code(), StatusCode::Aborted);
    EXPECT_THAT(status.message(), HasSubstr("'gather' on channel 'dp misc'"));
  });
  EXPECT_TRUE(exchange.lost.contains(1));
}

} // namespace
} // namespace shardc::host
