#include <fstream>

#include <gtest/gtest.h>

#include "runtime/base/Socket.h"

namespace shardc {
namespace {

/// The system chooses a port for each connection, sometimes the one that the client connects to.
TEST(Socket, IsNeverConnectedToItself) {
  int first = 0, last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  if (last - first < 2000)
    GTEST_SKIP() << "the system gives connections few ports";
  // For some seven of these, the system chooses the port itself.
  constexpr int kPorts = 20, kTries = 5000;
  for (int i = 0; i < kPorts; ++i) {
    int port = first + 100 * i;
    bool isHeld = connectTo("127.0.0.1", port, 0).isOk();
    for (int turn = 0; turn < kTries && !isHeld; ++turn) {
      Result<Socket> socket = connectTo("127.0.0.1", port, 0);
      ASSERT_FALSE(socket.isOk() && portOf(*socket) == port) << "after " << turn;
    }
  }
}

/// Rank 0 can listen on a port even if a connection has, or had, that port.
TEST(Socket, APortThatAConnectionWasGivenCanBeListenedOn) {
  constexpr int kTries = 20; // the system may give one port to connections of several programs
  Socket server = std::move(*listenOn("127.0.0.1", 0));
  bool isFree = false, isFreeLater = false;
  for (int turn = 0; turn < kTries && !(isFree && isFreeLater); ++turn) {
    Socket client = std::move(*connectTo("127.0.0.1", portOf(server), 10));
    int port = portOf(client);
    isFree = isFree || listenOn("127.0.0.1", port).isOk();
    client.close(); // before the other end does, so that the system remembers it for a minute
    isFreeLater = isFreeLater || listenOn("127.0.0.1", port).isOk();
  }
  EXPECT_TRUE(isFree);
  EXPECT_TRUE(isFreeLater);
}

} // namespace
} // namespace shardc
