// shardc-run as a program: where it finds plans, what it prints, and how it ends.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Tool : public ::testing::Test {
protected:
  std::string writePlan(const ToyOptions &options) {
    std::string path = folder + "/toy.plan";
    EXPECT_TRUE(writeFileAtomic(path, toyPlanText(options)).isOk());
    return path;
  }
  /// Starts the tool with its output in files; `in` becomes its standard input.
  pid_t start(std::vector<std::string> arguments, const std::string &in = "/dev/null") {
    arguments.insert(arguments.begin(), SHARDC_RUN_PATH);
    std::vector<char *> argv;
    for (std::string &argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t child = ::fork();
    if (child == 0) {
      redirect(in, O_RDONLY, STDIN_FILENO);
      redirect(folder + "/out", O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
      redirect(folder + "/err", O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
      ::execv(SHARDC_RUN_PATH, argv.data());
      ::_exit(127);
    }
    return child;
  }
  /// Whether the child has ended; wait() still reaps it. Kills a child that runs longer than any
  /// test.
  bool hasEnded(pid_t child) {
    siginfo_t info = {};
    if (begin.time_since_epoch().count() == 0)
      begin = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - begin > kWatchdog) {
      ADD_FAILURE() << "the program does not end";
      ::kill(child, SIGKILL);
    }
    return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  }
  /// Waits until `isThere` is true or the child has ended.
  template <typename Condition> bool await(pid_t child, Condition isThere) {
    while (!isThere()) {
      if (hasEnded(child))
        return false;
      ::poll(nullptr, 0, 1);
    }
    return true;
  }
  int wait(pid_t child) {
    int status = 0;
    await(child, [] { return false; });
    ::waitpid(child, &status, 0);
    out = *readFile(folder + "/out");
    err = *readFile(folder + "/err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int run(std::vector<std::string> arguments, const std::string &in = "/dev/null") {
    return wait(start(std::move(arguments), in));
  }

  shardc::test::TempFolder temporary;
  std::string folder = temporary.path(), out, err;

private:
  static constexpr std::chrono::seconds kWatchdog{600};
  std::chrono::steady_clock::time_point begin{}; ///< time at which the first wait began
  static void redirect(const std::string &path, int flags, int to) {
    int fd = ::open(path.c_str(), flags, 0644);
    ::dup2(fd, to);
  }
};

TEST_F(Tool, TrainsFromFileAndDescriptorAlike) {
  std::string plan = writePlan({.steps = 4, .evalEvery = 2});
  std::string metrics = folder + "/m.jsonl";
  EXPECT_EQ(run({plan, "--metrics=" + metrics}), 0) << err;
  EXPECT_THAT(out, StartsWith("this run saves nothing: 'checkpoint.save' is not set"));
  EXPECT_THAT(out, HasSubstr("\nmemory per rank: "));
  EXPECT_THAT(out, HasSubstr("\nstep 1/4  loss "));
  EXPECT_THAT(out, HasSubstr("evaluation after step 2  loss "));
  EXPECT_THAT(out, HasSubstr("done after 4 of 4 steps in "));
  EXPECT_THAT(*readFile(metrics), StartsWith("{\"step\":1,\"loss\":"));
  std::string losses = out.substr(0, out.find("  lr"));
  EXPECT_EQ(run({"--plan-fd=0"}, plan), 0) << err;
  EXPECT_THAT(out, StartsWith(losses));
}

TEST_F(Tool, RandomScheduleGivesTheSameLosses) {
  std::string plan = writePlan({.steps = 3});
  auto lossesOf = [&](const std::string &option) {
    std::string metrics = folder + "/m.jsonl", losses;
    EXPECT_EQ(run({plan, "--metrics=" + metrics, option}), 0) << err;
    std::string text = *readFile(metrics);
    for (size_t at = text.find("\"loss\""); at != std::string::npos;
         at = text.find("\"loss\"", at + 1))
      losses += text.substr(at, text.find(',', at) - at);
    return losses;
  };
  std::string expected = lossesOf("--workers=2");
  EXPECT_EQ(lossesOf("--seed-schedule=5"), expected);
  EXPECT_EQ(lossesOf("--no-graph"), expected);
  EXPECT_EQ(lossesOf("--check"), expected);
}

TEST_F(Tool, UsageErrorsAreStatus2) {
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"a.plan", "--no-such-option"}), 2);
  EXPECT_EQ(run({"a.plan", "--plan-fd=3"}), 2);
  EXPECT_EQ(run({"a.plan", "--backend=abacus"}), 2);
  EXPECT_EQ(run({"--help"}), 0);
}

