// Any bytes as lines of JSON, from memory and from a file, with a small limit for lines.
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data/Jsonl.h"

namespace shardc::data {
namespace {

/// A file in memory with its own path, so that no disk is written.
std::string memoryFile(const uint8_t *data, size_t size) {
  static int fd = ::memfd_create("fuzz", 0);
  SHARDC_CHECK(::ftruncate(fd, 0) == 0 && ::pwrite(fd, data, size, 0) == static_cast<ssize_t>(size),
               "cannot write {} bytes", size);
  return fmt::format("/proc/self/fd/{}", fd);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  auto visit = [&](std::string_view line) {
    SHARDC_CHECK(line.size() <= 4096, "a line of {} bytes", line.size());
    Status status = extractTexts(line, "text", texts);
    for (const std::string &text : texts)
      bytes += text.size();
    return status;
  };
  Status status = forEachLine(memoryFile(data, size), /*lineBytesMax=*/4096, visit);
  SHARDC_CHECK(status.isOk() || !status.message().empty(), "refused without a reason");
  SHARDC_CHECK(bytes <= size, "{} bytes of text in {} bytes of lines", bytes, size);
  return 0;
}

} // namespace shardc::data
