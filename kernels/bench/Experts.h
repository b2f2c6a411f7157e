// Times a layer of experts, forward and backward, with the CUDA kernels of its ops.
#pragma once

#include <span>
#include <string_view>

namespace shardc::kernels::bench {

/// Prints milliseconds of each op and of the whole layer, captured in a graph, for the models whose
/// names contain one of these words, or for all; and of the products alone as dense ones with as
/// many rows. `skew` is the distance between the most and the least wanted expert's logit, in units
/// of the noise.
void timeExperts(std::span<char *> words, double skew);

} // namespace shardc::kernels::bench