TEST_F(Tool, WrongInputIsStatus1) {
  EXPECT_EQ(run({folder + "/none.plan"}), 1);
  EXPECT_THAT(err, HasSubstr("none.plan"));
  std::string path = folder + "/wrong.plan";
  ASSERT_TRUE(writeFileAtomic(path, "shardc.plan 99 placed \"future\"\n").isOk());
  EXPECT_EQ(run({path}), 1);
  EXPECT_THAT(err, HasSubstr("wrong.plan:1:"));
  EXPECT_EQ(run({"--plan-fd=77"}), 1);
}

TEST_F(Tool, PlansThatCouldRaceAreRefused) {
  std::string text = toyPlanText({});
  size_t wait = text.find(" after %dtable");
  ASSERT_NE(wait, std::string::npos);
  text.erase(wait, std::string(" after %dtable").size());
  std::string path = folder + "/race.plan";
  ASSERT_TRUE(writeFileAtomic(path, text).isOk());
  EXPECT_EQ(run({path}), 1);
  EXPECT_THAT(err, HasSubstr("reduce_scatter"));
  EXPECT_EQ(out, "");
}

TEST_F(Tool, PreflightReportsAllFindings) {
  std::string plan = writePlan({});
  EXPECT_EQ(run({plan, "--metrics=/nonexistent/m.jsonl", "--simulate-ranks=3"}), 1);
  EXPECT_THAT(err, HasSubstr("the plan has 2 ranks; --simulate-ranks=3 cannot change that"));
  EXPECT_THAT(err, HasSubstr("cannot create '/nonexistent/m.jsonl' for metrics"));
}

TEST_F(Tool, NonFiniteLossIsStatus3) {
  std::string plan = writePlan({.initStd = 1e30});
  EXPECT_EQ(run({plan}), 3);
  EXPECT_THAT(err, HasSubstr("error: step 1, rank 0, segment micro, microbatch 0: element "));
  EXPECT_THAT(err, HasSubstr("'matmul' (toy.recipe:3:7), is "));
  EXPECT_THAT(err, HasSubstr(" [not-finite]\n"));
}

TEST_F(Tool, FullDiskForMetricsDoesNotEndTheTraining) {
  std::string plan = writePlan({.steps = 6});
  EXPECT_EQ(run({plan, "--metrics=/dev/full"}), 3);
  EXPECT_THAT(out, HasSubstr("ended with errors after 6 of 6 steps"));
  EXPECT_EQ(err, "shardc-run: error: cannot write metrics to '/dev/full': No space left on device; "
                 "no more will be written [metrics-lost]\n");
}

TEST_F(Tool, DumpsAndExplains) {
  std::string plan = writePlan({});
  EXPECT_EQ(run({plan, "--dump=update:%g*", "--dump-dir=" + folder + "/dump", "--dump-step=2"}), 0)
      << err;
  EXPECT_THAT(*readFile(folder + "/dump/index.json"), HasSubstr("\"update.0.g.rank1.bin\""));
  EXPECT_EQ(run({plan, "--dump=update"}), 1);
  EXPECT_EQ(run({plan, "--explain"}), 0);
  EXPECT_THAT(out, HasSubstr("-> matmul_host"));
}

