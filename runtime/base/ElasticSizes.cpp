// Parses the list of sizes. The compiler's tools and shardc-run both call it, so that they accept
// the same texts.
#include "runtime/base/ElasticSizes.h"

#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/Launcher.h"

namespace shardc {

Result<std::vector<int64_t>> parseElasticSizes(std::string_view text) {
  Status refused(StatusCode::InvalidInput,
                 fmt::format("--elastic is '{}'; it takes numbers of ranks with commas between "
                             "them, largest first, as 8,6,4",
                             text));
  std::vector<int64_t> sizes;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    int64_t size = 0;
    auto [after, error] = std::from_chars(at, end, size);
    int64_t before = sizes.empty() ? kLaunchedRanksMax + 1 : sizes.back();
    if (error != std::errc() || size < 1 || size >= before)
      return refused;
    sizes.push_back(size);
    if (after == end)
      return sizes;
    if (*after != ',')
      return refused;
    at = after + 1;
  }
}

std::string elasticText(const std::vector<int64_t> &sizes) {
  return fmt::format("{}", fmt::join(sizes, ","));
}

} // namespace shardc
