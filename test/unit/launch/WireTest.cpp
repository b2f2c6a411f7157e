// Messages between processes: they are read as they were written, and other bytes are refused.
#include <algorithm>

#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/base/Reports.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    left = Wire(Socket(fds[0]));
    right = Wire(Socket(fds[1]), 1000);
    left.seal(kLeft, kRight);
    right.seal(kRight, kLeft);
  }
  static constexpr Key kLeft = {1}, kRight = {2};
  Wire left, right;
};

/// All bytes that have arrived on a socket.
std::string bytesAt(int fd) {
  char buffer[4096];
  ssize_t got = ::read(fd, buffer, sizeof buffer);
  return {buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

void put(int fd, const std::string &bytes) {
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

TEST(Wire, CarriesMessagesInOrder) {
  Pair pair;
  pair.left.queue(MessageKind::Gather, "one");
  pair.left.queue(MessageKind::Bye, "");
  ASSERT_TRUE(pair.left.flush());
  ASSERT_TRUE(pair.right.receive());
  auto first = pair.right.next(), second = pair.right.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->body, "one");
  EXPECT_EQ(second->kind, MessageKind::Bye);
  EXPECT_FALSE(pair.right.next());
}

TEST(Wire, WaitsForTheRestOfAMessage) {
  Pair pair;
  Hello hello;
  hello.rank = 3;
  hello.host = "h";
  pair.left.queue(MessageKind::Hello, hello.pack(Key{7}, Nonce{8}));
  // Sends byte by byte, like a slow network.
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  Wire reader{Socket(fds[1])};
  ASSERT_TRUE(pair.left.flush());
  char byte;
  std::optional<Message> message;
  while (::read(pair.right.fd(), &byte, 1) == 1) {
    EXPECT_FALSE(message);
    ASSERT_EQ(::write(fds[0], &byte, 1), 1);
    ASSERT_TRUE(reader.receive());
    message = reader.next();
  }
  ASSERT_TRUE(message);
  auto opened = Hello::open(message->body, Key{7}, Nonce{8});
  ASSERT_TRUE(opened);
  auto read = unpacked<Hello>(*opened);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->host, "h");
  ::close(fds[0]);
}

TEST(Wire, RefusesStrangersAndWhatIsTooLong) {
  Pair pair;
  ASSERT_EQ(::write(pair.left.fd(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
  EXPECT_FALSE(pair.right.receive());
  Pair other;
  other.left.queue(MessageKind::Gather, std::string(1001, 'x'));
  other.left.flush();
  EXPECT_FALSE(other.right.receive());
}

TEST(Wire, RefusesWhatWasChanged) {
  for (size_t at : {4, 20, 30}) { // in the kind, the body, and the code
    Pair pair;
    pair.left.queue(MessageKind::Lost, "body");
    ASSERT_TRUE(pair.left.flush());
    std::string bytes = bytesAt(pair.right.fd());
    ASSERT_EQ(bytes.size(), 16u + 4 + 32);
    bytes[at] ^= 1;
    put(pair.left.fd(), bytes);
    ASSERT_TRUE(pair.right.receive());
    EXPECT_FALSE(pair.right.next()) << at;
    EXPECT_FALSE(pair.right.isOpen()) << at;
  }
}

TEST(Wire, RefusesWhatWasSentBefore) {
  Pair pair;
  pair.left.queue(MessageKind::Fail, "once");
  ASSERT_TRUE(pair.left.flush());
  std::string bytes = bytesAt(pair.right.fd());
  put(pair.left.fd(), bytes + bytes);
  ASSERT_TRUE(pair.right.receive());
  ASSERT_TRUE(pair.right.next());
  EXPECT_FALSE(pair.right.next());
  EXPECT_FALSE(pair.right.isOpen());
}

TEST(Wire, RefusesItsOwnMessages) { // an attacker between the two sends a process its own messages
  Pair pair;
  pair.left.queue(MessageKind::Fail, "mine");
  ASSERT_TRUE(pair.left.flush());
  put(pair.right.fd(), bytesAt(pair.right.fd()));
  ASSERT_TRUE(pair.left.receive());
  EXPECT_FALSE(pair.left.next());
}

TEST(Wire, WithoutKeysTakesNoMessageThatHasACode) {
  Pair pair;
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  Wire reader{Socket(fds[1])};
  pair.left.queue(MessageKind::Bye, "");
  ASSERT_TRUE(pair.left.flush());
  put(fds[0], bytesAt(pair.right.fd()));
  ASSERT_TRUE(reader.receive());
  EXPECT_FALSE(reader.next());
  ::close(fds[0]);
}

TEST(Wire, AHelloAnswersOneChallenge) {
  std::string body = Hello{.rank = 1}.pack(Key{7}, Nonce{8});
  EXPECT_TRUE(Hello::open(body, Key{7}, Nonce{8}));
  EXPECT_FALSE(Hello::open(body, Key{7}, Nonce{9})) << "said before, to another challenge";
  EXPECT_FALSE(Hello::open(body, Key{6}, Nonce{8})) << "another secret";
  body[0] ^= 1;
  EXPECT_FALSE(Hello::open(body, Key{7}, Nonce{8}));
  EXPECT_FALSE(Hello::open("short", Key{7}, Nonce{8}));
}

TEST(Wire, SeesTheEnd) {
  Pair pair;
  pair.left.close();
  EXPECT_FALSE(pair.right.receive());
}

/// Truncated bodies, and bodies with more bytes, are refused.
template <typename T> void expectWholeOnly(const T &value) {
  std::string body = packed(value);
  EXPECT_TRUE(unpacked<T>(body));
  for (size_t size = 8; size < body.size(); ++size)
    EXPECT_FALSE(unpacked<T>(body.substr(0, size))) << size;
  EXPECT_FALSE(unpacked<T>(body + "x"));
}

TEST(Wire, TakesWholeBodiesOnly) {
  Hello hello;
  hello.machine = "m";
  hello.problems = {makeReport(report::RecipeRefusedHere, "text")};
  std::string opened(*Hello::open(hello.pack({}, {}), {}, {}));
  EXPECT_TRUE(unpacked<Hello>(opened));
  for (size_t size = 8; size < opened.size(); ++size)
    EXPECT_FALSE(unpacked<Hello>(opened.substr(0, size))) << size;
  EXPECT_FALSE(unpacked<Hello>(opened + "x"));
  expectWholeOnly(Challenge{});
  expectWholeOnly(Refusal{Refusal::AnotherJob});
  expectWholeOnly(Welcome{{1}, 2, 4, 3, true});
  expectWholeOnly(RankProgress{4, {1, 2, 3}, true, 5, 6});
  expectWholeOnly(Failure::of(Status(StatusCode::Numeric, "text"), 3));
  Abort abort;
  abort.silent.push_back({"m", 5});
  expectWholeOnly(abort);
}

TEST(Wire, BoundsCounts) {
  EXPECT_FALSE(
      unpacked<RankProgress>(Packer().number(0).number(0).number(0).number(kWordsMax + 1).take()));
  EXPECT_FALSE(unpacked<Abort>(Packer().number(3).number(1 << 19).take()));
  EXPECT_FALSE(unpacked<Failure>(Packer().number(200).number(3).number(0).number(0).take()));
  EXPECT_FALSE(
      unpacked<Failure>(Packer().number(1).number(3).number(0).number(kReportsMax + 1).take()));
  EXPECT_FALSE(unpacked<Failure>(
      Packer().number(1).number(3).number(0).number(1).text("no-such-id\ntext").take()));
  auto bytes = Packer().number(UINT64_MAX).take();
  Unpacker in(bytes);
  EXPECT_EQ(in.text(), "");
  EXPECT_FALSE(in.isComplete());
}

TEST(Wire, FailuresFitAFrame) {
  Failure failure{.reports = {200, makeReport(report::DataRefused, std::string(5000, 'x'))}};
  EXPECT_LT(packed(failure).size(), kRankFrameBytesMax);
  EXPECT_EQ(unpacked<Failure>(packed(failure))->reports.size(), kReportsMax);
}

} // namespace
} // namespace shardc::launch
