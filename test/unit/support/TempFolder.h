// A temporary folder for a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace shardc::test {

/// A folder that the destructor removes with its contents.
class TempFolder {
public:
  TempFolder() : TempFolder(::testing::TempDir()) {}
  /// A folder in `root`.
  explicit TempFolder(const std::filesystem::path &root)
      : path_((root / "shardc-test-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) {
      ADD_FAILURE() << "no folder can be made in " << root;
      path_.clear();
    }
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty())
      std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder &) = delete;
  TempFolder &operator=(const TempFolder &) = delete;

  const std::string &path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// Writes a file and its missing folders, and returns its path.
  std::string write(const std::string &name, std::string_view contents) const {
    std::string path = *this / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }

private:
  std::string path_;
};

} // namespace shardc::test
