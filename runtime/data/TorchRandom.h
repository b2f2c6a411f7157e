// torch.randperm on the CPU with a generator of its own, bit for bit: MT19937 seeded by the low 32
// bits of the seed. Megatron's random sampler orders samples with it, so equal epochs give equal
// orders.
#pragma once

#include <cstdint>
#include <span>

namespace shardc::data {

/// Number of elements from which torch draws 64 bits for each element, in another order.
inline constexpr uint64_t kTorchWideFrom = UINT32_MAX / 20;

/// Writes torch.randperm(out.size(), generator=torch.Generator().manual_seed(seed)). If there are
/// at least `wideFrom` elements, each takes 64 bits; tests pass a lower number.
void torchPermutation(uint64_t seed, std::span<uint32_t> out, uint64_t wideFrom = kTorchWideFrom);

} // namespace shardc::data
