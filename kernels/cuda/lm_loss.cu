// lm_loss: losses = cross_entropy(x·wᵀ) in chunks of chunk_rows rows (0: all at once), so that the
// full logits never exist; x[T,H], w[V,H]. lm_loss_grad: also dx = dlogits·w and dw (+)=
// dlogitsᵀ·x. x, w, dx and dw are f32, bf16 or f16 each. Steps for each chunk:
// 1. logits = x·wᵀ
// 2. one block per row computes lse, loss and, in the logits' place, their gradient
// 3. dw += dlogitsᵀ·x in fp32
// 4. dx = dlogits·w
// If x and w are both bf16 or both f16, so are logits and their gradients, for products on tensor
// cores and half the bytes. Otherwise all are fp32. Limited by the products; step 2 is limited by
// memory, since it reads logits twice and writes them once. H200, 2026-11, where a product reaches
// 801 TFLOP/s: lm_loss 727 and lm_loss_grad 737 with rows of 4,096; 533 and 543 with GPT-2's rows
// of 768.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Tuning.h"
#include "kernels/cuda/loss.cuh"

namespace shardc::kernels::cuda {
namespace {

enum Operand { X, W, Labels, Mask, N, State };

int64_t chunkRows(const Call &call) {
  int64_t rows = call.in[X].rows(), chunk = call.attrs.chunk_rows;
  return chunk == 0 ? rows : std::min(rows, chunk);
}

/// Type of the products' operands and of the logits.
DType innerType(const Call &call) {
  return call.in[X].dtype == call.in[W].dtype ? call.in[X].dtype : DType::F32;
}

struct Buffers {
  float *x = nullptr, *w = nullptr, *dx = nullptr, *dw = nullptr;
  std::byte *logits, *gemm;

  Buffers(const Call &call, Scratch &scratch) : Buffers(call, scratch, false) {}

  Buffers(const Call &call, Scratch &scratch, bool gradients) {
    DType inner = innerType(call);
    int64_t chunk = chunkRows(call), hidden = call.in[W].cols(), vocabulary = call.in[W].shape[0];
    if (call.in[X].dtype != inner)
      x = scratch.take<float>(chunk * hidden);
    if (call.in[W].dtype != inner)
      w = scratch.take<float>(vocabulary * hidden);
    logits = scratch.take<std::byte>(chunk * vocabulary * dtypeBytes(inner));
    gemm = scratch.take<std::byte>(kGemmWorkspace);
    if (!gradients)
      return;
    if (call.out[1].dtype != inner && call.out[1].dtype != DType::F32)
      dx = scratch.take<float>(chunk * hidden);
    // Several chunks are added in fp32. A single chunk in 16 bits is written to its destination.
    DType dwType = call.outCount > 2 ? call.out[2].dtype : DType::F32;
    if (dwType != DType::F32 && (dwType != inner || chunk < call.in[X].rows()))
      dw = scratch.take<float>(vocabulary * hidden);
  }
};

struct GradBuffers : Buffers {
  GradBuffers(const Call &call, Scratch &scratch) : Buffers(call, scratch, true) {}
};

/// State that all chunks of a call share.
struct Work {
  const Call &call;
  const Buffers &buffers;
  Queue &queue;
  DType inner;
  int64_t hidden, vocabulary;
  const void *w;
  bool isPreparing = false; ///< only times the products

