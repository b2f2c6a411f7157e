// Fuzzes the reader of measured rates with any text. Nothing may crash, a fault must name a line of
// the text, and accepted rates must be the same after printing and reading, also as words of plans.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/Rates.h"
#include "runtime/base/Status.h"

namespace shardc {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(data), size);
  RateFault fault;
  std::optional<RateFile> file = parseRates(text, fault);
  if (!file) {
    SHARDC_CHECK(fault.line >= 1 && fault.line <= kRateLinesMax + 1 && !fault.text.empty(),
                 "a fault in line {} has no text", fault.line);
  } else {
    std::string printed = printRates(*file);
    std::optional<RateFile> again = parseRates(printed, fault);
    SHARDC_CHECK(again && again->rates.size() == file->rates.size(), "printed rates: line {}: {}",
                 fault.line, fault.text);
    SHARDC_CHECK(printRates(*again) == printed, "rates print differently the second time");
    for (const Rate &rate : file->rates) {
      std::optional<Rate> read = Rate::ofWords(rate.words());
      SHARDC_CHECK(read && read->isLike(rate), "the words '{}' are not read", rate.words());
    }
  }
  Rate::ofWords(text.substr(0, text.find('\n')));
  return 0;
}

} // namespace shardc
