// Whatever the text, the parser refuses it with a message or gives a plan whose every use is safe:
// verified or refused, summed up, and printed to a text that gives the same plan.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/Parser.h"
#include "runtime/plan/Printer.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"

using namespace shardc;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(data), size);
  Result<plan::Plan> read = plan::parse(text, "fuzz.plan");
  if (!read.isOk()) {
    SHARDC_CHECK(read.status().code() == StatusCode::InvalidInput &&
                     !read.status().message().empty(),
                 "refused without a reason");
    return 0;
  }
  std::string once = plan::print(*read, plan::summary(*read));
  Result<plan::Plan> again = plan::parse(once, "printed.plan");
  SHARDC_CHECK(again.isOk(), "what was printed is refused: {}", again.status().message());
  SHARDC_CHECK(plan::print(*again) == plan::print(*read), "printing is not the identity");
  for (const plan::Finding &finding : plan::verify(*read))
    SHARDC_CHECK(!plan::render(*read, finding).empty(), "a finding without text");
  return 0;
}
