// Ranks in threads of one process meet at a server: exchanges, agreement, leaving.
#include <array>
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Reports.h"
#include "runtime/launch/RendezvousClient.h"
#include "runtime/launch/RendezvousServer.h"

namespace shardc::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A server that runs in its own thread until all ranks have left.
class Meeting {
public:
  explicit Meeting(int64_t ranks) {
    Socket listener = std::move(*listenOn("127.0.0.1", 0));
    port = portOf(listener);
    RendezvousOptions options;
    options.worldSize = ranks;
    options.emit = [](const Report &report) { ADD_FAILURE() << report.text; };
    server_.emplace(std::move(listener), std::move(options));
    thread_ = std::thread([this] {
      for (double now = 0; !server_->isOver(); now += 0.01) {
        std::vector<pollfd> entries;
        server_->addTo(entries);
        ::poll(entries.data(), entries.size(), 10);
        server_->step(now, entries);
      }
    });
  }
  ~Meeting() { thread_.join(); }

  std::unique_ptr<RendezvousClient> join(int64_t rank, int64_t ranks) {
    RendezvousClientOptions options;
    options.address = "127.0.0.1";
    options.port = port;
    options.rank = rank;
    options.worldSize = ranks;
    options.emit = [](const Report &report) { ADD_FAILURE() << report.text; };
    auto client = RendezvousClient::join(options);
    EXPECT_TRUE(client.isOk());
    return std::move(*client);
  }
  int port = 0;

private:
  std::optional<RendezvousServer> server_;
  std::thread thread_;
};

/// Runs `work` as each rank, in a thread.
void asRanks(int64_t ranks, const std::function<void(RendezvousClient &)> &work) {
  Meeting meeting(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::unique_ptr<RendezvousClient> client = meeting.join(rank, ranks);
      work(*client);
      client->leave(0);
    });
  for (std::thread &thread : threads)
    thread.join();
}

TEST(RendezvousClient, ExchangesWhatAllGive) {
  asRanks(4, [](RendezvousClient &client) {
    EXPECT_EQ(client.localSize(), 4);
    EXPECT_EQ(client.address(), "127.0.0.1");
    for (int turn = 0; turn < 20; ++turn) {
      auto all = client.allGather("numbers", fmt::format("{}.{}", turn, client.rank()));
      ASSERT_TRUE(all.isOk());
      for (int rank = 0; rank < 4; ++rank)
        EXPECT_EQ((*all)[rank], fmt::format("{}.{}", turn, rank));
    }
    std::string id(128, '\0'); // like an NCCL id: any bytes
    id[5] = static_cast<char>(0xff);
    auto received = client.allGather("id", client.rank() == 2 ? id : "");
    ASSERT_TRUE(received.isOk());
    EXPECT_EQ((*received)[2], id);
  });
}

TEST(RendezvousClient, AgreesOnTheLowestRanksFailure) {
  asRanks(3, [](RendezvousClient &client) {
    EXPECT_TRUE(client.agree("first", Status::ok()).isOk());
    Status mine = client.rank() == 0 ? Status::ok()
                                     : makeStatus(report::StepNotSaved, "disk {}", client.rank());
    Status all = client.agree("second", mine);
    EXPECT_EQ(all.code(), StatusCode::Io);
    EXPECT_THAT(all.message(), HasSubstr("disk 1"));
    EXPECT_EQ(all.report().id, "step-not-saved");
    EXPECT_TRUE(client.barrier("third").isOk());
  });
}

TEST(RendezvousClient, RefusesWhatIsTooLongToExchange) {
  asRanks(1, [](RendezvousClient &client) {
    EXPECT_EQ(client.allGather("x", std::string(kBlobBytesMax + 1, 'x')).status().code(),
              StatusCode::Internal);
  });
}

TEST(RendezvousClient, ExchangesTextsOfAnyLength) {
  constexpr size_t kPart = size_t{48} << 10; // the part that is sent at once
  asRanks(3, [](RendezvousClient &client) {
    std::array<size_t, 3> lengths = {0, 2 * kPart, 3 * kPart + 5};
    auto textOf = [&](size_t rank) {
      std::string text(lengths[rank], static_cast<char>('a' + rank));
      if (!text.empty())
        text.back() = '!';
      return text;
    };
    for (int turn = 0; turn < 2; ++turn) { // the first turn leaves nothing behind
      auto all = client.allGatherLong("texts", textOf(static_cast<size_t>(client.rank())));
      ASSERT_TRUE(all.isOk());
      ASSERT_EQ(all->size(), 3u);
      for (size_t rank = 0; rank < 3; ++rank)
        EXPECT_TRUE((*all)[rank] == textOf(rank)) << rank;
    }
  });
}

/// The system accepts the connection, but nobody answers on it.
TEST(RendezvousClient, TellsThatAListenerIsSilent) {
  Socket listener = std::move(*listenOn("127.0.0.1", 0));
  std::string said;
  RendezvousClientOptions options;
  options.address = "127.0.0.1";
  options.port = portOf(listener);
  options.joinSeconds = 1;
  options.emit = [&](const Report &report) { said += lineOf(report); };
  EXPECT_EQ(RendezvousClient::join(options).status().report().id, "run-aborted");
  EXPECT_THAT(said,
              HasSubstr(fmt::format("no answer from rank 0 within 1 s: the program that listens "
                                    "at 127.0.0.1:{} has sent nothing for 1 s",
                                    options.port)));
  EXPECT_THAT(said, HasSubstr("[no-answer-from-rank-0]"));
}

TEST(RendezvousClient, KeysDifferFromStartToStart) {
  std::vector<Key> keys;
  for (int start = 0; start < 2; ++start)
    asRanks(1, [&](RendezvousClient &client) { keys.push_back(client.jobKey()); });
  EXPECT_NE(keys[0], keys[1]);
}

} // namespace
} // namespace shardc::launch
