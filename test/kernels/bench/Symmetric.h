// Times products of matrices with their transposes, beside the library's whole products.
#pragma once

namespace shardc::kernels::bench {

/// Prints the milliseconds of x·xᵀ, or xᵀ·x, and of the polynomial of the result, for batches of
/// matrices that Muon has, and the largest difference from the library's results.
void timeSymmetric();

} // namespace shardc::kernels::bench
