// The files that an untrusted folder opens.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/base/UntrustedFolder.h"
#include "test/unit/support/TempFolder.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

class UntrustedFolderTest : public testing::Test {
protected:
  UntrustedFolderTest() {
    fs::create_directories(outer_ + "/in/sub/deep");
    put("outside", "secret");
    put("in/file", "text");
    put("in/sub/deep/file", "deep");
  }

  void put(const std::string &name, const std::string &text) const {
    std::ofstream(outer_ + "/" + name) << text;
  }
  void link(const std::string &to, const std::string &name) const {
    fs::create_symlink(to, outer_ + "/in/" + name);
  }
  UntrustedFolder open() const {
    Result<UntrustedFolder> folder = UntrustedFolder::open(outer_ + "/in");
    EXPECT_TRUE(folder.isOk()) << folder.status().message();
    return std::move(*folder);
  }
  /// Expects that every way to open the name is refused, with `why` in the message.
  void expectRefused(const std::string &name, const std::string &why,
                     StatusCode code = StatusCode::InvalidInput) const {
    UntrustedFolder folder = open();
    for (const Status &status : {folder.map(name).status(), folder.read(name, 100).status(),
                                 folder.sizeOf(name).status()}) {
      EXPECT_EQ(status.code(), code) << name << ": " << status.message();
      EXPECT_NE(status.message().find(why), std::string::npos) << name << ": " << status.message();
    }
  }

  test::TempFolder folder_;
  const std::string &outer_ = folder_.path();
};

/// In Hugging Face's cache, files of a snapshot are links to `blobs` beside the snapshots.
TEST_F(UntrustedFolderTest, LinksOfASnapshotLeadToItsBlobs) {
  std::string entry = outer_ + "/models--a--b";
  fs::create_directories(entry + "/snapshots/1");
  fs::create_directories(entry + "/blobs/inner");
  put("models--a--b/blobs/f00d", "blob");
  fs::create_symlink("../../outside", entry + "/blobs/out");
  auto link = [&](const std::string &to, const std::string &name) {
    fs::create_symlink(to, entry + "/snapshots/1/" + name);
  };
  link("../../blobs/f00d", "good");
  link("../../blobs/out", "chained");
  link("../../blobs/inner", "folder");
  link("../../blobs/../../outside", "up");
  link("../../../outside", "beside");
  link(entry + "/blobs/f00d", "absolute");
  UntrustedFolder folder = std::move(*UntrustedFolder::open(entry + "/snapshots/1"));
  EXPECT_EQ(*folder.read("good", 100), "blob");
  EXPECT_EQ(*folder.sizeOf("good"), 4u);
  EXPECT_EQ(folder.map("good")->bytes().size(), 4u);
  EXPECT_FALSE(folder.read("good", 3).isOk());
  for (const char *name : {"chained", "folder", "up", "beside", "absolute"}) {
    EXPECT_EQ(folder.read(name, 100).status().code(), StatusCode::InvalidInput) << name;
    EXPECT_EQ(folder.sizeOf(name).status().code(), StatusCode::InvalidInput) << name;
  }
  this->link("../../blobs/f00d", "good");
  put("blobs", "");
  expectRefused("good", "is a link");
}

TEST_F(UntrustedFolderTest, FilesBeneathAreRead) {
  UntrustedFolder folder = open();
  EXPECT_EQ(*folder.read("file", 4), "text");
  EXPECT_EQ(*folder.read("sub/deep/file", 100), "deep");
  EXPECT_EQ(folder.map("sub/deep/file")->bytes().size(), 4U);
  EXPECT_EQ(*folder.sizeOf("file"), 4U);
  EXPECT_FALSE(folder.read("file", 3).isOk());
  EXPECT_EQ(folder.read("absent", 9).status().code(), StatusCode::NotFound);
  EXPECT_EQ(folder.read("absent/file", 9).status().code(), StatusCode::NotFound);
}

