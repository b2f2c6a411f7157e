// The sizes of an elastic job, as `--elastic` accepts them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc {

/// Parses a text such as `8,6,4`: numbers of ranks in descending order. InvalidInput for any other
/// text.
Result<std::vector<int64_t>> parseElasticSizes(std::string_view text);

/// Formats sizes as `8,6,4`.
std::string elasticText(const std::vector<int64_t> &sizes);

} // namespace shardc
