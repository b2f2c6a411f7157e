#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {

void tune(std::string_view op, const Call &call) {
  if (op == "matmul")
    tuneMatMul(call);
  else if (op == "lm_loss")
    tuneLmLoss(call);
  else if (op == "lm_loss_grad")
    tuneLmLossGrad(call);
}

} // namespace shardc::kernels::cuda
