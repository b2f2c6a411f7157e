// split_qkv splits rows of [G, N/G + 2, D] (Megatron's layout: a group's queries, its key, its
// value) into q[B,S,N,D] and k, v[B,S,G,D]; merge_qkv is its inverse. In a group of n members, rows
// are [G, n·N/G + 2, D]: member i has the i-th N/G queries of each key, and merges them with zeros
// in place of the others. rope rotates the leading rotary_dim channels of x[B,S,heads,D] as
// Rotary.h defines, and copies the others. If the last operand is positions i32[B,S], they give the
// positions of rows. `inverse` rotates backwards, which is the gradient. Operands and results are
// f32, bf16 or f16 each, rounded once. Limited by memory, and by the sines of a table of
// S·rotary_dim/2 angles per call.
#include "kernels/host/Qkv.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rotary.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>

namespace shardc::kernels::host {

const char *checkParts(const Call &call, const Tensor &q, const Tensor &k, const Tensor &v,
                       const Tensor &qkv) {
  SHARDC_REQUIRE(isData(q) && isData(k) && isData(v) && isData(qkv),
                 "queries, keys and values are not f32, bf16 or f16");
  SHARDC_REQUIRE(q.rank == 4 && k.rank == 4 && v.rank == 4, "q, k or v is not [B, S, heads, D]");
  SHARDC_REQUIRE(std::equal(k.shape, k.shape + 4, v.shape), "k and v differ in shape");
  SHARDC_REQUIRE(q.shape[0] == k.shape[0] && q.shape[1] == k.shape[1] && q.shape[3] == k.shape[3],
                 "q and k differ in batch, sequence or channels");
  SHARDC_REQUIRE(q.shape[2] % k.shape[2] == 0, "key/value heads do not divide the query heads");
  SHARDC_REQUIRE(qkv.cols() == (call.groupSize * q.shape[2] + 2 * k.shape[2]) * q.shape[3],
                 "a row of qkv is not as long as its queries, keys and values");
  SHARDC_REQUIRE(qkv.rows() == q.shape[0] * q.shape[1], "qkv does not have B·S rows");
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE((attrs.num_heads == 0 || attrs.num_heads == q.shape[2]) &&
                     (attrs.num_groups == 0 || attrs.num_groups == k.shape[2]) &&
                     (attrs.head_dim == 0 || attrs.head_dim == q.shape[3]),
                 "heads or channels are not those of the attributes");
  return nullptr;
}

namespace {

/// The positions, an optional operand after the others; null if the call has none.
const Tensor *positionsOf(const Call &call) {
  int operands = call.outCount == 1 && call.out[0].rank != 4 ? 3 : 1;
  return call.inCount > operands ? &call.in[operands] : nullptr;
}

struct Buffers {
  float *cosines, *sines, *from, *to;

  Buffers(const Call &call, Scratch &scratch) {
    // The one tensor with 4 dimensions that every op here has: x, dq or the result q.
    const Tensor &heads = call.in[0].rank == 4 ? call.in[0] : call.out[0];
    int64_t angles = Angles::size(call.attrs, heads, positionsOf(call));
    cosines = scratch.take<float>(angles);
    sines = scratch.take<float>(angles);
    from = scratch.take<float>(heads.cols());
    to = scratch.take<float>(heads.cols());
  }
};

/// The angles of a call's rows.
Angles anglesOf(const Call &call, const Tensor &heads, bool isBackwards, const Buffers &buffers) {
  return {call.attrs, heads, positionsOf(call), isBackwards, buffers.cosines, buffers.sines};
}

const char *acceptsRope(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 2, 1, 1}));
  const Tensor &x = call.in[0], &y = call.out[0];
  SHARDC_REQUIRE(isData(x) && isData(y), "rope takes f32, bf16 and f16");
  SHARDC_REQUIRE_OK(checkSameHeads(x, y));
  SHARDC_REQUIRE_OK(checkPositions(positionsOf(call), x));
  return checkRotary(call.attrs, x.cols());
}

