// One holder at a time, gone with its process, and no harm where a file system has no locks.
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/checkpoint/FolderLock.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

TEST(FolderLock, RefusesASecondHolderByTheFirstsName) {
  TempFolder folder;
  {
    Result<FolderLock> first = FolderLock::take(folder.path());
    ASSERT_OK(first.status());
    EXPECT_TRUE(first->isHeld());
    EXPECT_FAILS(FolderLock::take(folder.path()).status(),
                 fmt::format("'{}' is in use: process {} on '", folder.path(), ::getpid()));
    FolderLock moved = std::move(*first);
    EXPECT_FALSE(FolderLock::take(folder.path()).isOk());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / kLockFile));
  EXPECT_TRUE(FolderLock::take(folder.path())->isHeld());
}

TEST(FolderLock, LiesBesideAFolderThatIsMadeInOneGo) {
  TempFolder folder;
  {
    Result<FolderLock> first = FolderLock::takeBeside(folder / "new/model/");
    ASSERT_OK(first.status());
    EXPECT_FALSE(std::filesystem::exists(folder / "new/model"));
    EXPECT_FAILS(FolderLock::takeBeside(folder / "new/model").status(), "new/model' is in use");
    EXPECT_TRUE(FolderLock::takeBeside(folder / "new/other")->isHeld());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(FolderLock, AFolderMadeForNothingGoesWithTheLock) {
  TempFolder folder;
  EXPECT_TRUE(FolderLock::take(folder / "new")->isHeld());
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  {
    Result<FolderLock> lock = FolderLock::take(folder / "new");
    putContents(folder / "new/made", "something");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "new/made"));
  EXPECT_TRUE(FolderLock::take(folder.path())->isHeld());
  EXPECT_TRUE(std::filesystem::exists(folder.path()));
}

TEST(FolderLock, EndsWithItsProcess) {
  TempFolder folder;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  pid_t child = ::fork();
  if (child == 0) {
    Result<FolderLock> lock = FolderLock::take(folder.path());
    char isHeld = lock.isOk() && lock->isHeld() ? 'y' : 'n';
    static_cast<void>(::write(pipe[1], &isHeld, 1) == 1);
    ::pause();
    ::_exit(0);
  }
  char isHeld = '?';
  ASSERT_EQ(::read(pipe[0], &isHeld, 1), 1);
  EXPECT_EQ(isHeld, 'y');
  EXPECT_FAILS(FolderLock::take(folder.path()).status(), fmt::format("process {} on", child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  EXPECT_TRUE(std::filesystem::exists(folder / kLockFile)); // nobody could remove it
  EXPECT_TRUE(FolderLock::take(folder.path())->isHeld());
  EXPECT_FALSE(std::filesystem::exists(folder / kLockFile));
}

TEST(FolderLock, WithoutLocksAWarningIsAll) {
  TempFolder folder;
  std::filesystem::create_directory(folder / kLockFile); // can no more be opened than locked
  Result<FolderLock> lock = FolderLock::take(folder.path());
  ASSERT_OK(lock.status());
  EXPECT_FALSE(lock->isHeld());
  EXPECT_NE(lock->note().find("cannot lock '"), std::string::npos) << lock->note();
}

TEST(FolderLock, WritesIntoNoFileOfOthers) {
  TempFolder folder;
  putContents(folder / "notes", "mine");
  std::filesystem::create_symlink("notes", folder / kLockFile);
  EXPECT_FALSE(FolderLock::take(folder.path())->isHeld());
  EXPECT_EQ(contentsOf(folder / "notes"), "mine");
}

} // namespace
} // namespace shardc::checkpoint
