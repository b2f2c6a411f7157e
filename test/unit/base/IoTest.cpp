#include "runtime/base/Io.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/base/Report.h"
#include "test/unit/support/TempFolder.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

/// A folder with a named pipe; the destructor removes it.
struct PipeFolder {
  PipeFolder() { EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0); }
  test::TempFolder folder;
  std::string path = folder.path(), pipe = path + "/pipe";
};

TEST(Io, APipeIsWrittenInto) {
  PipeFolder folder;
  fs::create_symlink("pipe", folder.path + "/link");
  int reader = ::open(folder.pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  for (const std::string &path : {folder.pipe, folder.path + "/link"}) {
    Status status = writeFileAtomic(path, "text");
    EXPECT_TRUE(status.isOk()) << status.message();
    char got[8] = {};
    EXPECT_EQ(::read(reader, got, sizeof got), 4);
    EXPECT_STREQ(got, "text");
  }
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(folder.pipe));
  EXPECT_TRUE(fs::is_symlink(folder.path + "/link"));
}

TEST(Io, AFileIsReplacedBehindItsLinks) {
  PipeFolder folder;
  fs::create_directory(folder.path + "/sub");
  fs::create_symlink("sub/second", folder.path + "/first");
  fs::create_symlink("file", folder.path + "/sub/second");
  for (const char *text : {"new file", "old file"}) {
    Status status = writeFileAtomic(folder.path + "/first", text);
    EXPECT_TRUE(status.isOk()) << status.message();
    EXPECT_EQ(*readFile(folder.path + "/sub/file"), text);
  }
  EXPECT_TRUE(fs::is_symlink(folder.path + "/first"));
  EXPECT_TRUE(fs::is_symlink(folder.path + "/sub/second"));
}

TEST(Io, ALinkThatNobodyNamedIsReplacedItself) {
  PipeFolder folder;
  ASSERT_TRUE(writeFileAtomic(folder.path + "/mine", "mine").isOk());
  fs::create_symlink("mine", folder.path + "/derived");
  EXPECT_TRUE(replaceFile(folder.path + "/derived", "new").isOk());
  EXPECT_FALSE(fs::is_symlink(folder.path + "/derived"));
  EXPECT_EQ(*readFile(folder.path + "/mine"), "mine");
  EXPECT_EQ(*readFile(folder.path + "/derived"), "new");
}

/// A folder of a stranger may have links under the names of temporary files.
TEST(Io, TemporaryFilesAreNew) {
  test::TempFolder folder;
  std::string outside = folder / "outside", path = folder / "file.tmp";
  folder.write("outside", "kept");
  fs::create_symlink(outside, path);
  int fd = createNew(path, 0644);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::write(fd, "x", 1), 1);
  ::close(fd);
  EXPECT_EQ(*readFile(outside), "kept");
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(createNew(folder.path(), 0644), -1) << "a folder stays";
  EXPECT_NE(temporaryOf(path), temporaryOf(path));
  for (const std::string &name : {temporaryOf("a.txt"), std::string("a.txt.tmp")})
    EXPECT_TRUE(isTemporaryOf(name, "a.txt")) << name;
  for (const char *name : {"a.txt", "a.txt.tmp.bak", "a.txt.tmpx", "b.txt.tmp",
                           "a.txt.tmp.0123456789abcdeg", "a.txt.tmp.0123456789abcdef0"})
    EXPECT_FALSE(isTemporaryOf(name, "a.txt")) << name;
}

TEST(Io, ViewsOfTheSystemAreNoInput) {
  for (const char *path : {"/proc/self/environ", "/proc/self/cmdline", "/sys/kernel/mm/ksm/run"})
    if (fs::exists(path)) {
      EXPECT_EQ(readFile(path).status().code(), StatusCode::InvalidInput) << path;
    }
  EXPECT_TRUE(readSystemFile("/proc/self/status").isOk());
}

TEST(Io, AReplacedFileKeepsItsMode) {
  test::TempFolder folder;
  std::string path = folder.path() + "/private";
  ASSERT_TRUE(writeFileAtomic(path, "old").isOk());
  for (mode_t mode : {0600, 0640, 0664, 0755}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    ASSERT_TRUE(writeFileAtomic(path, "new").isOk());
    struct stat info = {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, mode);
  }
}

TEST(Io, AFolderIsNotReplaced) {
  PipeFolder folder;
  EXPECT_FALSE(writeFileAtomic(folder.path, "text").isOk());
  EXPECT_TRUE(fs::is_directory(folder.path));
}

TEST(Io, InputsAreFiles) {
  PipeFolder folder;
  EXPECT_EQ(readFile(folder.pipe).status().message(),
            "'" + folder.pipe + "' is a pipe, not a file");
  EXPECT_EQ(MappedFile::open(folder.pipe).status().message(),
            "'" + folder.pipe + "' is a pipe, not a file");
  EXPECT_EQ(readFile("/dev/null").status().message(), "'/dev/null' is a device, not a file");
  EXPECT_EQ(readFile(folder.path).status().message(),
            "'" + folder.path + "' is a folder, not a file");
}

/// To open these files for reading fails for every user, so they are refused before that.
TEST(Io, ViewsOfTheSystemAreNotOpened) {
  int tried = 0;
  for (const char *path : {"/proc/sys/vm/compact_memory", "/proc/sys/vm/drop_caches",
                           "/proc/sys/net/ipv4/route/flush"}) {
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 || errno != EACCES) {
      ::close(fd);
      continue;
    }
    ++tried;
    EXPECT_EQ(openRegular(path).status().message(),
              "'" + std::string(path) + "' is a view of the system, not a file");
  }
  if (tried == 0)
    GTEST_SKIP() << "no file of /proc is only for writing";
}

TEST(Io, LinesOfReportsControlNoTerminal) {
  Status status = makeStatus(StatusCode::InvalidInput, "{}",
                             "'x\x1b]0;t\x07' is\na \xc2\x9b link\xff\nnote: b\n  c");
  EXPECT_EQ(lineOf(status.report()),
            "error: 'x\\x1b]0;t\\x07' is\\x0aa \\xc2\\x9b link\\xff [input-refused]\nnote: b\n  c");
}

TEST(Io, DescriptorsMayBePipes) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "text", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(*readFile("/dev/fd/" + std::to_string(ends[0])), "text") << "as of <(command)";
  ::close(ends[0]);
}

TEST(Io, OwnAndWrittenDescriptorsAreNoFiles) {
  for (auto [flags, end] : {std::pair(O_CLOEXEC, 0), {O_CLOEXEC, 1}, {0, 1}}) {
    int ends[2]; // both ends stay open, so a reader would wait
    ASSERT_EQ(::pipe2(ends, flags), 0);
    std::string path = "/dev/fd/" + std::to_string(ends[end]);
    EXPECT_EQ(readFile(path).status().message(), "'" + path + "' is a pipe, not a file");
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

} // namespace
} // namespace shardc
