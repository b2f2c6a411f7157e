// The sizes of an elastic job, as `--elastic` takes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc {

/// Of a text as `8,6,4`: numbers of ranks, each below the one before. InvalidInput if it is
/// another.
Result<std::vector<int64_t>> parseElasticSizes(std::string_view text);

/// `8,6,4`.
std::string elasticText(const std::vector<int64_t> &sizes);

} // namespace shardc
