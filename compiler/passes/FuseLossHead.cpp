// Fuses the output projection and the cross entropy that is the logits' only reader into one op.
// The op computes the logits in chunks of rows, so that the complete logits never exist. If the
// logits' columns are sharded over ranks, sets the number of rows per chunk for ChunkLossHead
// instead.
#include <algorithm>

#include "compiler/model/LossChunks.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using Key = plan::AttrKey;

/// The number of logits rows per chunk: few enough that a chunk is small compared with a layer's
/// activations, and enough for the products to run at full rate. The product for the gradient of x
/// has only rows × columns of x to distribute over multiprocessors, and each chunk reads and writes
/// the weight's gradient, so narrow models take more rows (docs/benchmarks/cuda-one-gpu.md).
int64_t chunkRows(const plan::Type &x) {
  constexpr int64_t kRowsMin = 2048, kElements = int64_t{8} << 20;
  int64_t rows = kRowsMin;
  while (2 * rows * x.shape[x.rank - 1u] <= kElements)
    rows *= 2;
  return rows;
}

/// Sets the number of rows per chunk of a loss with sharded logits. If the recipe does not set it,
/// the logits and gradients of one chunk, plus the logits of the next chunk, need 1 to 1.5 times
/// the bytes of a chunk on one rank.
void limitRows(const plan::Plan &plan, const plan::Segment &segment, Op &loss) {
  const plan::Value &all = segment.values[loss.operands[0]];
  if (all.def == plan::kNone || segment.ops[all.def].kind != OpKind::AllGather)
    return;
  const Op &gather = segment.ops[all.def];
  uint32_t stats = segment.values[gather.operands[0]].def;
  if (stats == plan::kNone || segment.ops[stats].kind != OpKind::VocabStats)
    return;
  uint32_t product = segment.values[segment.ops[stats].operands[0]].def;
  if (product == plan::kNone || segment.ops[product].kind != OpKind::MatMul)
    return;
  int64_t rows = segment.values[loss.results[0]].type.shape[0];
  int64_t chunk = plan.job.model.lossChunkRows;
  if (chunk == 0) {
    chunk = chunkRows(segment.values[segment.ops[product].operands[0]].type) *
            std::max<int64_t>(plan.groupSize(gather.group) / 2, 1);
    int64_t most = chunk * model::kLossChunksMax;
    chunk *= (rows + most - 1) / most;
  }
  loss.set(Key::chunk_rows, std::min(rows, chunk));
}

/// `asked`: the number of rows per chunk that the recipe sets, or 0.
void fuseLossHead(plan::Segment &segment, int64_t asked) {
  plan::Users users(segment);
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    Op &entropy = segment.ops[i];
    if (entropy.kind != OpKind::CrossEntropy || users.count(entropy.operands[0]) != 1 ||
        users.count(entropy.results[1]) != 0)
      continue;
    uint32_t def = segment.values[entropy.operands[0]].def;
    if (def == plan::kNone || segment.ops[def].kind != OpKind::MatMul ||
        !segment.ops[def].getBool(Key::trans_b) || segment.ops[def].getBool(Key::trans_a) ||
        segment.ops[def].operands.size() != 2)
      continue;
    // The gradient of a preference loss depends on the losses of whole sequences, so it cannot
    // start at the loss of one token.
    const plan::ValueId each = entropy.results[0];
    bool isOfPairs = std::any_of(users.begin(each), users.end(each), [&](uint32_t user) {
      return segment.ops[user].kind == OpKind::PreferenceLoss;
    });
    if (isOfPairs && segment.kind == plan::SegmentKind::Train)
      continue;
    const Op &product = segment.ops[def];
    auto typeOf = [&](size_t i) { return segment.values[product.operands[i]].type.dtype; };
    if (typeOf(0) != typeOf(1)) // gradients of logits are rounded to the weight's type
      continue;
    entropy.kind = OpKind::LmLoss;
    plan::ValueId labels = entropy.operands[plan::operandIndex<OpKind::CrossEntropy>("labels")];
    plan::ValueId mask = entropy.operands[plan::operandIndex<OpKind::CrossEntropy>("mask")];
    entropy.operands = {product.operands[0], product.operands[1], labels, mask};
    entropy.results.resize(1);
    int64_t rows = segment.values[entropy.results[0]].type.shape[0];
    int64_t chunk = asked > 0 ? asked : chunkRows(segment.values[product.operands[0]].type);
    entropy.set(Key::chunk_rows, std::min(rows, chunk));
    dead[def] = 1;
  }
  plan::eraseOps(segment, dead);
}

} // namespace

void runFuseLossHead(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments) {
      fuseLossHead(segment, plan.job.model.lossChunkRows);
      for (Op &op : segment.ops)
        if (op.kind == OpKind::VocabLoss)
          limitRows(plan, segment, op);
    }
}

} // namespace shardc::passes
