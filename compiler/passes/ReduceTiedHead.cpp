// Splits the reduction of a tied embedding's gradient. The gradient has two parts: that of the
// output projection, which is complete when the backward pass begins, and that of the lookups,
// which is the last result of the pass. Reducing both at once would be large and fully exposed.
// Instead, the projection's part is reduced first, overlapped with the backward pass, and its
// buffer is freed. At the end, ranks exchange the gradients of the rows that they looked up, and
// each adds those that belong to its shard. The sums have another order than in other strategies,
// so the pass does not apply in fp32 and in deterministic runs.
#include <optional>
#include <set>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/EmbeddingRows.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

using plan::Segment;

/// The ops that reduce a tied table's gradient: the lookups' part is added to the projection's
/// part.
struct Chain : GradientChain {
  ValueId head = kNone;    ///< the projection's part, which no other op reads
  uint32_t gather = kNone; ///< the table's gather, as an index in the segment
};

/// Finds the gather of the table, the gradient chain and the part that the head adds. Nothing if
/// one of them is missing or used by other ops, as without tied embeddings.
std::optional<Chain> findChain(const plan::Plan &plan, const Segment &segment, uint32_t block) {
  uint32_t gather = kNone, pack = kNone;
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    if (op.getInt(Key::block) != block)
      continue;
    if (op.kind == OpKind::AllGather && movesWhole(plan, segment, op))
      gather = i;
    if (op.kind == OpKind::Pack)
      pack = i;
  }
  if (gather == kNone || pack == kNone)
    return std::nullopt;
  plan::Users users(segment);
  std::optional<GradientChain> chain = gradientChain(segment, users, pack);
  if (!chain || segment.ops[chain->reduction].pred != plan::Pred::Always)
    return std::nullopt;
  const Op &lookups = segment.ops[chain->lookups];
  if (lookups.ties.size() != 1)
    return std::nullopt;
  const plan::Tie &tie = lookups.ties[0];
  bool isSum = tie.kind == plan::Tie::Acc && tie.pred == plan::Pred::Always;
  if (!isSum || users.count(tie.value) != 1 || segment.values[tie.value].def == kNone)
    return std::nullopt;
  return Chain{*chain, tie.value, gather};
}

class Splitter {
public:
  Splitter(const plan::Plan &plan, const BlockStrategy &strategy, Notes &notes)
      : plan_(plan), strategy_(strategy), notes_(notes) {}

  void run(Segment &segment, uint32_t block) {
    std::optional<Chain> chain = findChain(plan_, segment, block);
    if (!chain)
      return;
    const Op &lookups = segment.ops[chain->lookups];
    int64_t rows = 0;
    for (ValueId value : lookups.operands)
      rows += segment.values[value].type.bytes() * strategy_.ranks;
    ValueId whole = segment.ops[chain->reduction].operands[0];
    int64_t table = segment.values[whole].type.bytes();
    if (rows >= table)
      return; // exchanging rows would expose more communication than reducing the table
    notes_.push_back({fmt::format("the output layer's part of the gradient of '{}' is reduced "
                                  "during the backward pass; after it, {} of rows instead of {} "
                                  "are reduced",
                                  tableOf(plan_, block)->name, plan::formatBytes(rows),
                                  plan::formatBytes(table)),
                      "tied-head", jobLoc(plan_, plan_.job.derived.locStrategy)});
    split(segment, *chain, block);
  }

private:
  /// Reduces the head's part right after the last op of the head, where the backward pass begins;
  /// the lookups' rows are added to the result at the end of the pass.
  void split(Segment &segment, const Chain &chain, uint32_t block) {
    std::vector<Op> old = std::move(segment.ops), ops;
    ops.reserve(old.size() + 4);
    RowGathers gathers(segment, ops, strategy_, old[chain.gather]);
    uint32_t head = segment.values[chain.head].def, end = head;
    for (uint32_t i = head; i < chain.lookups; ++i)
      if (old[i].unit == old[head].unit)
        end = i;
    ValueId part = kNone;
    for (uint32_t i = 0; i < old.size(); ++i) {
      if (i == chain.lookups || i == chain.pack || i == chain.cast)
        continue;
      if (i == chain.reduction) {
        Op sum = sumOfRows(gathers, old, chain, block, strategy_);
        sum.ties = {{plan::Tie::Acc, 0, part}};
        ops.push_back(std::move(sum));
        continue;
      }
      ops.push_back(old[i]);
      if (i == end)
        part = reduceHead(segment, ops, old, chain);
    }
    plan::replaceOps(segment, std::move(ops));
  }

  /// Applies the ops that reduce the sum of both parts to the projection's part alone. This is the
  /// last reduction of its unit, so that smaller reductions of the unit do not queue behind it.
  static ValueId reduceHead(Segment &segment, std::vector<Op> &ops, const std::vector<Op> &old,
                            const Chain &chain) {
    ValueId value = chain.head;
    for (uint32_t i : {chain.pack, chain.cast, chain.reduction}) {
      if (i == kNone)
        continue;
      Op op = old[i];
      plan::Value like = segment.values[op.results[0]];
      op.operands = {value};
      op.unit = old[segment.values[chain.head].def].unit;
      value = plan::addValue(segment, like.name + ".head", like.type, like.purpose);
      op.results = {value};
      ops.push_back(std::move(op));
    }
    return value;
  }

  const plan::Plan &plan_;
  const BlockStrategy &strategy_;
  Notes &notes_;
};

/// Blocks whose gradient ends with lookups. Checking the chain of every block would make this the
/// slowest pass in plans with many blocks.
std::set<uint32_t> blocksOfLookups(const Segment &segment) {
  std::set<uint32_t> blocks;
  for (const Op &op : segment.ops) {
    if (op.kind != OpKind::Pack || op.operands.size() != 1 || op.getInt(Key::block) < 0)
      continue;
    uint32_t def = segment.values[op.operands[0]].def;
    if (def != kNone && segment.ops[def].kind == OpKind::EmbeddingBwd)
      blocks.insert(static_cast<uint32_t>(op.getInt(Key::block)));
  }
  return blocks;
}

} // namespace

void runReduceTiedHead(plan::Plan &plan, Notes &notes) {
  for (plan::Role &role : plan.roles)
    for (Segment &segment : role.segments)
      for (uint32_t block : blocksOfLookups(segment)) {
        BlockStrategy strategy = strategyOf(plan, block);
        bool maySplit = strategy.shardsParams && !mustAgreeToTheBit(plan, strategy);
        if (maySplit && tableOf(plan, block) != nullptr)
          Splitter(plan, strategy, notes).run(segment, block);
      }
}

} // namespace shardc::passes
