#include "compiler/model/MtpBlock.h"

namespace shardc::model {

void MtpBlock::declare(Params &params) const {
  for (const char *stem : {"enorm.", "hnorm."})
    Norm(s_.norm, s_.hidden, stem, "").declare(params);
  Linear{"eh_proj", s_.hidden, times(2, s_.hidden), false, s_.initStd}.declare(params);
  Params layer;
  for (const auto &module : layer_)
    module->declare(layer);
  for (ParamSpec &param : layer) {
    param.name = "transformer_layer." + param.name;
    params.push_back(std::move(param));
  }
  Norm(s_.norm, s_.hidden, "final_layernorm.", "").declare(params);
}

} // namespace shardc::model
