// split_qkv_norm_rope splits rows of queries, keys and values (Qkv.cpp), normalises each head of
// queries and keys (RmsNorm.cpp), rounds it as rmsnorm does, and rotates it (Rotary.h).
// merge_qkv_norm_rope computes the gradients of the rows and of both weights. Both are bitwise
// equal to the ops that they replace. Groups of ranks are refused. Limited by memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Qkv.h"
#include "kernels/host/Rotary.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

constexpr int kForwardOperands = 3, kBackwardOperands = 8; ///< operands before the positions

const Tensor *positionsBehind(const Call &call, int operands) {
  return call.inCount > operands ? &call.in[operands] : nullptr;
}

/// Null, or the reason why the shapes of rows, heads, weights and statistics do not match.
const char *checkNorms(const Call &call, const Tensor &qkv, const Tensor *heads,
                       const Tensor *weights, const Tensor *statistics, const Tensor *positions) {
  SHARDC_REQUIRE(call.groupSize == 1, "heads of a group are not normalised");
  SHARDC_REQUIRE(qkv.rank == 2 || qkv.rank == 3, "qkv is not rows of heads");
  SHARDC_REQUIRE_OK(checkParts(call, heads[0], heads[1], heads[2], qkv));
  for (int i = 0; i < 2; ++i) {
    SHARDC_REQUIRE_OK(checkNorm(heads[i], heads[i], weights[i]));
    SHARDC_REQUIRE_OK(checkStatistic(heads[i], statistics[i]));
  }
  SHARDC_REQUIRE_OK(checkPositions(positions, heads[0]));
  return checkRotary(call.attrs, heads[0].cols());
}

struct Buffers {
  float *cosines, *sines, *weights[2], *x, *y;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &q = call.out[0];
    int64_t angles = Angles::size(call.attrs, q, positionsBehind(call, kForwardOperands));
    for (float **buffer : {&cosines, &sines})
      *buffer = scratch.take<float>(angles);
    for (float **buffer : {&weights[0], &weights[1], &x, &y})
      *buffer = scratch.take<float>(q.cols());
  }
};

const char *acceptsSplit(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 4, 5, 5}));
  return checkNorms(call, call.in[0], call.out, call.in + 1, call.out + 3,
                    positionsBehind(call, kForwardOperands));
}

/// Normalizes and rotates heads of queries and keys; values are copied. The rotation reads the
/// norm's result after rounding, like a separate norm and rotation.
void runSplit(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &qkv = call.in[0], &q = call.out[0], &k = call.out[1];
  int64_t n = q.cols();
  Angles angles(call.attrs, q, positionsBehind(call, kForwardOperands), call.attrs.inverse,
                buffers.cosines, buffers.sines);
  const float *weights[2] = {normWeight(call, call.in[1], buffers.weights[0]),
                             normWeight(call, call.in[2], buffers.weights[1])};
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole, bool isRotated, int64_t row) {
    const float *x = readF32(qkv, whole, n, buffers.x);
    if (!isRotated)
      return writeF32(part, offset, n, x);
    int which = &part == &k;
    float rstd = rstdOf(call, x, n);
    static_cast<float *>(call.out[3 + which].data)[offset / n] = rstd;
    scaleRow(x, weights[which], rstd, n, buffers.y);
    writeF32(part, offset, n, buffers.y);
    angles.rotate(row, readF32(part, offset, n, buffers.x), n, buffers.y);
    writeF32(part, offset, n, buffers.y);
  };
  Heads(call, q, k, call.out[2]).forEach(move, [](int64_t) {});
}

struct BwdBuffers {
  float *cosines, *sines, *weights[2], *dy, *x, *g, *h;
  double *sums[2];

  BwdBuffers(const Call &call, Scratch &scratch) {
    const Tensor &dq = call.in[0];
    int64_t angles = Angles::size(call.attrs, dq, positionsBehind(call, kBackwardOperands));
    for (float **buffer : {&cosines, &sines})
      *buffer = scratch.take<float>(angles);
    for (float **buffer : {&weights[0], &weights[1], &dy, &x, &g, &h})
      *buffer = scratch.take<float>(dq.cols());
    for (double **sum : {&sums[0], &sums[1]})
      *sum = scratch.take<double>(dq.cols());
  }
};

const char *acceptsMerge(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {8, 9, 1, 3, 0b110}));
  SHARDC_REQUIRE(call.outCount != 2, "the gradients of both weights come together");
  SHARDC_REQUIRE(sameMatrix(call.in[3], call.out[0]), "rows and their gradient differ in shape");
  SHARDC_REQUIRE(isData(call.in[3]), "rows are not f32, bf16 or f16");
  for (int i = 0; i < call.outCount - 1; ++i)
    SHARDC_REQUIRE(isData(call.out[1 + i]) && isVector(call.out[1 + i], call.in[0].cols()),
                   "a weight's gradient is not as long as a head");
  return checkNorms(call, call.out[0], call.in, call.in + 4, call.in + 6,
                    positionsBehind(call, kBackwardOperands));
}

/// The gradient is rotated back, rounded, and then passed through the norm, in the same order as by
/// the separate ops, so the results are bitwise equal to theirs.
void runMerge(const Call &call) {
  Scratch scratch(call);
  BwdBuffers buffers(call, scratch);
  const Tensor &dq = call.in[0], &dk = call.in[1], &qkv = call.in[3], &dqkv = call.out[0];
  int64_t n = dq.cols();
  Angles angles(call.attrs, dq, positionsBehind(call, kBackwardOperands), !call.attrs.inverse,
                buffers.cosines, buffers.sines);
  const float *weights[2] = {normWeight(call, call.in[4], buffers.weights[0]),
                             normWeight(call, call.in[5], buffers.weights[1])};
  for (double *sum : buffers.sums)
    std::fill_n(sum, n, 0.0);
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole, bool isRotated, int64_t row) {
    const float *dy = readF32(part, offset, n, buffers.dy);
    if (!isRotated)
      return writeF32(dqkv, whole, n, dy);
    int which = &part == &dk;
    angles.rotate(row, dy, n, buffers.g);
    writeF32(dqkv, whole, n, buffers.g); // rounds the gradient
    dy = readF32(dqkv, whole, n, buffers.dy);
    float rstd = static_cast<const float *>(call.in[6 + which].data)[offset / n];
    gradientsOfRow(dy, readF32(qkv, whole, n, buffers.x), weights[which], rstd, n, buffers.g,
                   buffers.h);
    addProducts(dy, buffers.h, n, buffers.sums[which]);
    inputGradient(buffers.g, buffers.h, rstd, n, buffers.x);
    writeF32(dqkv, whole, n, buffers.x);
  };
  Heads(call, dq, dk, call.in[2]).forEach(move, [](int64_t) {});
  for (int which = 0; which < call.outCount - 1; ++which)
    writeSums(call.out[1 + which], 0, n, buffers.sums[which], buffers.g);
}

} // namespace

const Kernel kSplitQkvNormRope = {"split_qkv_norm_rope_host", runSplit, acceptsSplit,
                                  workspaceOf<Buffers>};
const Kernel kMergeQkvNormRope = {"merge_qkv_norm_rope_host", runMerge, acceptsMerge,
                                  workspaceOf<BwdBuffers>};

} // namespace shardc::kernels::host
