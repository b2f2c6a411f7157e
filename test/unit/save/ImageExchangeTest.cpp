// Exchange of images between ranks: images arrive complete or not at all, and only ranks that know
// the job's key take part.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/save/ImageExchange.h"
#include "test/unit/save/Images.h"

namespace shardc::save {
namespace {

constexpr double kSeconds = 60;

/// A rank that serves images, and the memory of another rank, which sends and reads them.
struct Two {
  Memory own, guest, mine;
  Key key{};
  std::unique_ptr<ImageServer> server;

  Two() {
    key.fill(7);
    HeldImages held{own.slots(), guest.slots()};
    server = std::move(*ImageServer::start("127.0.0.1", key, held));
  }
  std::unique_ptr<ImageLink> link() {
    return std::move(*ImageLink::open(server->address(), key, 1, kSeconds));
  }
};

TEST(ImageExchange, SendsImagesOneAfterTheOther) {
  Two two;
  auto link = two.link();
  for (int64_t step : {3, 6, 9}) {
    int slot = two.mine.slots().next();
    ImageInfo info = fill(two.mine.slots(), slot, {1, 0, step, 2});
    ASSERT_TRUE(link->send(info, two.mine.slots().bytesOf(slot), kSeconds).isOk());
    std::optional<int> there = two.guest.slots().find({1, 0, step, 2});
    ASSERT_TRUE(there);
    EXPECT_TRUE(two.guest.slots().isIntact(*there));
  }
  EXPECT_TRUE(two.guest.slots().find({1, 0, 6, 2}));
  EXPECT_FALSE(two.guest.slots().find({1, 0, 3, 2}));
}

TEST(ImageExchange, RefusesBytesThatAreNotThoseOfTheSum) {
  Two two;
  ImageInfo info = fill(two.mine.slots(), 0, {1, 0, 3, 2});
  two.mine.slots().bytesOf(0)[5] ^= 1;
  EXPECT_FALSE(two.link()->send(info, two.mine.slots().bytesOf(0), kSeconds).isOk());
  EXPECT_FALSE(two.guest.slots().at(0) || two.guest.slots().at(1));
}

TEST(ImageExchange, RefusesAnImageThatDoesNotFit) {
  Two two;
  for (int64_t bytes : {int64_t{-5}, two.guest.slots().imageBytesMax() + 1}) {
    ImageInfo info = infoOf({1, 0, 3, 2});
    info.metaBytes = 0;
    info.stateBytes = bytes;
    std::vector<uint8_t> data(static_cast<size_t>(std::max<int64_t>(bytes, 0)));
    info.crc = crc32(0, data.data(), data.size());
    EXPECT_FALSE(two.link()->send(info, data, kSeconds).isOk());
  }
  EXPECT_FALSE(two.guest.slots().at(0) || two.guest.slots().at(1));
}

TEST(ImageExchange, GivesRangesOfImagesOfBothKinds) {
  Two two;
  fill(two.own.slots(), 1, {0, 0, 6, 2});
  fill(two.guest.slots(), 0, {1, 0, 6, 2});
  for (int64_t owner : {0, 1}) {
    ImageId id{owner, 0, 6, 2};
    auto link = two.link();
    Result<ImageInfo> info = link->find(id, kSeconds);
    ASSERT_TRUE(info.isOk());
    std::vector<uint8_t> wanted(Memory::kImageBytes), got(20);
    writeBytes(id, wanted);
    for (int64_t begin : {0, 100, 280}) {
      ASSERT_TRUE(link->read(begin, got.data(), 20, kSeconds).isOk());
      EXPECT_EQ(std::memcmp(got.data(), wanted.data() + begin, 20), 0) << begin;
    }
    EXPECT_FALSE(link->read(290, got.data(), 20, kSeconds).isOk()) << "behind its end";
  }
  EXPECT_FALSE(two.link()->find({0, 0, 5, 2}, kSeconds).isOk());
}

TEST(ImageExchange, ServesNobodyWithoutTheKey) {
  Two two;
  fill(two.own.slots(), 0, {0, 0, 6, 2});
  Key other{};
  auto link = std::move(*ImageLink::open(two.server->address(), other, 1, kSeconds));
  EXPECT_FALSE(link->find({0, 0, 6, 2}, kSeconds).isOk());
  ImageAddress address = two.server->address();
  address.nonce[0] ^= 1; // the nonce of another start
  link = std::move(*ImageLink::open(address, two.key, 1, kSeconds));
  EXPECT_FALSE(link->find({0, 0, 6, 2}, kSeconds).isOk());
}

/// Strangers cost neither threads nor more than a few connections, and do not keep ranks out.
TEST(ImageExchange, StrangersGetNoThread) {
  auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  Two two;
  fill(two.own.slots(), 0, {0, 0, 6, 2});
  auto before = threads();
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) {
    auto socket = connectTo("127.0.0.1", two.server->address().port, kSeconds);
    ASSERT_TRUE(socket.isOk());
    static_cast<void>(sendAll(*socket, "GET / HTTP", i % 10, kSeconds));
    strangers.push_back(std::move(*socket));
  }
  EXPECT_TRUE(two.link()->find({0, 0, 6, 2}, kSeconds).isOk());
  EXPECT_LE(threads(), before + 1);
}

TEST(ImageExchange, EndsWhileConnectionsAreOpen) {
  Two two;
  auto link = two.link();
  ASSERT_FALSE(link->find({0, 0, 1, 2}, kSeconds).isOk());
  auto silent = connectTo("127.0.0.1", two.server->address().port, kSeconds);
  ASSERT_TRUE(silent.isOk());
  two.server.reset();
}

TEST(ImageAddress, ComesBackWhole) {
  ImageAddress address{"fe80::1", 4711, randomBytes32()};
  address.nonce[3] = '\n';
  address.nonce[4] = ' ';
  Result<ImageAddress> back = ImageAddress::unpack(address.pack());
  ASSERT_TRUE(back.isOk());
  EXPECT_EQ(back->address, address.address);
  EXPECT_EQ(back->port, 4711);
  EXPECT_EQ(back->nonce, address.nonce);
  EXPECT_FALSE(ImageAddress::unpack("short").isOk());
}

} // namespace
} // namespace shardc::save
