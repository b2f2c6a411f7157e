// Where a job's secret comes from, and which values are refused as secrets.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/base/Io.h"
#include "runtime/launch/Secret.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SecretTest : public ::testing::Test {
protected:
  void SetUp() override {
    fs::create_directories(folder / "home");
    variables["HOME"] = folder / "home";
  }

  Result<Secret> find(Launcher launcher = Launcher::Torchrun) {
    JobPosition position;
    position.launcher = launcher;
    position.job = "a run id is no secret";
    return findSecret(position, [this](const char *name) -> const char * {
      auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  }
  fs::path file() const { return folder / "home" / ".shardc" / "secret"; }
  static mode_t modeOf(const fs::path &path) {
    struct stat found = {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0);
    return found.st_mode & 07777;
  }

  test::TempFolder temporary;
  fs::path folder = temporary.path();
  std::map<std::string, std::string> variables;
};

TEST_F(SecretTest, TheEnvironmentsComesFirst) {
  variables["SHARDC_JOB_SECRET"] = "sixteen letters.";
  variables["OMPI_MCA_orte_precondition_transports"] = "0123456789abcdef-0123456789abcdef";
  Secret own = *find(Launcher::OpenMpi);
  EXPECT_THAT(own.source, HasSubstr("SHARDC_JOB_SECRET"));
  EXPECT_EQ(own.key, find(Launcher::Slurm)->key) << "the same text is the same secret";
  variables.erase("SHARDC_JOB_SECRET");
  Secret mpi = *find(Launcher::OpenMpi);
  EXPECT_EQ(mpi.source, "mpirun's environment");
  EXPECT_NE(mpi.key, own.key);
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(SecretTest, AShortOneIsRefused) {
  variables["SHARDC_JOB_SECRET"] = " short \n";
  EXPECT_THAT(lineOf(find().status().report()),
              HasSubstr("of 5 characters; at least 16 are needed [no-job-secret]"));
}

TEST_F(SecretTest, AFileIsMadeOnceAndForItsUserAlone) {
  std::vector<Secret> found(8);
  std::vector<std::thread> ranks;
  for (Secret &secret : found)
    ranks.emplace_back([&] { secret = *find(); });
  for (std::thread &rank : ranks)
    rank.join();
  for (const Secret &secret : found)
    EXPECT_EQ(secret.key, found[0].key);
  EXPECT_THAT(found[0].source, HasSubstr(file().string()));
  EXPECT_EQ(modeOf(file()), 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(file().parent_path()), {}), 1) << "no drafts";
  fs::remove(file());
  EXPECT_NE(find()->key, found[0].key) << "another one each time it is made";
}

TEST_F(SecretTest, AFileOfOthersIsRefused) {
  ASSERT_TRUE(find().isOk());
  fs::permissions(file(), fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(find().status().message(), AllOf(HasSubstr("has mode 0640"), HasSubstr("remove it")));
  fs::remove(file());
  fs::create_symlink("/etc/hostname", file());
  EXPECT_FALSE(find().isOk()) << "what a link leads to was made by somebody else";
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_THAT(find().status().message(), HasSubstr("is not a regular file of this user"));
}

TEST_F(SecretTest, WithoutAHomeThereIsNone) {
  variables["HOME"] = "home";
  EXPECT_THAT(find().status().message(), HasSubstr("HOME names no folder"));
  variables["HOME"] = folder / "none";
  EXPECT_THAT(find().status().message(),
              AllOf(HasSubstr("the job has no secret: cannot create"),
                    HasSubstr("set SHARDC_JOB_SECRET to the same text")));
}

} // namespace
} // namespace shardc::launch
