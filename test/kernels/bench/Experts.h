// Times a layer of experts, forward and backward, with the CUDA kernels of its ops.
#pragma once

#include <span>
#include <string_view>

namespace shardc::kernels::bench {

/// Prints the milliseconds of each op and of the whole layer, captured in a graph, and those of
/// dense products with the same numbers of rows. Covers the models whose names contain one of
/// `words`, or all models. `skew` is the difference between the logits of the most and the least
/// popular expert, in standard deviations of the random logits.
void timeExperts(std::span<char *> words, double skew);

} // namespace shardc::kernels::bench
