// Lists the ops whose kernels choose among algorithms of a library.
#include "kernels/cuda/Tuning.h"

#include "kernels/cuda/Gemm.h"

namespace shardc::kernels::cuda {

void prepareLibraries(Context &context, int device, std::span<const KernelShape> shapes) {
  if (cudaSetDevice(device) != cudaSuccess)
    return; // the first call reports the failure
  prepareGemm(context, device);
  for (const KernelShape &shape : shapes)
    if (shape.kernel->workspaceBytes)
      shape.kernel->workspaceBytes(shape.call);
}

void tune(std::string_view op, const Call &bound) {
  Queue queue(contextOf(bound), nullptr); // a bound call gets its queue only when it is enqueued
  Call call = bound;
  call.stream = &queue;
  if (op == "matmul")
    tuneMatMul(call);
  else if (op == "matmul_add")
    tuneMatMulAdd(call);
  else if (op == "matmul_scaled")
    tuneMatMulScaled(call);
  else if (op == "matmul_gelu")
    tuneMatMulGelu(call);
  else if (op == "matmul_gelu_bwd")
    tuneMatMulGeluBwd(call);
  else if (op == "lm_loss")
    tuneLmLoss(call);
  else if (op == "lm_loss_grad")
    tuneLmLossGrad(call);
}

} // namespace shardc::kernels::cuda
