// A folder of a test's own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace shardc::test {

/// Goes away with the object, with all that is in it.
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
  /// Writes a file, its folders included, and gives its path.
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
