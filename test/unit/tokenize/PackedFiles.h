// Packs bytes as gzip and zstd do, and what all tests here use.
#pragma once

#include <string>
#include <string_view>

#include "test/unit/support/StatusChecks.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::tokenize {

using test::TempFolder;

/// One gzip member, and one zstd frame.
std::string gzip(std::string_view bytes);
std::string zstd(std::string_view bytes);

/// Bytes that packing does not make shorter by much, the same each time.
std::string noise(size_t size);

inline std::string contentsOf(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

} // namespace shardc::tokenize
