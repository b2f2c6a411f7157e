// Messages between processes: what is written is read back, and nothing else is taken for one.
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    left = Wire(Socket(fds[0]));
    right = Wire(Socket(fds[1]), 1000);
  }
  Wire left, right;
};

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
  pair.left.queue(MessageKind::Hello, hello.pack());
  // Byte by byte, as a slow network brings them.
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
  auto read = Hello::unpack(message->body);
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

TEST(Wire, SeesTheEnd) {
  Pair pair;
  pair.left.close();
  EXPECT_FALSE(pair.right.receive());
}

/// All beginnings of a body, and bodies with something behind, are refused.
template <typename T> void expectWholeOnly(const T &value) {
  std::string body = value.pack();
  EXPECT_TRUE(T::unpack(body));
  for (size_t size = 8; size < body.size(); ++size)
    EXPECT_FALSE(T::unpack(body.substr(0, size))) << size;
  EXPECT_FALSE(T::unpack(body + "x"));
}

TEST(Wire, TakesWholeBodiesOnly) {
  Hello hello;
  hello.machine = "m";
  expectWholeOnly(hello);
  expectWholeOnly(Welcome{1, 3});
  expectWholeOnly(Snapshot{4, {1, 2, 3}});
  expectWholeOnly(Failure{StatusCode::Numeric, 3, "text"});
  Abort abort;
  abort.silent.push_back({"m", 5, 6});
  expectWholeOnly(abort);
}

TEST(Wire, BoundsCounts) {
  EXPECT_FALSE(Snapshot::unpack(Packer().number(0).number(kStreamsMax + 1).take()));
  EXPECT_FALSE(Abort::unpack(Packer().number(3).number(1).text("").number(1 << 19).take()));
  EXPECT_FALSE(Failure::unpack(Packer().number(200).number(3).text("").take()));
  auto bytes = Packer().number(UINT64_MAX).take();
  Unpacker in(bytes);
  EXPECT_EQ(in.text(), "");
  EXPECT_FALSE(in.isComplete());
}

} // namespace
} // namespace shardc::launch
