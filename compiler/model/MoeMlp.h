// A mixture of experts: a router, experts as stacked parameters, and what all tokens share.
// Parameters alone.
#pragma once

#include <optional>

#include "compiler/model/DenseMlp.h"

namespace shardc::model {

struct MoeSettings {
  int64_t experts = 1;
  MlpSettings expert;                ///< each of them
  std::optional<MlpSettings> shared; ///< the expert of all tokens
  bool hasSharedGate = false;
};

class MoeMlp : public Declared {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;

private:
  MoeSettings s_;
};

} // namespace shardc::model
