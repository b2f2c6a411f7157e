// Programs of users: their input, their results, and their limits.
#include <filesystem>

#include <gtest/gtest.h>

#include "compiler/tools/ForeignProgram.h"

namespace shardc::tools {
namespace {

ForeignProgram bash(const std::string &script) {
  ForeignProgram program;
  program.command = {"/bin/bash", "../main.sh"};
  program.files["main.sh"] = script;
  program.environment = {{"PATH", "/usr/bin:/bin"}};
  return program;
}

TEST(ForeignProgram, GivesFilesAndVariablesAndReadsResults) {
  for (bool closesOff : {true, false}) {
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
  Result<ForeignResult> done = runForeign(bash("ls -d /home /root /var; tail -n +3 /proc/net/dev | "
                                               "wc -l; touch /usr/x || echo kept"));
  ASSERT_TRUE(done.isOk()) << done.status().message();
  if (!done->isClosedOff)
    GTEST_SKIP() << "this system allows no namespaces";
  EXPECT_NE(done->output.find("\n1\n"), std::string::npos) << done->output; // only the interface lo
  EXPECT_NE(done->output.find("kept"), std::string::npos) << done->output;
  EXPECT_EQ(done->output.find("/home\n"), std::string::npos) << done->output;
}

TEST(ForeignProgram, EndsAtItsLimits) {
  ForeignProgram program = bash("setsid sleep 1000 & sleep 1000");
  program.secondsMax = 1;
  Result<ForeignResult> done = runForeign(program);
  ASSERT_FALSE(done.isOk());
  EXPECT_EQ(done.status().message(), "it ran for more than 1 s");
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
