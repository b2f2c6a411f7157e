// A lock has one holder, ends with its process, and does no harm on file systems without locks.
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/checkpoint/FolderLock.h"
#include "test/unit/base/Told.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

const ReportSink kSilent = [](const Report &report) { ADD_FAILURE() << report.text; };

TEST(FolderLock, RefusesASecondHolderByTheFirstsName) {
  TempFolder folder;
  {
    Result<FolderLock> first = FolderLock::take(folder.path(), kSilent);
    ASSERT_OK(first.status());
    EXPECT_TRUE(first->isHeld());
    EXPECT_FAILS(FolderLock::take(folder.path(), kSilent).status(),
                 fmt::format("'{}' is in use: process {} on '", folder.path(), ::getpid()));
    FolderLock moved = std::move(*first);
    EXPECT_FALSE(FolderLock::take(folder.path(), kSilent).isOk());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / kLockFile));
  EXPECT_TRUE(FolderLock::take(folder.path(), kSilent)->isHeld());
}

TEST(FolderLock, LiesBesideAFolderThatIsMadeInOneGo) {
  TempFolder folder;
  {
    Result<FolderLock> first = FolderLock::takeBeside(folder / "new/model/", kSilent);
    ASSERT_OK(first.status());
    EXPECT_FALSE(std::filesystem::exists(folder / "new/model"));
    EXPECT_FAILS(FolderLock::takeBeside(folder / "new/model", kSilent).status(),
                 "[checkpoint-folder-in-use]");
    EXPECT_TRUE(FolderLock::takeBeside(folder / "new/other", kSilent)->isHeld());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(FolderLock, AFolderMadeForNothingGoesWithTheLock) {
  TempFolder folder;
  EXPECT_TRUE(FolderLock::take(folder / "new", kSilent)->isHeld());
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  {
    Result<FolderLock> lock = FolderLock::take(folder / "new", kSilent);
    putContents(folder / "new/made", "something");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "new/made"));
  EXPECT_TRUE(FolderLock::take(folder.path(), kSilent)->isHeld());
  EXPECT_TRUE(std::filesystem::exists(folder.path()));
}

TEST(FolderLock, EndsWithItsProcess) {
  TempFolder folder;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  pid_t child = ::fork();
  if (child == 0) {
    Result<FolderLock> lock = FolderLock::take(folder.path(), kSilent);
    char isHeld = lock.isOk() && lock->isHeld() ? 'y' : 'n';
    static_cast<void>(::write(pipe[1], &isHeld, 1) == 1);
    ::pause();
    ::_exit(0);
  }
  char isHeld = '?';
  ASSERT_EQ(::read(pipe[0], &isHeld, 1), 1);
  EXPECT_EQ(isHeld, 'y');
  EXPECT_FAILS(FolderLock::take(folder.path(), kSilent).status(),
               fmt::format("process {} on", child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  // The process died before it could remove the file.
  EXPECT_TRUE(std::filesystem::exists(folder / kLockFile));
  EXPECT_TRUE(FolderLock::take(folder.path(), kSilent)->isHeld());
  EXPECT_FALSE(std::filesystem::exists(folder / kLockFile));
}

TEST(FolderLock, WithoutLocksAWarningIsAll) {
  TempFolder folder;
  // A folder cannot be locked, as on a file system without locks.
  std::filesystem::create_directory(folder / kLockFile);
  test::Reported reported;
  Result<FolderLock> lock = FolderLock::take(folder.path(), reported.sink());
  ASSERT_OK(lock.status());
  EXPECT_FALSE(lock->isHeld());
  ASSERT_EQ(reported.lines.size(), 1u);
  EXPECT_EQ(reported.lines[0].find("warning: cannot lock '"), 0u) << reported.lines[0];
  EXPECT_TRUE(reported.lines[0].ends_with("[cannot-lock]")) << reported.lines[0];
}

TEST(FolderLock, WritesIntoNoFileOfOthers) {
  TempFolder folder;
  putContents(folder / "notes", "mine");
  std::filesystem::create_symlink("notes", folder / kLockFile);
  test::Reported reported;
  EXPECT_FALSE(FolderLock::take(folder.path(), reported.sink())->isHeld());
  EXPECT_EQ(contentsOf(folder / "notes"), "mine");
  std::filesystem::remove(folder / kLockFile);
  std::filesystem::create_hard_link(folder / "notes", folder / kLockFile);
  EXPECT_TRUE(FolderLock::take(folder.path(), reported.sink())->isHeld());
  EXPECT_EQ(contentsOf(folder / "notes"), "mine");
}

} // namespace
} // namespace shardc::checkpoint
