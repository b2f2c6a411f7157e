// Makes one call of every op, with its memory, for a model of given extents. The benchmarks time
// these calls, and the tests of `accepts` modify them. A new row of Kernels.def needs a case here.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::bench {

struct Model {
  int64_t batch, positions, heads, groups, channels, ffn, vocabulary;
  int64_t ownValues = 0; ///< channels of a head's values; 0: the same as of its keys
  int64_t window = -1;   ///< attention window: keys before its own that a query sees; -1: all
  int64_t document = 0;  ///< positions per document; 0: one document per sample; -1: 16 to 1,500

  int64_t hidden() const { return heads * channels; }
  int64_t values() const { return ownValues > 0 ? ownValues : channels; }
  int64_t rows() const { return batch * positions; }
};

/// Small enough for thousands of calls. No two extents are equal.
inline constexpr Model kTinyModel = {2, 5, 6, 3, 4, 7, 11};
/// A microbatch of a model that a laptop can train.
inline constexpr Model kSmallModel = {4, 256, 4, 2, 64, 768, 512};
/// A microbatch of GPT-2 124M.
inline constexpr Model kGpt2Model = {1, 1024, 12, 12, 64, 3072, 50304};

/// A call and the memory that it points to. It has all optional operands and results; results do
/// not accumulate.
struct Case {
  Call call;
  double flops = 0; ///< arithmetic of its matrix products
  double bytes = 0; ///< size of its operands and results

  std::vector<std::vector<std::byte>> memory;
  std::vector<Tensor> list;
  std::vector<ParamRange> ranges;
  std::vector<int64_t> rangesOf;
};

/// Makes a call of `op` with data of type `data`. Returns null if the op has no case.
std::unique_ptr<Case> makeCase(std::string_view op, DType data, const Model &model);

} // namespace shardc::kernels::bench