void runRope(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &x = call.in[0];
  int64_t heads = x.shape[2], n = x.cols();
  Angles angles = anglesOf(call, x, call.attrs.inverse, buffers);
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    angles.rotate(row / heads, readF32(x, row * n, n, buffers.from), n, buffers.to);
    writeF32(call.out[0], row * n, n, buffers.to);
  }
}

const char *checkSplit(const Call &call, int operandsMax) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, operandsMax, 3, 3}));
  SHARDC_REQUIRE(call.in[0].rank == 2 || call.in[0].rank == 3, "qkv is not rows of heads");
  return checkParts(call, call.out[0], call.out[1], call.out[2], call.in[0]);
}

const char *acceptsSplit(const Call &call) { return checkSplit(call, 1); }

const char *acceptsSplitRope(const Call &call) {
  SHARDC_REQUIRE_OK(checkSplit(call, 2));
  SHARDC_REQUIRE_OK(checkPositions(positionsOf(call), call.out[0]));
  return checkRotary(call.attrs, call.out[0].cols());
}

const char *checkMerge(const Call &call, int operandsMax) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, operandsMax, 1, 1}));
  SHARDC_REQUIRE(call.out[0].rank == 2 || call.out[0].rank == 3, "qkv is not rows of heads");
  return checkParts(call, call.in[0], call.in[1], call.in[2], call.out[0]);
}

const char *acceptsMerge(const Call &call) { return checkMerge(call, 3); }

const char *acceptsMergeRope(const Call &call) {
  SHARDC_REQUIRE_OK(checkMerge(call, 4));
  SHARDC_REQUIRE_OK(checkPositions(positionsOf(call), call.in[0]));
  return checkRotary(call.attrs, call.in[0].cols());
}

/// Copies the heads to queries, keys and values, and rotates those of queries and keys if asked.
template <bool kRotated> void runSplit(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &qkv = call.in[0], &q = call.out[0];
  Angles angles;
  if (kRotated)
    angles = anglesOf(call, q, call.attrs.inverse, buffers);
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole, bool rotated, int64_t row) {
    const float *x = readF32(qkv, whole, q.cols(), buffers.from);
    if (kRotated && rotated) {
      angles.rotate(row, x, q.cols(), buffers.to);
      x = buffers.to;
    }
    writeF32(part, offset, q.cols(), x);
  };
  Heads(call, q, call.out[1], call.out[2]).forEach(move, [](int64_t) {});
}

template <bool kRotated> void runMerge(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &qkv = call.out[0], &q = call.in[0];
  Angles angles;
  if (kRotated) // the inverse of split_qkv_rope with the same attributes
    angles = anglesOf(call, q, !call.attrs.inverse, buffers);
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole, bool rotated, int64_t row) {
    const float *x = readF32(part, offset, q.cols(), buffers.from);
    if (kRotated && rotated) {
      angles.rotate(row, x, q.cols(), buffers.to);
      x = buffers.to;
    }
    writeF32(qkv, whole, q.cols(), x);
  };
  Heads(call, q, call.in[1], call.in[2]).forEach(move, [&](int64_t whole) {
    std::fill_n(buffers.to, q.cols(), 0.0f);
    writeF32(qkv, whole, q.cols(), buffers.to);
  });
}

} // namespace

const Kernel kRope = {"rope_host", runRope, acceptsRope, workspaceOf<Buffers>};
const Kernel kSplitQkv = {"split_qkv_host", runSplit<false>, acceptsSplit, workspaceOf<Buffers>};
const Kernel kSplitQkvRope = {"split_qkv_rope_host", runSplit<true>, acceptsSplitRope,
                              workspaceOf<Buffers>};
const Kernel kMergeQkv = {"merge_qkv_host", runMerge<false>, acceptsMerge, workspaceOf<Buffers>};
const Kernel kMergeQkvRope = {"merge_qkv_rope_host", runMerge<true>, acceptsMergeRope,
                              workspaceOf<Buffers>};

} // namespace shardc::kernels::host
