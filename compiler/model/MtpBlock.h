// A block that predicts a further token: norms of its two inputs, a product of both, a layer, a
// norm. Parameters alone.
#pragma once

#include "compiler/model/Parts.h"

namespace shardc::model {

struct MtpSettings {
  int64_t hidden = 1;
  NormSettings norm;
  double initStd = 0;
};

class MtpBlock : public Declared {
public:
  MtpBlock(const MtpSettings &settings, Modules layer) : s_(settings), layer_(std::move(layer)) {}
  void declare(Params &params) const override;

private:
  MtpSettings s_;
  Modules layer_;
};

} // namespace shardc::model
