// Packs bytes like gzip and zstd; also includes the helpers that all tests here need.
#pragma once

#include <string>
#include <string_view>

#include "test/unit/support/StatusChecks.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::tokenize {

using test::TempFolder;

/// The bytes as one gzip member, or as one zstd frame.
std::string gzip(std::string_view bytes);
std::string zstd(std::string_view bytes);

/// Bytes that hardly compress, the same in each call.
std::string noise(size_t size);

inline std::string contentsOf(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

} // namespace shardc::tokenize
