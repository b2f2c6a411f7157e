// Programs of users: their input, their results, and their limits.
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "compiler/tools/Confinement.h"
#include "compiler/tools/ForeignProgram.h"

namespace shardc::tools {
namespace {

ForeignProgram sandboxed(const std::string &script) {
  ForeignProgram program;
  program.command = {"/bin/bash", "../main.sh"};
  program.files["main.sh"] = script;
  program.environment = {{"PATH", "/usr/bin:/bin"}};
  return program;
}

/// Whether this user may make namespaces.
bool hasNamespaces() {
  static const bool kHas = runForeign(sandboxed("")).status().code() != StatusCode::Unavailable;
  return kHas;
}

/// In a sandbox if there may be one.
ForeignProgram bash(const std::string &script) {
  ForeignProgram program = sandboxed(script);
  program.closesOff = hasNamespaces();
  return program;
}

TEST(ForeignProgram, RunsNothingWithoutNamespaces) {
  if (hasNamespaces())
    GTEST_SKIP() << "this user may make namespaces";
  std::string mark = std::filesystem::temp_directory_path() / "has-run";
  Result<ForeignResult> done = runForeign(sandboxed("touch " + mark));
  EXPECT_EQ(done.status().code(), StatusCode::Unavailable);
  EXPECT_FALSE(std::filesystem::exists(mark));
}

/// Whether a process has this argument. Waits a little, since the kernel ends a namespace's
/// processes one after another.
bool isRunning(const std::string &word) {
  for (int tries = 0; tries < 50; ++tries) {
    if (std::system(("ps -eo args | grep -q '[ ]" + word + "$'").c_str()) != 0)
      return false;
    ::usleep(100'000);
  }
  return true;
}

TEST(ForeignProgram, GivesFilesAndVariablesAndReadsResults) {
  for (bool closesOff : {true, false}) {
    if (closesOff && !hasNamespaces())
      continue;
    ForeignProgram program = bash("echo one; ls -A; echo \"$A-$HOME\" > ../results/a\n"
                                  "ln -s /etc/passwd ../results/link; exit 7");
    program.environment.push_back({"A", "x y"});
    program.closesOff = closesOff;
    Result<ForeignResult> done = runForeign(program);
    EXPECT_FALSE(done.isOk()) << "a link among the results leads to files of the machine";
    program.files["main.sh"] = "echo one; ls -A; echo \"$A-$HOME\" > ../results/a; exit 7";
    done = runForeign(program);
    ASSERT_TRUE(done.isOk()) << done.status().message();
    EXPECT_EQ(done->status, 7);
    EXPECT_EQ(done->output, "one\n");
    EXPECT_EQ(done->results, (std::map<std::string, std::string>{{"a", "x y-\n"}}));
    EXPECT_FALSE(std::filesystem::exists(done->folder));
  }
}

TEST(ForeignProgram, WaitsForAllProcesses) {
  Result<ForeignResult> done =
      runForeign(bash("(sleep 0.3; echo x > ../results/late) >/dev/null 2>&1 & echo y"));
  ASSERT_TRUE(done.isOk()) << done.status().message();
  EXPECT_EQ(done->output, "y\n");
  EXPECT_EQ(done->results.count("late"), 1u);
}

TEST(ForeignProgram, SeesNeitherFilesNorNetwork) {
  Result<ForeignResult> done = runForeign(sandboxed(
      "ls -d /home /root /var /etc/shadow /proc/sys; tail -n +3 /proc/self/net/dev | wc -l\n"
      "touch /usr/x || echo kept\n"
      "ls -A /dev/shm | wc -l; ls /dev | tr '\\n' ' '; ls -d /proc/[0-9]* | wc -l"));
  if (done.status().code() == StatusCode::Unavailable)
    GTEST_SKIP() << "this system allows no namespaces";
  ASSERT_TRUE(done.isOk()) << done.status().message();
  EXPECT_NE(done->output.find("\n1\n"), std::string::npos) << done->output; // only the interface lo
  EXPECT_NE(done->output.find("kept\n"), std::string::npos) << done->output;
  EXPECT_NE(done->output.find("\n0\nfd full null random shm stderr stdin stdout urandom zero "),
            std::string::npos)
      << done->output;
  for (const char *hidden : {"/home\n", "/root\n", "/etc/shadow\n", "/proc/sys\n"})
    EXPECT_EQ(done->output.find(hidden), std::string::npos) << done->output;
}

/// The first process has neither the environment nor the open files of this one, and the program
/// has no privileges.
TEST(ForeignProgram, KeepsNothingOfTheCaller) {
  ::setenv("SOMEBODYS_TOKEN", "hf_abcdef", 1);
  constexpr int kOpen = 77;
  ::dup2(STDERR_FILENO, kOpen); // inherited by programs
  for (bool closesOff : {true, false}) {
    ForeignProgram program = bash("cat /proc/$PPID/environ /proc/1/environ | tr '\\0' '\\n'; env\n"
                                  "ls /proc/self/fd /proc/$PPID/fd; grep -E '^(Cap|NoNew|Secc)' "
                                  "/proc/self/status; ulimit -v; unshare -U true; id -u");
    program.closesOff = closesOff;
    Result<ForeignResult> done = runForeign(program);
    if (done.status().code() == StatusCode::Unavailable)
      continue;
    ASSERT_TRUE(done.isOk()) << done.status().message();
    const std::string &output = done->output;
    EXPECT_EQ(output.find("hf_abcdef"), std::string::npos) << output;
    EXPECT_EQ(output.find("\n" + std::to_string(kOpen) + "\n"), std::string::npos) << output;
    EXPECT_NE(output.find("NoNewPrivs:\t1\n"), std::string::npos) << output;
    EXPECT_NE(output.find("\n4194304\n"), std::string::npos) << output;
    if (!closesOff)
      continue;
    EXPECT_NE(output.find("CapBnd:\t0000000000000000\n"), std::string::npos) << output;
    EXPECT_NE(output.find("Seccomp:\t2\n"), std::string::npos) << output;
    EXPECT_NE(output.find("unshare failed: Operation not permitted"), std::string::npos) << output;
    EXPECT_FALSE(output.ends_with("\n0\n")) << "root runs it as nobody";
  }
  ::close(kOpen);
  ::unsetenv("SOMEBODYS_TOKEN");
}

/// Files are in memory of a limited size. Sockets of the machine's host (AF_VSOCK) have no
/// namespaces.
TEST(ForeignProgram, FillsNoDiskAndReachesNoHost) {
  if (!hasNamespaces())
    GTEST_SKIP() << "this system allows no namespaces";
  Result<ForeignResult> done = runForeign(sandboxed(
      "for i in 0 1 2 3 4 5 6 7 8 9; do fallocate -l 60M $i 2>/dev/null && echo made; done; rm *\n"
      "echo x > ../results/kept; perl -MSocket -e 'for $family (1, 2, 10, 16, 40) {\n"
      "print socket(my $end, $family, SOCK_STREAM, 0) ? \"opened $family;\" : \"$family: $!;\"}'"));
  ASSERT_TRUE(done.isOk()) << done.status().message();
  EXPECT_EQ(done->results, (std::map<std::string, std::string>{{"kept", "x\n"}}));
  EXPECT_EQ(done->output, "made\nmade\nmade\nmade\nopened 1;opened 2;opened 10;"
                          "16: Address family not supported by protocol;"
                          "40: Address family not supported by protocol;");
}

TEST(ForeignProgram, EndsAtItsLimits) {
  ForeignProgram program = bash("setsid sleep 98765 & (setsid sleep 98765 &) & sleep 98765");
  program.secondsMax = 1;
  Result<ForeignResult> done = runForeign(program);
  for (bool closesOff : {true, false}) {
    program.closesOff = closesOff;
    done = runForeign(program);
    if (done.status().code() == StatusCode::Unavailable)
      continue;
    ASSERT_FALSE(done.isOk());
    EXPECT_EQ(done.status().message(), "it ran for more than 1 s");
    EXPECT_FALSE(isRunning("98765")) << "no session of its own saves a process";
  }
  done = runForeign(bash("while :; do echo 0123456789; done"));
  ASSERT_FALSE(done.isOk());
  EXPECT_EQ(done.status().message(), "it printed more than 1048576 bytes");
  program = bash("");
  program.command = {"/no/such/program"};
  done = runForeign(program);
  ASSERT_TRUE(done.isOk());
  EXPECT_EQ(done->status, 126);
  EXPECT_EQ(done->output, "/no/such/program: No such file or directory\n");
}

} // namespace
} // namespace shardc::tools

/// Programs start through this program's own image.
int main(int argc, char **argv) {
  if (std::optional<int> status = shardc::tools::runConfined(argc, argv))
    return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