/// A pipe that is never emptied: once it is full, the tool blocks in a write.
class FullPipe {
public:
  explicit FullPipe(const std::string &path) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    fd_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK);
    EXPECT_EQ(::fcntl(fd_, F_SETPIPE_SZ, kBytes), kBytes);
  }
  ~FullPipe() { ::close(fd_); }
  /// Whether there is room for at most one more line; a clean end writes two more. Lines have
  /// kLineMax/2 to kLineMax bytes, and a writer that finds less room waits, so the test cannot
  /// require less room.
  bool isFull() const {
    int bytes = 0;
    return ::ioctl(fd_, FIONREAD, &bytes) == 0 && bytes > kBytes - kLineMax;
  }
  /// Leaves room for two lines at most.
  void fill() {
    std::string filler(kBytes - kLineMax, ' ');
    EXPECT_EQ(::write(fd_, filler.data(), filler.size()), static_cast<ssize_t>(filler.size()));
  }
  /// Reads everything that is in the pipe.
  bool drain() {
    char buffer[1 << 16];
    while (::read(fd_, buffer, sizeof buffer) > 0) {
    }
    return false;
  }

private:
  static constexpr int kBytes = 4096, kLineMax = 256;
  int fd_;
};

TEST_F(Tool, AChildThatEndsAtOnceIsNotWaitedFor) {
  FullPipe reader(folder + "/pipe");
  pid_t child = start({folder + "/no.plan", "--metrics=" + folder + "/pipe"});
  EXPECT_FALSE(await(child, [&] { return reader.isFull(); }));
  EXPECT_EQ(wait(child), 1);
}

TEST_F(Tool, OneSignalEndsCleanly) {
  for (int signal : {SIGINT, SIGTERM}) {
    std::string plan = writePlan({.steps = 100'000'000}), pipe = folder + "/pipe";
    FullPipe reader(pipe);
    pid_t child = start({plan, "--metrics=" + pipe});
    ASSERT_TRUE(await(child, [&] { return reader.isFull(); })) << wait(child) << err;
    ::kill(child, signal);
    EXPECT_FALSE(await(child, [&] { return reader.drain(); }));
    EXPECT_EQ(wait(child), 0);
    EXPECT_THAT(out, HasSubstr("stopped after "));
    EXPECT_THAT(err, HasSubstr("ending after this step"));
    std::filesystem::remove(pipe);
  }
}

/// The trace covers the seventh to ninth step.
TEST_F(Tool, ATraceThatIsNotReachedIsToldOf) {
  std::string plan = writePlan({.steps = 100'000'000}), pipe = folder + "/pipe";
  FullPipe reader(pipe);
  reader.fill();
  pid_t child = start({plan, "--metrics=" + pipe, "--trace=" + folder + "/trace.json"});
  ASSERT_TRUE(await(child, [&] { return reader.isFull(); })) << wait(child) << err;
  ::kill(child, SIGTERM);
  EXPECT_FALSE(await(child, [&] { return reader.drain(); }));
  EXPECT_EQ(wait(child), 0);
  EXPECT_FALSE(std::filesystem::exists(folder + "/trace.json"));
  EXPECT_THAT(err, HasSubstr("warning: the run ended before the last step that --trace records; '" +
                             folder + "/trace.json' is not written [trace-not-written]\n"));
}

TEST_F(Tool, SecondSignalEndsAtOnce) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer keeps signals back while the only thread that gets them is "
                  "in write()";
#endif
  std::string plan = writePlan({.steps = 100'000'000}), pipe = folder + "/pipe";
  FullPipe reader(pipe);
  pid_t child = start({plan, "--metrics=" + pipe});
  ASSERT_TRUE(await(child, [&] { return reader.isFull(); })) << wait(child) << err;
  ::kill(child, SIGINT);
  // Two signals at once would count as one.
  ASSERT_TRUE(await(child, [&] { return !readFile(folder + "/err")->empty(); })) << wait(child);
  ::kill(child, SIGINT);
  EXPECT_EQ(wait(child), 3);
  EXPECT_THAT(err, HasSubstr("stopped at once"));
}

} // namespace
} // namespace shardc::test
