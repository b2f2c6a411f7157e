// The file to which a rank writes the trace of its steps.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/tools/Options.h"

namespace shardc::tools {

std::string traceFileOf(const RunToolOptions &options, int64_t rank) {
  if (options.trace.empty() || !std::ranges::binary_search(options.traceRanks, rank))
    return "";
  if (options.traceRanks.size() == 1)
    return options.trace;
  std::filesystem::path file(options.trace);
  std::string ending = file.extension().string();
  file.replace_extension();
  return fmt::format("{}.rank{}{}", file.string(), rank, ending);
}

} // namespace shardc::tools