TEST_F(UntrustedFolderTest, LinksAreNotFollowed) {
  link("../outside", "out");
  link("file", "inner");
  link("nowhere", "dangling");
  link("loop", "loop");
  link("sub", "folder");
  link("/etc", "system");
  for (const char *name : {"out", "inner", "dangling", "loop", "folder"})
    expectRefused(name, "is a link");
  expectRefused("folder/deep/file", "a part of its path is a link");
  expectRefused("system/passwd", "a part of its path is a link");
}

TEST_F(UntrustedFolderTest, NamesThatLeadOutAreRefused) {
  for (const char *name :
       {"../outside", "sub/../file", "/etc/passwd", "", ".", "..", "sub//deep", "./file", "sub/"})
    expectRefused(name, "points outside the folder");
}

TEST_F(UntrustedFolderTest, OnlyRegularFilesAreTaken) {
  ASSERT_EQ(::mkfifo((outer_ + "/in/pipe").c_str(), 0600), 0);
  expectRefused("pipe", "is a pipe"); // opening does not wait for a writer
  expectRefused("sub", "is a folder");
  expectRefused("file/inner", "a part of its path");
}

TEST_F(UntrustedFolderTest, ViewsOfTheSystemAreRefused) {
  UntrustedFolder folder = std::move(*UntrustedFolder::open("/proc/self"));
  for (const char *name : {"environ", "cmdline"}) {
    EXPECT_EQ(folder.read(name, 1 << 20).status().code(), StatusCode::InvalidInput) << name;
    EXPECT_FALSE(folder.sizeOf(name).isOk()) << name;
  }
}

TEST_F(UntrustedFolderTest, ListsWhatIsBelow) {
  fs::create_directories(outer_ + "/in/.git");
  put("in/.git/config", "");
  link("sub", "loop");
  EXPECT_EQ(*open().listBelow(2), (std::vector<std::string>{"file", "loop", "sub/deep/file"}));
  EXPECT_EQ(*open().listBelow(1), (std::vector<std::string>{"file", "loop"}));
}

TEST_F(UntrustedFolderTest, TheFolderItselfMayBeReachedByALink) {
  fs::create_directory_symlink("in", outer_ + "/link");
  Result<UntrustedFolder> folder = UntrustedFolder::open(outer_ + "/link");
  ASSERT_TRUE(folder.isOk());
  EXPECT_EQ(*folder->read("file", 4), "text");
  EXPECT_EQ(UntrustedFolder::open(outer_ + "/none").status().code(), StatusCode::NotFound);
  EXPECT_EQ(UntrustedFolder::open(outer_ + "/outside").status().code(), StatusCode::InvalidInput);
}

TEST_F(UntrustedFolderTest, SubfoldersAreNoLinks) {
  link("sub", "loop");
  link(outer_, "out");
  Result<UntrustedFolder> sub = open().folder("sub/deep");
  ASSERT_TRUE(sub.isOk());
  EXPECT_EQ(*sub->read("file", 4), "deep");
  EXPECT_EQ(sub->path(), outer_ + "/in/sub/deep");
  for (const char *name : {"loop", "out", "loop/deep", "file", "..", ""})
    EXPECT_EQ(open().folder(name).status().code(), StatusCode::InvalidInput) << name;
  EXPECT_EQ(open().folder("absent").status().code(), StatusCode::NotFound);
}

TEST_F(UntrustedFolderTest, ListsNamesAndTellsFolders) {
  link("sub", "folder");
  UntrustedFolder folder = open();
  Result<std::vector<UntrustedFolder::Entry>> entries = folder.list();
  ASSERT_TRUE(entries.isOk());
  std::string text;
  for (const auto &[name, isFolder] : *entries)
    text += name + (isFolder ? "/ " : " ");
  EXPECT_EQ(text, "file folder sub/ ");
  EXPECT_EQ(folder.list("sub")->size(), 1U);
  for (const char *name : {"folder", "file", "folder/deep", "..", "/"})
    EXPECT_EQ(folder.list(name).status().code(), StatusCode::InvalidInput) << name;
  EXPECT_TRUE(folder.has("folder"));
  EXPECT_FALSE(folder.has("absent"));
  EXPECT_FALSE(folder.has("../outside"));
}

} // namespace
} // namespace shardc
