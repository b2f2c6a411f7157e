// The passes that put fused ops in the place of their steps: for each, the ops that it makes, and
// what the steps alone do not say.
#include <algorithm>

#include "compiler/model/LossChunks.h"
#include "compiler/passes/Matcher.h"
#include "compiler/passes/Passes.h"

namespace shardc::passes {
namespace {

using plan::Segment;

/// The product may have a type of its own.
bool hasTypeOfProduct(Match &match) {
  return match.typeOf(match.op(0).results[0]).dtype == match.typeOf(match.fused.results[0]).dtype;
}

/// Kernels of products have the tanh approximation. Of two copies of an activation, one of which is
/// recomputed for the backward pass, the first is fused.
bool hasTanh(Match &match) { return match.fused.getBool(Key::tanh_approx); }
bool isFirstTanh(Match &match) {
  return hasTanh(match) && match.op(0).unit == match.op(2).unit &&
         *match.users.begin(match.fused.results[1]) == match.ops[2];
}

/// Attention reads heads in place if they have equal distances: as many groups as query heads, or
/// one group.
bool hasEvenHeads(Match &match) {
  const Op &split = match.op(0);
  const plan::Type &q = match.typeOf(plan::resultNamed<OpKind::SplitQkv>(split, "q")),
                   &k = match.typeOf(plan::resultNamed<OpKind::SplitQkv>(split, "k"));
  match.fused.set(Key::num_heads, q.shape[2]).set(Key::num_groups, k.shape[2]);
  match.fused.set(Key::head_dim, q.shape[3]);
  bool isEven = k.shape[2] == 1 || k.shape[2] == q.shape[2];
  return isEven && match.typeOf(plan::operandNamed<OpKind::SplitQkv>(split, "qkv")).rank == 3;
}

/// Whether the other term of the sum is a product too, along no more elements than this one: the
/// larger product adds the other one, which costs a pass over the sum less.
bool isLargerProduct(Match &match) {
  auto depthOf = [&](const Op &op) {
    const plan::Type &a = match.typeOf(op.operands[0]);
    int64_t columns = a.shape[a.rank - 1u];
    return op.getBool(Key::trans_a) ? a.numel() / columns : columns;
  };
  const Op &product = match.op(0), &sum = match.op(1);
  const ValueId own = product.results[0], other = match.fused.operands[2],
                all = match.fused.results[0];
  uint32_t def = match.segment.values[other].def;
  if (def == kNone || def == match.ops[0] || match.users.count(other) != 1 || match.isOut(other) ||
      match.typeOf(own) != match.typeOf(all) || match.typeOf(other) != match.typeOf(all))
    return false;
  const Op &more = match.segment.ops[def];
  if (more.kind != OpKind::MatMul || !more.ties.empty())
    return false;
  int64_t depth = depthOf(product), depthOfMore = depthOf(more);
  return sum.operands[0] == own ? depth >= depthOfMore : depth > depthOfMore;
}

/// The number of logits rows per chunk: few enough that a chunk is small compared with a layer's
/// activations, and enough for the products to run at full rate. The product for the gradient of x
/// has only rows × columns of x to distribute over multiprocessors, and each chunk reads and
/// writes the weight's gradient, so narrow models take more rows (docs/benchmarks/cuda-one-gpu.md).
int64_t chunkRows(const plan::Type &x) {
  constexpr int64_t kRowsMin = 2048, kElements = int64_t{8} << 20;
  int64_t rows = kRowsMin;
  while (2 * rows * x.shape[x.rank - 1u] <= kElements)
    rows *= 2;
  return rows;
}

/// The gradient of a preference loss depends on the losses of whole sequences, so it cannot start
/// at the loss of one token. Gradients of logits are rounded to the weight's type.
bool isLossOfTokens(Match &match) {
  const ValueId losses = match.fused.results[0];
  bool isOfPairs =
      std::any_of(match.users.begin(losses), match.users.end(losses), [&](uint32_t user) {
        return match.segment.ops[user].kind == OpKind::PreferenceLoss;
      });
  const plan::Type &x = match.typeOf(match.fused.operands[0]);
  if ((isOfPairs && match.segment.kind == plan::SegmentKind::Train) ||
      x.dtype != match.typeOf(match.fused.operands[1]).dtype)
    return false;
  int64_t asked = match.plan.job.model.lossChunkRows; // 0: the recipe does not say
  match.fused.set(Key::chunk_rows,
                  std::min(match.typeOf(losses).shape[0], asked > 0 ? asked : chunkRows(x)));
  return true;
}

/// Sets the number of rows per chunk of a loss with sharded logits, for ChunkLossHead. If the
/// recipe does not set it, the logits and gradients of one chunk, plus the logits of the next
/// chunk, need 1 to 1.5 times the bytes of a chunk on one rank.
void limitRows(const plan::Plan &plan, const Segment &segment, Op &loss) {
  auto maker = [&](ValueId value, OpKind kind) {
    uint32_t def = segment.values[value].def;
    return def != kNone && segment.ops[def].kind == kind ? &segment.ops[def] : nullptr;
  };
  const Op *gather = maker(loss.operands[0], OpKind::AllGather);
  const Op *stats = gather ? maker(gather->operands[0], OpKind::VocabStats) : nullptr;
  const Op *product = stats ? maker(stats->operands[0], OpKind::MatMul) : nullptr;
  if (!product)
    return;
  int64_t rows = segment.values[loss.results[0]].type.shape[0];
  int64_t chunk = plan.job.model.lossChunkRows;
  if (chunk == 0) {
    chunk = chunkRows(segment.values[product->operands[0]].type) *
            std::max<int64_t>(plan.groupSize(gather->group) / 2, 1);
    int64_t most = chunk * model::kLossChunksMax;
    chunk *= (rows + most - 1) / most;
  }
  loss.set(Key::chunk_rows, std::min(rows, chunk));
}

void fuseAll(plan::Plan &plan, std::initializer_list<Fusion> fusions,
             void (*finish)(const plan::Plan &, Segment &) = nullptr) {
  for (plan::Role &role : plan.roles)
    for (Segment &segment : role.segments) {
      for (const Fusion &fusion : fusions)
        fuse(plan, segment, fusion);
      if (finish)
        finish(plan, segment);
    }
}

} // namespace

/// The product moves to the position of the sum, where the bias is defined.
void runFuseBias(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::MatMul, 0, 1, false, hasTypeOfProduct}});
}

