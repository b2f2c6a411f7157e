// Types of heads: rows of queries, keys and values, their rotation, and attention.
#include "runtime/plan/Limits.h"
#include "runtime/verify/VerifyShapes.h"

namespace shardc::plan::verifier {

void ShapeCheck::splitQkv(const Type &qkv, const Type &q, const Type &k, const Type &v) {
  need(isData(qkv) && isData(q) && isData(k) && isData(v), "floating point operands and results");
  need(q.rank == 4 && k.rank == 4 && v.rank == 4, "q[B,S,N,D] and k, v[B,S,G,D]");
  if (q.rank != 4 || k.rank != 4)
    return;
  need(k.shape == v.shape && q.shape[0] == k.shape[0] && q.shape[1] == k.shape[1] &&
           q.shape[3] == k.shape[3],
       "q, k and v with the same batch, positions and channels");
  need(q.shape[2] % k.shape[2] == 0, "the same number of query heads in each key/value group");
  need(qkv.numel() == members() * q.numel() + 2 * k.numel() && rows(qkv) == q.shape[0] * q.shape[1],
       "qkv rows that hold each group's queries, of all members, its key and value");
  auto agrees = [&](Key key, int64_t extent) {
    return op_.getInt(key) == 0 || op_.getInt(key) == extent;
  };
  need(agrees(Key::num_heads, q.shape[2]) && agrees(Key::num_groups, k.shape[2]) &&
           agrees(Key::head_dim, q.shape[3]),
       "attributes for heads, groups and channels that match its types");
}

/// A window is counted from the query backwards.
void ShapeCheck::needWindow() {
  int64_t window = op_.getInt(Key::window);
  need(window == -1 || (window >= 0 && op_.getBool(Key::causal)),
       "a window of at least 0 under a causal mask, or -1");
}

void ShapeCheck::checkAttention() {
  needWindow();
  const Type &q = in(0), &k = in(1);
  need(q.rank == 4 && k.rank == 4 && in(2).shape == k.shape && in(2).rank == 4,
       "q[B,S,N,D] and k, v[B,S,G,D]");
  if (q.rank != 4 || k.rank != 4)
    return;
  need(q.shape[0] == k.shape[0] && q.shape[1] == k.shape[1] && q.shape[3] == k.shape[3] &&
           q.shape[2] % k.shape[2] == 0,
       "q, k and v with the same batch, positions and channels");
  int64_t positions = q.shape[0] * q.shape[1];
  needVector(in(3), DType::I32, positions, "docs of i32[B, S]");
  needVector(in(4), DType::I64, q.shape[0], "samples of i64[B]");
  need(out(0).numel() == q.numel() && isData(out(0)), "o[B, S, N·D] as a result");
  needVector(out(1), DType::F32, positions * q.shape[2], "lse of f32[B, N, S] as a result");
}

/// Queries, keys and values, their positions and documents from operand `first` on and from `words`
/// on, and o and lse.
void ShapeCheck::attentionPart(size_t first, size_t words, const Type &o, const Type &lse) {
  needWindow();
  const Type &q = in(first), &k = in(first + 1), &v = in(first + 2);
  need(q.rank == 4 && k.rank == 4 && v.rank == 4 && v.shape == k.shape,
       "q[B,S,N,D] and k, v[B,K,G,D]");
  if (q.rank != 4 || k.rank != 4)
    return;
  need(isData(q) && isData(k) && isData(v) && q.shape[0] == k.shape[0] &&
           q.shape[3] == k.shape[3] && q.shape[2] % k.shape[2] == 0,
       "q, k and v with the same batch and channels");
  int64_t queries = q.shape[0] * q.shape[1], keys = k.shape[0] * k.shape[1];
  needVector(in(words), DType::I32, queries, "positions of queries of i32[B, S]");
  needVector(in(words + 1), DType::I32, keys, "positions of keys of i32[B, K]");
  needVector(in(words + 2), DType::I32, queries, "docs of queries of i32[B, S]");
  needVector(in(words + 3), DType::I32, keys, "docs of keys of i32[B, K]");
  needVector(in(words + 4), DType::I64, q.shape[0], "samples of i64[B]");
  need(isData(o) && o.numel() == q.numel(), "o[B, S, N·D]");
  needVector(lse, DType::F32, queries * q.shape[2], "lse of f32[B, N, S]");
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
  need(isData(in(0)) && in(0).numel() == in(4).numel(), "do in the shape of o");
  for (size_t r = 0; r < 3; ++r)
    need(isData(out(r)) && out(r).rank == in(1 + r).rank && out(r).shape == in(1 + r).shape,
         "gradients in the shapes of q, k and v as results");
}

void ShapeCheck::checkAttentionJoin() {
  needData();
  need(in(0).rank == in(2).rank && in(0).shape == in(2).shape && in(0).rank == out(0).rank &&
           in(0).shape == out(0).shape,
       "outputs of the same shape");
  need(in(1) == in(3) && in(1) == out(1) && in(1).dtype == DType::F32 && in(1).rank == 3,
       "lse of f32[B, N, S]");
  need(in(0).rank >= 3 && in(1).rank == 3 && in(0).shape[0] == in(1).shape[0] &&
           in(0).shape[1] == in(1).shape[2] && in(0).numel() % in(1).numel() == 0,
       "o[B, S, N·D] for lse of f32[B, N, S]");
}

void ShapeCheck::checkTranspose() {
  needData();
  need(in(0).dtype == out(0).dtype && in(0).numel() == out(0).numel(),
       "a result with its operand's elements and type");
  int64_t outer = op_.getInt(Key::outer), inner = op_.getInt(Key::inner), numel = in(0).numel();
  need(outer > 0 && inner > 0 && outer <= numel && inner <= numel / outer &&
           numel % (outer * inner) == 0,
       "outer and inner parts that divide the elements");
}

void ShapeCheck::checkMergeSlices() {
  need(isData(in(0)) || in(0).dtype == DType::I32, "a floating point operand, or one of i32");
  need(in(0).dtype == out(0).dtype && in(0).numel() == out(0).numel(),
       "a result with its operand's elements and type");
  int64_t outer = op_.getInt(Key::outer), inner = op_.getInt(Key::inner), numel = in(0).numel();
  need(outer > 0 && inner > 0 && outer <= numel && inner <= numel / outer &&
           numel % (outer * inner) == 0 && numel / (outer * inner) % 2 == 0,
       "samples and members with two equal chunks each");
}

void ShapeCheck::checkAttentionBwd() {
  needWindow();
  const Type &q = in(1), &k = in(2);
  need(q.rank == 4 && k.rank == 4 && in(3).rank == 4 && in(3).shape == k.shape,
       "q[B,S,N,D] and k, v[B,S,G,D]");
  if (q.rank != 4 || k.rank != 4)
    return;
  int64_t positions = q.shape[0] * q.shape[1];
  need(in(0).numel() == q.numel() && in(4).numel() == q.numel(), "do and o[B, S, N·D]");
  needVector(in(5), DType::F32, positions * q.shape[2], "lse of f32[B, N, S]");
  needVector(in(6), DType::I32, positions, "docs of i32[B, S]");
  needVector(in(7), DType::I64, q.shape[0], "samples of i64[B]");
  need(out(0).shape == q.shape && out(1).shape == k.shape && out(2).shape == k.shape,
       "gradients in the shapes of q, k and v as results");
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
  bool fits = isData(qkv) && qkv.rank == 3 && cols(qkv) == (heads + 2 * groups) * channels;
  need(fits, "qkv[B, S, (N+2G)·D]");
  if (!fits)
    return;
  int64_t positions = qkv.shape[0] * qkv.shape[1];
  needVector(in(docs), DType::I32, positions, "docs of i32[B, S]");
  needVector(in(docs + 1), DType::I64, qkv.shape[0], "samples of i64[B]");
  need(isData(o) && rows(o) == positions && cols(o) == heads * channels, "o[B, S, N·D]");
  needVector(lse, DType::F32, positions * heads, "lse of f32[B, N, S]");
}

void ShapeCheck::checkAttentionQkv() { attentionQkv(in(0), 1, out(0), out(1)); }

void ShapeCheck::checkAttentionQkvBwd() {
  attentionQkv(in(1), 4, in(2), in(3));
  need(isData(in(0)) && sameMatrix(in(0), in(2)), "do in the shape of o");
  need(isData(out(0)) && out(0).shape == in(1).shape && out(0).rank == in(1).rank,
       "a gradient in the shape of qkv as its result");
}

void ShapeCheck::checkSplitQkv() { splitQkv(in(0), out(0), out(1), out(2)); }

void ShapeCheck::checkSplitQkvRope() {
  splitQkv(in(0), out(0), out(1), out(2));
  needPositions(1, out(0));
}

void ShapeCheck::checkMergeQkv() { splitQkv(out(0), in(0), in(1), in(2)); }

void ShapeCheck::checkMergeQkvRope() {
  splitQkv(out(0), in(0), in(1), in(2));
  needPositions(3, in(0));
}

/// Where there is such an operand: one for each row of heads[B,S,...].
void ShapeCheck::needPositions(size_t operand, const Type &heads) {
  need(!has(operand) || (in(operand).dtype == DType::I32 && heads.rank == 4 &&
                         in(operand).numel() == heads.shape[0] * heads.shape[1]),
       "positions of i32[B, S]");
}

void ShapeCheck::checkRope() {
  need(isData(in(0)) && isData(out(0)), "a floating point operand and result");
  needPositions(1, in(0));
  need(in(0).rank == 4 && in(0).shape == out(0).shape, "an operand and a result of [B,S,heads,D]");
}

} // namespace shardc::plan::verifier
