// Cases of ops that the op table describes.
#pragma once

#include <string_view>

#include "test/kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

/// Adds the values of a call of the op, whose name may have the name of a case behind it: `op,
/// case`. False if there is no such op or case.
bool makeRowCase(Builder &builder, std::string_view name);

} // namespace shardc::kernels::bench
