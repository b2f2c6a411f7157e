#include "compiler/predict/Scratch.h"

#include <algorithm>
#include <map>

namespace shardc::predict {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using Key = plan::AttrKey;

/// Scratch that products may use.
constexpr int64_t kGemm = (int64_t{32} << 20) + 256;

/// Logits of a chunk of rows, and its weight gradient in fp32 where several chunks are summed and
/// the result is narrower.
int64_t headScratch(const Segment &segment, const Op &op) {
  const plan::Type &x = segment.values[op.operands[0]].type;
  const plan::Type &w = segment.values[op.operands[1]].type;
  int64_t rows = x.numel() / std::max<int64_t>(x.shape[x.rank - 1], 1);
  int64_t chunk = std::min(std::max<int64_t>(op.getInt(Key::chunk_rows), 1), rows);
  bool isNarrow = x.dtype == DType::BF16 && w.dtype == DType::BF16;
  int64_t bytes = chunk * w.shape[0] * (isNarrow ? 2 : 4) + kGemm;
  bool sums = op.kind == OpKind::LmLossGrad && op.results.size() > 2 &&
              segment.values[op.results[2]].type.dtype == DType::BF16 && chunk < rows;
  return bytes + (sums ? w.numel() * 4 : 0);
}

struct Heads {
  int64_t batch, positions, heads, groups, channels;
};

int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// cuDNN's backward attention: a sum for each query's row, the gradient of queries in fp32, and
/// those of keys and values for every head where heads share them. In a fixed order each tile of
/// keys leaves a gradient of the queries of its own; tiles of 256 keys, or 128 for small heads.
int64_t cudnnBackward(const Heads &h, bool isDeterministic) {
  int64_t head = h.batch * h.heads * h.positions, shared = head * h.channels * 4;
  int64_t queries = shared;
  if (isDeterministic) {
    int64_t keys = h.channels <= 64 ? 128 : 256;
    queries = h.batch * h.heads * roundUp(h.positions, 64) * roundUp(h.channels, 64) * 4 *
              ((h.positions + keys - 1) / keys);
  }
  return head * 4 + queries + (h.groups == h.heads ? 0 : shared) + 320;
}

int64_t attentionScratch(const Segment &segment, const Op &op, bool isDeterministic) {
  const plan::Type &dy = segment.values[op.operands[0]].type;
  Heads h = {dy.shape[0], dy.shape[1], op.getInt(Key::num_heads), op.getInt(Key::num_groups),
             op.getInt(Key::head_dim)};
  if (op.kind == OpKind::AttentionBwd) {
    const plan::Type &q = segment.values[op.operands[1]].type;
    const plan::Type &k = segment.values[op.operands[2]].type;
    h = {q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3]};
  }
  bool byCudnn =
      dy.dtype == DType::BF16 && op.getFloat(Key::p) == 0 && !op.getBool(Key::reset_mask);
  return byCudnn ? cudnnBackward(h, isDeterministic) : h.batch * h.heads * h.positions * 4;
}

} // namespace

int64_t scratchOf(const Segment &segment, const Op &op, bool isDeterministic) {
  switch (op.kind) {
  case OpKind::MatMul:
  case OpKind::MatMulGelu:
  case OpKind::MatMulGeluBwd:
    return kGemm;
  case OpKind::AttentionBwd:
  case OpKind::AttentionQkvBwd:
    return attentionScratch(segment, op, isDeterministic);
  case OpKind::LmLoss:
  case OpKind::LmLossGrad:
    return headScratch(segment, op);
  default:
    return 0;
  }
}

int64_t workspacesOf(const plan::Role &role, bool isDeterministic) {
  std::map<plan::Stream, int64_t> most;
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops) {
      int64_t &bytes = most[op.stream];
      bytes = std::max(bytes, scratchOf(segment, op, isDeterministic));
    }
  int64_t sum = 0;
  for (auto [stream, bytes] : most)
    sum += bytes;
  return sum;
}

} // namespace shardc::predict
