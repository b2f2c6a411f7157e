// Replaces libFuzzer in fuzz targets that are built as tests: passes every file of a corpus to the
// target, whole and truncated at a few places. Fails if there is no file, so that an empty corpus
// is noticed.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/Io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

constexpr int64_t kFileBytesMax = 1 << 20;
constexpr size_t kCuts = 8;

/// Copies the input to memory of its exact size, so that sanitizers detect reads past its end.
void give(std::string_view bytes) {
  std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

} // namespace

int main(int argc, char **argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    std::error_code error;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(argv[i], error))
      if (entry.is_regular_file())
        paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path &path : paths) {
      shardc::Result<std::string> bytes = shardc::readFile(path, kFileBytesMax);
      if (!bytes.isOk()) {
        fmt::print(stderr, "{}\n", bytes.status().message());
        return 1;
      }
      for (size_t cut = 0; cut <= kCuts; ++cut)
        give(std::string_view(*bytes).substr(0, bytes->size() * cut / kCuts));
      ++files;
    }
  }
  fmt::print("{} files\n", files);
  return files > 0 ? 0 : 1;
}
