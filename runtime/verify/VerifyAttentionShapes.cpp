// Types of heads: rows of queries, keys and values, their rotation, and attention.
#include "runtime/plan/Limits.h"
#include "runtime/verify/VerifyShapes.h"

namespace shardc::plan::verifier {

void ShapeCheck::splitQkv(const Type &qkv, const Type &q, const Type &k, const Type &v) {
  need(isData(qkv) && isData(q) && isData(k) && isData(v), "floating point operands and results");
  need(q.rank == 4 && k.rank == 4 && v.rank == 4, "q[B,S,N,D] and k, v[B,S,G,D]");
  need(op_.getInt(Key::num_heads) == 0 || op_.getInt(Key::num_heads) == q.shape[2],
       "attribute 'num_heads' as in its types");
}

/// A window is counted from the query backwards.
void ShapeCheck::needWindow() {
  int64_t window = op_.getInt(Key::window);
  need(window == -1 || (window >= 0 && op_.getBool(Key::causal)),
       "a window of at least 0 under a causal mask, or -1");
}

void ShapeCheck::checkAttention() {
  needWindow();
  need(in(0).rank == 4 && in(1).rank == 4 && in(2).rank == 4, "q[B,S,N,D] and k, v[B,S,G,D]");
  needOf(in(3), DType::I32, "docs of i32[B, S]");
  needOf(in(4), DType::I64, "samples of i64[B]");
  need(isData(out(0)), "o[B, S, N·D] as a result");
  needOf(out(1), DType::F32, "lse of f32[B, N, S] as a result");
}

/// Queries, keys and values, their positions and documents from operand `first` on and from `words`
/// on, and o and lse.
void ShapeCheck::attentionPart(size_t first, size_t words, const Type &o, const Type &lse) {
  needWindow();
  const Type &q = in(first), &k = in(first + 1), &v = in(first + 2);
  need(q.rank == 4 && k.rank == 4 && v.rank == 4, "q[B,S,N,D] and k, v[B,K,G,D]");
  need(isData(q) && isData(k) && isData(v), "floating point q, k and v");
  needOf(in(words), DType::I32, "positions of queries of i32[B, S]");
  needOf(in(words + 1), DType::I32, "positions of keys of i32[B, K]");
  needOf(in(words + 2), DType::I32, "docs of queries of i32[B, S]");
  needOf(in(words + 3), DType::I32, "docs of keys of i32[B, K]");
  needOf(in(words + 4), DType::I64, "samples of i64[B]");
  need(isData(o), "o[B, S, N·D]");
  needOf(lse, DType::F32, "lse of f32[B, N, S]");
  need(op_.getFloat(Key::p) == 0 || op_.getInt(Key::positions) > 0,
       "attribute 'positions' where it has dropout");
  int64_t slices = op_.getInt(Key::slices);
  need(slices == 0 ||
           (slices > 0 && members() % slices == 0 && (slices == 1 || q.shape[1] % 2 == 0)),
       "mirrored slices of the members of its group");
  need(slices == 0 || k.shape[1] == q.shape[1] || k.shape[1] == slices * q.shape[1],
       "keys of one slice or of all");
  need(slices == 0 || (op_.getInt(Key::by) >= 0 && op_.getInt(Key::by) < slices),
       "attribute 'by' below the number of slices");
}

void ShapeCheck::checkAttentionPart() { attentionPart(0, 3, out(0), out(1)); }

void ShapeCheck::checkAttentionPartBwd() {
  attentionPart(1, 6, in(4), in(5));
  need(isData(in(0)), "do in the shape of o");
  for (size_t r = 0; r < 3; ++r)
    need(isData(out(r)) && out(r).rank == 4, "gradients in the shapes of q, k and v as results");
}

void ShapeCheck::checkAttentionJoin() {
  needData();
  need(in(1) == in(3) && in(1) == out(1) && in(1).dtype == DType::F32 && in(1).rank == 3,
       "lse of f32[B, N, S]");
  need(in(0).rank >= 3 && in(2).rank == in(0).rank && out(0).rank == in(0).rank &&
           in(2).shape == in(0).shape && out(0).shape == in(0).shape,
       "outputs of the same shape");
}

void ShapeCheck::checkAttentionSink() {
  need(isData(in(0)) && isData(out(0)) && (op_.operands.size() < 3 || isData(in(2))),
       "outputs and sinks of f32, bf16 or f16");
  needOf(in(1), DType::F32, "lse of f32[B, N, S]");
  needOf(out(1), DType::F32, "lse of f32[B, N, S]");
  need(in(0).rank == 3 && in(1).rank == 3, "o[B, S, N·D]");
}

void ShapeCheck::checkAttentionSinkBwd() {
  need(isData(in(0)) && isData(in(1)) && isData(in(3)) && isData(out(0)),
       "gradients, outputs and sinks of f32, bf16 or f16");
  needOf(in(2), DType::F32, "lse of f32[B, N, S]");
  need(in(0).rank == 3 && in(1).rank == 3 && in(2).rank == 3, "o[B, S, N·D]");
}

void ShapeCheck::checkTranspose() {
  needData();
  need(in(0).dtype == out(0).dtype, "a result with its operand's type");
  need(op_.getInt(Key::outer) > 0 && op_.getInt(Key::inner) > 0, "outer and inner parts");
}

void ShapeCheck::checkMergeSlices() {
  need(isData(in(0)) || in(0).dtype == DType::I32, "a floating point operand, or one of i32");
  need(in(0).dtype == out(0).dtype, "a result with its operand's type");
  need(op_.getInt(Key::outer) > 0 && op_.getInt(Key::inner) > 0, "outer and inner parts");
}

void ShapeCheck::checkAttentionBwd() {
  needWindow();
  for (size_t i = 1; i <= 3; ++i)
    need(in(i).rank == 4 && out(i - 1).rank == 4,
         "q[B,S,N,D] and k, v[B,S,G,D], and gradients in their shapes");
  needOf(in(5), DType::F32, "lse of f32[B, N, S]");
  needOf(in(6), DType::I32, "docs of i32[B, S]");
  needOf(in(7), DType::I64, "samples of i64[B]");
}

/// Rows of qkv, docs and samples from operand `first` on, the output and lse as they follow from
/// the heads in the attributes.
void ShapeCheck::attentionQkv(const Type &qkv, size_t docs, const Type &o, const Type &lse) {
  needWindow();
  int64_t heads = op_.getInt(Key::num_heads), groups = op_.getInt(Key::num_groups),
          channels = op_.getInt(Key::head_dim);
  bool named = heads > 0 && groups > 0 && channels > 0 && heads % groups == 0 &&
               heads <= limits::kElementsMax / 3 && channels <= limits::kElementsMax / (3 * heads);
  need(named, "attributes for heads, groups and channels, with groups that divide the heads");
  if (!named)
    return;
  need(isData(qkv) && qkv.rank == 3 && cols(qkv) == (heads + 2 * groups) * channels,
       "qkv[B, S, (N+2G)·D]");
  needOf(in(docs), DType::I32, "docs of i32[B, S]");
  needOf(in(docs + 1), DType::I64, "samples of i64[B]");
  need(isData(o), "o[B, S, N·D]");
  needOf(lse, DType::F32, "lse of f32[B, N, S]");
}

void ShapeCheck::checkAttentionQkv() { attentionQkv(in(0), 1, out(0), out(1)); }

void ShapeCheck::checkAttentionQkvBwd() {
  attentionQkv(in(1), 4, in(2), in(3));
  need(isData(in(0)), "do in the shape of o");
  need(isData(out(0)) && out(0).rank == 3, "a gradient in the shape of qkv as its result");
}

void ShapeCheck::checkSplitQkv() { splitQkv(in(0), out(0), out(1), out(2)); }

void ShapeCheck::checkSplitQkvRope() {
  splitQkv(in(0), out(0), out(1), out(2));
  needPositions(1);
}

void ShapeCheck::checkMergeQkv() { splitQkv(out(0), in(0), in(1), in(2)); }

void ShapeCheck::checkMergeQkvRope() {
  splitQkv(out(0), in(0), in(1), in(2));
  needPositions(3);
}

/// Where there is such an operand: one for each row of heads[B,S,...].
void ShapeCheck::needPositions(size_t operand) {
  need(!has(operand) || in(operand).dtype == DType::I32, "positions of i32[B, S]");
}

void ShapeCheck::checkRope() {
  need(isData(in(0)) && isData(out(0)), "a floating point operand and result");
  needPositions(1);
  need(in(0).rank == 4 && out(0).rank == 4, "an operand and a result of [B,S,heads,D]");
}

void ShapeCheck::checkSplitColumns() { needData(); }

void ShapeCheck::checkJoinColumns() { needData(); }

/// Heads and rows, in whichever direction. The parts of heads follow from factors.
void ShapeCheck::latentHeads() {
  for (size_t i = 0; i < 3; ++i)
    need(isData(in(i)) && isData(out(i)), "floating point operands and results");
  needPositions(3);
  int64_t rotated = op_.getInt(Key::rotary_dim);
  need(rotated >= 2 && rotated % 2 == 0, "attribute 'rotary_dim' of an even number of channels");
}

void ShapeCheck::checkLatentHeads() {
  latentHeads();
  need(out(0).rank == 4 && out(1).rank == 4 && out(2).rank == 4,
       "q, k[B,S,N,C+P] and v[B,S,N,E] as results");
}

void ShapeCheck::checkLatentHeadsBwd() {
  latentHeads();
  need(in(0).rank == 4 && in(1).rank == 4 && in(2).rank == 4, "dq, dk[B,S,N,C+P] and dv[B,S,N,E]");
}

} // namespace shardc::plan::verifier
