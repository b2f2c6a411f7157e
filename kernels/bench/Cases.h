// One call of every op, with its memory, for a model of given extents. The benchmarks time these
// calls, and the tests of `accepts` start from them. A new row of Kernels.def needs a case here.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::bench {

struct Model {
  int64_t batch, positions, heads, groups, channels, ffn, vocabulary;
  int64_t ownValues = 0; ///< channels of a head's values; 0: as many as of its keys
  int64_t window = -1;   ///< keys before its own that a query of attention sees; -1: all
  int64_t document = 0;  ///< positions of each document; 0: one for all; -1: 16 to 1,500 of each

  int64_t hidden() const { return heads * channels; }
  int64_t values() const { return ownValues > 0 ? ownValues : channels; }
  int64_t attended() const { return heads * values(); } ///< columns of attention's output
  int64_t rows() const { return batch * positions; }
  int64_t qkv() const { return (heads + 2 * groups) * channels; }
};

/// Small enough for thousands of calls, with no two extents alike.
inline constexpr Model kTinyModel = {2, 5, 6, 3, 4, 7, 11};
/// A microbatch of a model that trains on a laptop.
inline constexpr Model kSmallModel = {4, 256, 4, 2, 64, 768, 512};
/// A microbatch of GPT-2 124M.
inline constexpr Model kGpt2Model = {1, 1024, 12, 12, 64, 3072, 50304};

/// A call and the memory that it points to. Optional operands and results are present; results do
/// not accumulate.
struct Case {
  Call call;
  double flops = 0; ///< of its matrix products
  double bytes = 0; ///< of its operands and results

  std::vector<std::vector<std::byte>> memory;
  std::vector<Tensor> list;
  std::vector<ParamRange> ranges;
  std::vector<int64_t> rangesOf;
};

/// A call of `op` with data of type `data`; null if the op has no case.
std::unique_ptr<Case> makeCase(std::string_view op, DType data, const Model &model);

} // namespace shardc::kernels::bench
