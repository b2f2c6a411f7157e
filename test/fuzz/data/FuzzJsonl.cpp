// Any bytes as lines of JSON.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/Jsonl.h"

namespace shardc::data {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (std::string_view left(reinterpret_cast<const char *>(data), size); !left.empty();) {
    size_t end = std::min(left.find('\n'), left.size());
    Status status = extractTexts(left.substr(0, end), "text", texts);
    SHARDC_CHECK(status.isOk() || !status.message().empty(), "refused without a reason");
    for (const std::string &text : texts)
      bytes += status.isOk() ? text.size() : 0;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  SHARDC_CHECK(bytes <= size, "{} bytes of text in {} bytes of lines", bytes, size);
  return 0;
}

} // namespace shardc::data
