#include "compiler/model/MoeMlp.h"

namespace shardc::model {

void MoeMlp::declare(Params &params) const {
  params.push_back({"mlp.router.weight",
                    {s_.experts, s_.expert.hidden},
                    plan::InitKind::Normal,
                    s_.expert.initStd});
  Params one;
  DenseMlp(s_.expert, "mlp.experts.").declare(one);
  for (ParamSpec &param : one) {
    param.shape.insert(param.shape.begin(), s_.experts);
    params.push_back(std::move(param));
  }
  if (s_.shared)
    DenseMlp(*s_.shared, "mlp.shared_experts.").declare(params);
  if (s_.hasSharedGate)
    params.push_back({"mlp.shared_experts.gate_weight",
                      {1, s_.expert.hidden},
                      plan::InitKind::Normal,
                      s_.expert.initStd});
}

} // namespace shardc::model
