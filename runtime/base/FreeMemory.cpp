#include "runtime/base/FreeMemory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "runtime/base/Io.h"

namespace shardc {
namespace {

/// The number after `key` in a file with lines "key number", or the number at the start of the file
/// if `key` is empty; -1 if there is none.
int64_t numberIn(const char *path, std::string_view key) {
  Result<std::string> text = readSystemFile(path);
  if (!text.isOk())
    return -1;
  size_t at = key.empty() ? 0 : text->find(key);
  if (at == std::string::npos)
    return -1;
  at = text->find_first_not_of(" \t", at + key.size());
  if (at == std::string::npos || (*text)[at] < '0' || (*text)[at] > '9')
    return -1; // the text is "max": no limit
  return std::strtoll(text->c_str() + at, nullptr, 10);
}

} // namespace

int64_t machineBytesFree() {
  int64_t kib = numberIn("/proc/meminfo", "MemAvailable:");
  int64_t free = kib < 0 ? std::numeric_limits<int64_t>::max() : kib * 1024;
  int64_t limit = numberIn("/sys/fs/cgroup/memory.max", ""),
          used = numberIn("/sys/fs/cgroup/memory.current", "");
  if (limit >= 0 && used >= 0)
    free = std::min(free, std::max<int64_t>(limit - used, 0));
  return free;
}

} // namespace shardc
