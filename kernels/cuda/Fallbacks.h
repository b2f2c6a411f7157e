// What a library was to serve and does not, so that slower kernels take its place: kept for whoever
// can say so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Keeps a sentence, once; any thread may call it.
void noteFallback(std::string_view text);

/// What was kept since the last call, in the order of its coming.
std::vector<std::string> takeFallbacks();

} // namespace shardc::kernels::cuda