  void gemm(Gemm g) const {
    g.in = inner;
    if (isPreparing)
      tuneGemm(g, buffers.gemm, queue);
    else
      runGemm(g, buffers.gemm, queue);
  }
};

Work begin(const Call &call, const Buffers &buffers) {
  const Tensor &w = call.in[W];
  Work work = {call, buffers, queueOf(call), innerType(call), w.cols(), w.shape[0], w.data};
  if (buffers.w) {
    launchToFloats(w, 0, w.numel(), buffers.w, work.queue);
    work.w = buffers.w;
  }
  return work;
}

/// Returns rows [begin, begin + rows) of x, converted to the inner type if necessary.
const void *rowsOfX(const Work &work, int64_t begin, int64_t rows) {
  const Tensor &x = work.call.in[X];
  if (!work.buffers.x)
    return static_cast<const std::byte *>(x.data) + begin * work.hidden * dtypeBytes(x.dtype);
  launchToFloats(x, begin * work.hidden, rows * work.hidden, work.buffers.x, work.queue);
  return work.buffers.x;
}

/// Steps 1 and 2 of a chunk.
void lossesOfChunk(const Work &work, const void *x, int64_t begin, int64_t rows, bool gradients) {
  const Call &call = work.call;
  Gemm g;
  g.a = x, g.b = work.w, g.c = work.buffers.logits;
  g.m = rows, g.n = work.vocabulary, g.k = work.hidden;
  g.transB = true;
  g.out = work.inner;
  work.gemm(g);
  if (work.isPreparing)
    return;
  LossRows p = {};
  p.logits = p.dlogits = {work.buffers.logits, formatOf(work.inner)};
  p.labels = static_cast<const int32_t *>(call.in[Labels].data) + begin;
  p.mask = static_cast<const float *>(call.in[Mask].data) + begin;
  p.n = gradients ? static_cast<const float *>(call.in[N].data) : nullptr;
  p.losses = static_cast<float *>(call.out[0].data) + begin;
  p.rows = rows;
  setColumns(p, call, work.vocabulary);
  p.lossScale = static_cast<float>(call.attrs.loss_scale);
  if (gradients && call.inCount > State)
    p.state = static_cast<const StepState *>(call.in[State].data);
  p.perToken = call.attrs.per_token;
  p.gradients = gradients;
  Mode mode = work.vocabulary % kChunk != 0 ? Mode::Scalar
              : work.inner == DType::BF16   ? Mode::Bf16
              : work.inner == DType::F16    ? Mode::F16
                                            : Mode::Mixed;
  launchLossRows(p, mode, work.queue);
}

void runLmLoss(const Call &call, const Buffers &buffers) {
  Work work = begin(call, buffers);
  int64_t rows = call.in[X].rows(), chunk = chunkRows(call);
  for (int64_t at = 0; at < rows; at += chunk) {
    int64_t count = std::min(chunk, rows - at);
    lossesOfChunk(work, rowsOfX(work, at, count), at, count, false);
  }
}

/// Step 3 of a chunk, if the weight is trained.
void addWeightGradient(const Work &work, const void *x, int64_t begin, int64_t rows) {
  if (work.call.outCount < 3)
    return;
  const Tensor &dw = work.call.out[2];
  Gemm g;
  g.a = work.buffers.logits, g.b = x;
  g.m = work.vocabulary, g.n = work.hidden, g.k = rows;
  g.transA = true;
  g.c = work.buffers.dw ? work.buffers.dw : dw.data;
  g.out = work.buffers.dw ? DType::F32 : dw.dtype;
  g.accumulate = begin > 0 || (!work.buffers.dw && dw.accumulate);
  work.gemm(g);
}

/// Step 4 of a chunk.
void inputGradient(const Work &work, int64_t begin, int64_t rows) {
  Tensor part = work.call.out[1];
  part.data = static_cast<std::byte *>(part.data) + begin * work.hidden * dtypeBytes(part.dtype);
  part.rank = 2;
  part.shape[0] = rows, part.shape[1] = work.hidden;
  Gemm g;
  g.a = work.buffers.logits, g.b = work.w;
  g.m = rows, g.n = work.hidden, g.k = work.vocabulary;
  g.c = work.buffers.dx ? work.buffers.dx : part.data;
  g.out = work.buffers.dx ? DType::F32 : part.dtype;
  work.gemm(g);
  if (work.buffers.dx && !work.isPreparing)
    launchFinishProduct(work.buffers.dx, nullptr, part, work.queue);
}

void runLmLossGrad(const Call &call, const GradBuffers &buffers) {
  Work work = begin(call, buffers);
  int64_t rows = call.in[X].rows(), chunk = chunkRows(call);
  for (int64_t at = 0; at < rows; at += chunk) {
    int64_t count = std::min(chunk, rows - at);
    const void *x = rowsOfX(work, at, count);
    lossesOfChunk(work, x, at, count, true);
    addWeightGradient(work, x, at, count);
    inputGradient(work, at, count);
  }
  if (buffers.dw)
    launchFinishProduct(buffers.dw, nullptr, call.out[2], work.queue);
}

/// Chunks differ in their number of rows and in whether they accumulate into dw. The first, second
/// and last chunk cover all cases.
void tune(const Call &call, const Buffers &buffers, bool hasGradients) {
  Work work = begin(call, buffers);
  work.isPreparing = true;
  int64_t rows = call.in[X].rows(), chunk = chunkRows(call);
  for (int64_t at = 0; at < rows; at += chunk) {
    int64_t count = std::min(chunk, rows - at);
    if (at > chunk && count == chunk)
      continue;
    const void *x = rowsOfX(work, at, count);
    lossesOfChunk(work, x, at, count, hasGradients);
    if (hasGradients) {
      addWeightGradient(work, x, at, count);
      inputGradient(work, at, count);
    }
  }
}

void tuneLosses(const Call &call, const Buffers &buffers) { tune(call, buffers, false); }
void tuneGradients(const Call &call, const GradBuffers &buffers) { tune(call, buffers, true); }

} // namespace

void tuneLmLoss(const Call &call) { runWithBuffers<tuneLosses>(call); }
void tuneLmLossGrad(const Call &call) { runWithBuffers<tuneGradients>(call); }

SHARDC_KERNEL(LmLoss, acceptsAs, withBuffers<runLmLoss>);
SHARDC_KERNEL(LmLossGrad, acceptsAs, withBuffers<runLmLossGrad>);

} // namespace shardc::kernels::cuda