void runFuseQkvRope(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::SplitQkvNormRope, 0, 0}, {OpKind::SplitQkvRope, 0, 0}});
}

/// The sum keeps its other readers, which come after the norm.
void runFuseResidualNorm(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::AddRmsNorm, 1, 1}, {OpKind::AddLayerNorm, 1, 1}});
}

void runFuseLossHead(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::LmLoss, 1, 1, false, isLossOfTokens}},
          [](const plan::Plan &whole, Segment &segment) {
            for (Op &op : segment.ops)
              if (op.kind == OpKind::VocabLoss)
                limitRows(whole, segment, op);
          });
}

/// Runs after Recompute, which selects attention and its operands individually. Forward and
/// backward ops read one split, which goes if no other op reads it.
void runFuseQkvAttention(plan::Plan &plan, Notes &) {
  fuseAll(plan,
          {{OpKind::AttentionQkv, 1, 1, true, hasEvenHeads},
           {OpKind::AttentionQkvBwd, 1, 1, true, hasEvenHeads}},
          [](const plan::Plan &, Segment &segment) { plan::removeDeadOps(segment); });
}

/// Runs after Recompute, which selects products and activations individually, and after Quantize,
/// because 8-bit products take no bias.
void runFuseEpilogues(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::MatMulGelu, 0, 0, false, isFirstTanh},
                 {OpKind::MatMulGeluBwd, 0, 1, false, hasTanh},
                 {OpKind::GroupedMatMulBias, 0, 1, false, hasTypeOfProduct}});
}

/// Such as the sums of the products of a layer and of its adapter, and of their gradients.
void runFuseSums(plan::Plan &plan, Notes &) {
  fuseAll(plan, {{OpKind::MatMulAdd, 0, 1, false, isLargerProduct}});
}

} // namespace shardc::passes
