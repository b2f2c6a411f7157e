// Any text as a config.json: it is accepted or refused; a refusal names a field of the file, and an
// accepted file gives options and parameters.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/HfArguments.h"

namespace shardc::checkpoint {
namespace {

constexpr int64_t kPartsMax = 1000; ///< more parameters take long without testing anything new

void require(bool holds) {
  if (!holds)
    std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string text(reinterpret_cast<const char *>(data), size);
  const nlohmann::json file = parseJson(text);
  HfFaults faults;
  Result<HfConfig> config = parseHfConfig(text, "config.json", {}, &faults);
  if (!config.isOk()) {
    require(!config.status().report().text.empty());
    for (const HfFault &fault : faults) {
      bool isPart = fault.field.find('.') != std::string::npos;
      bool isThere = isPart || file.contains(fault.field);
      require(fault.status.report().id != report::HfFieldUnknown.info().id || isThere);
    }
    return 0;
  }
  for (const Report &remark : hfRemarks(config->file))
    require(!remark.text.empty());
  Result<PlainEntries> arguments = hfArguments(*config, config->biases, &faults);
  require(arguments.isOk() || !faults.empty());
  if (arguments.isOk())
    require(findEntry(*arguments, "num_layers") != nullptr);
  int64_t parts = std::max(config->experts, config->groups) * (config->layers + config->mtpLayers);
  if (parts <= kPartsMax)
    require(!hfParams(*config).empty());
  return 0;
}

} // namespace shardc::checkpoint
