// The processes that may be ended on behalf of a job: only its ranks.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/launch/Machine.h"

namespace shardc::launch {
namespace {

using ::testing::HasSubstr;

/// A process that runs this program and sleeps, connected to a port or to none.
class Process {
public:
  explicit Process(int port) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      Socket socket;
      if (port > 0)
        socket = std::move(*connectTo("127.0.0.1", port, 10));
      [[maybe_unused]] ssize_t written = ::write(ready[1], "x", 1);
      while (true)
        ::pause();
    }
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    if (!hasEnded_)
      ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool isEnded() {
    for (int turn = 0; turn < 50 && !hasEnded_; ++turn) {
      hasEnded_ = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
      ::usleep(2000);
    }
    return hasEnded_;
  }

private:
  pid_t pid_ = 0;
  bool hasEnded_ = false;
};

TEST(Machine, EndsRanksOfTheJobAlone) {
  Socket server = std::move(*listenOn("127.0.0.1", 0)),
         other = std::move(*listenOn("127.0.0.1", 0));
  Process rank(portOf(server)), stopped(portOf(server)), another(portOf(other)), none(0);
  Socket own = std::move(*connectTo("127.0.0.1", portOf(server), 10));
  std::string where = otherEndOf(own);
  ASSERT_EQ(where, fmt::format("0100007F:{:04X}", portOf(server)));
  ::kill(stopped.pid(), SIGSTOP);
  for (Process *process : {&rank, &stopped, &another, &none})
    endRank(process->pid(), where);
  EXPECT_TRUE(rank.isEnded());
  EXPECT_TRUE(stopped.isEnded());
  EXPECT_FALSE(another.isEnded()) << "a rank of another job";
  EXPECT_FALSE(none.isEnded());
  endRank(none.pid(), "");
  endRank(1, where);
  endRank(::getpid(), where);
  EXPECT_FALSE(none.isEnded());
}

TEST(Machine, TellsWhoHoldsAPort) {
  Socket held = std::move(*listenOn("127.0.0.1", 0));
  EXPECT_THAT(portHolder(portOf(held)),
              HasSubstr(fmt::format("process {} (unit_launch", ::getpid())));
  int port = portOf(held);
  held.close();
  EXPECT_EQ(portHolder(port), "");
}

} // namespace
} // namespace shardc::launch
