// Latent attention: queries, keys and values by way of vectors of a lower rank, which have norms of
// their own. Parameters alone.
#pragma once

#include <optional>

#include "compiler/model/Parts.h"

namespace shardc::model {

struct MlaSettings {
  int64_t hidden = 1, heads = 1;
  int64_t channels = 1, rotated = 0, values = 1; ///< of a head: without positions, with, of values
  std::optional<int64_t> queryRank;              ///< none: queries come from one product
  int64_t keyRank = 1;
  std::optional<NormSettings> norm; ///< of the vectors of lower rank
  bool projBias = false;
  double initStd = 0, residualStd = 0;
};

class MlaAttention : public Declared {
public:
  explicit MlaAttention(const MlaSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;

private:
  MlaSettings s_;
};

} // namespace shardc::model
