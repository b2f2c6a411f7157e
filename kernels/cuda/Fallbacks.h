// Records slower kernels that replace a library's kernels, so that the run can report
// them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Records a sentence, once. Any thread may call it.
void noteFallback(std::string_view text);

/// Sentences recorded since the last call, in order.
std::vector<std::string> takeFallbacks();

} // namespace shardc::kernels::cuda
