// A specification and a plan, one after the other in a text. If the verifier accepts both, the
// comparison must end, and name a difference that can be rendered.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(data), size);
  Result<std::vector<plan::Plan>> plans = plan::parseJob(text, "fuzz.plan");
  if (!plans.isOk() || plans->size() != 2)
    return 0;
  for (const plan::Plan &plan : *plans)
    if (!plan::verify(plan).empty())
      return 0;
  plan::spec::Comparison compared = plan::spec::compare(plans->front(), plans->back());
  if (compared.difference)
    SHARDC_CHECK(!plan::render(plans->back(), *compared.difference).empty(),
                 "a difference without text");
  return 0;
}

} // namespace shardc
