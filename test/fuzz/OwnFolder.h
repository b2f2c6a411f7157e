// What the fuzz targets that read whole folders share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

namespace shardc::fuzz {

/// Ends the target if what must hold does not.
inline void require(bool holds) {
  if (!holds)
    std::abort();
}

inline void writePlain(const std::string &path, std::string_view bytes) {
  std::FILE *file = std::fopen(path.c_str(), "wb");
  require(file != nullptr);
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

/// A folder of this process in memory. It is removed when the object is.
struct OwnFolder {
  explicit OwnFolder(std::string_view name)
      : path(fmt::format("/dev/shm/shardc-fuzz-{}-{}", name, ::getpid())) {
    std::filesystem::create_directories(path);
  }
  OwnFolder(const OwnFolder &) = delete;
  OwnFolder &operator=(const OwnFolder &) = delete;
  ~OwnFolder() { std::filesystem::remove_all(path); }

  const std::string path;
};

} // namespace shardc::fuzz
