// Looks up embedding rows on the ranks that hold them, instead of gathering an embedding that is a
// unit by itself.
//
// Forward: ranks exchange their token ids, and each rank looks up the rows of its shard for all
// ids. A sum over the ranks, in which all terms but one are -0, gives each rank the rows of its own
// tokens, bitwise equal.
// Backward: ranks exchange the gradients of these rows and add those that belong to their shards,
// so the complete gradient of the table never exists.
//
// The sums have another order than in other strategies, so the pass does not apply in fp32 and in
// deterministic runs, where strategies must be bitwise equal. It also does not apply if gathering
// the table exposes less communication: rows are exposed in both directions, and so is the gradient
// of the table, but the gather of the table overlaps the optimizer if a step has one microbatch
// (Overlap).
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/EmbeddingRows.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

using plan::Segment;

/// The ops of one segment on a block that holds only one table, by index.
struct Uses {
  std::vector<uint32_t> gathers, views, lookups;
  GradientChain gradient; ///< its `reduction` is kNone if the segment computes no gradient
};

class UseFinder {
public:
  UseFinder(const plan::Plan &plan, const Segment &segment, uint32_t block)
      : plan_(plan), segment_(segment), users_(segment), block_(block),
        isTable_(segment.values.size(), 0) {}

  /// Empty if an op other than lookups and their gradients reads or writes a part of the block.
  std::optional<Uses> find() {
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      if (!visit(i))
        return std::nullopt;
    for (const Segment::Boundary &out : segment_.outs)
      if (isTable_[out.value] != 0)
        return std::nullopt;
    return uses_;
  }

private:
  /// Follows the uses of the gathered table. False if an op uses the table in a way that row
  /// exchanges do not support; then the embedding stays as it is.
  bool visit(uint32_t i) {
    const Op &op = segment_.ops[i];
    if (op.kind == OpKind::Pack && isOfBlock(op))
      return followGradient(i);
    if (op.kind == OpKind::AllGather && isOfBlock(op) && movesWhole(plan_, segment_, op)) {
      uses_.gathers.push_back(i);
      isTable_[op.results[0]] = 1;
      return op.pred == plan::Pred::Always && op.ties.empty();
    }
    for (size_t k = 0; k < op.operands.size(); ++k) {
      if (isTable_[op.operands[k]] == 0)
        continue;
      if (op.kind == OpKind::View) {
        uses_.views.push_back(i);
        isTable_[op.results[0]] = 1;
      } else if (op.kind == OpKind::Embedding && k == 1 && op.group < 0) {
        uses_.lookups.push_back(i);
      } else {
        return false;
      }
    }
    return true;
  }

  /// Finds the gradient that `pack` stores. Returns false unless lookups alone contribute to it.
  bool followGradient(uint32_t pack) {
    std::optional<GradientChain> chain = gradientChain(segment_, users_, pack);
    if (!chain || !segment_.ops[chain->lookups].ties.empty())
      return false;
    uses_.gradient = *chain;
    return true;
  }

  bool isOfBlock(const Op &op) const { return op.getInt(Key::block) == block_; }

  const plan::Plan &plan_;
  const Segment &segment_;
  plan::Users users_;
  uint32_t block_;
  std::vector<uint8_t> isTable_; ///< by value: whether it is the gathered block or a view of it
  Uses uses_;
};

class Exchanger {
public:
  Exchanger(plan::Plan &plan, plan::Role &role, Notes &notes)
      : plan_(plan), role_(role), strategies_(strategiesOf(plan)), notes_(notes) {}

  void run() {
    for (uint32_t b = 0; b < plan_.blocks.size(); ++b) {
      strategy_ = strategies_[b];
      bool mayExchange = strategy_.shardsParams && !mustAgreeToTheBit(plan_, strategy_);
      if (mayExchange && (table_ = tableOf(plan_, b)) != nullptr && findUses(b))
        exchange(b);
    }
  }

private:
  /// Collects the uses in every segment; the gradient may be in another segment than the lookups.
  /// Returns false if a use needs the whole table, if there are no lookups or no gradient, or if
  /// gathering the table exposes less communication.
  bool findUses(uint32_t block) {
    uses_.clear();
    tableBytes_ = rowBytes_ = hiddenBytes_ = 0;
    reductions_ = plan::kNoChannel;
    gather_.reset();
    bool any = false;
    for (const Segment &segment : role_.segments) {
      std::optional<Uses> uses = UseFinder(plan_, segment, block).find();
      if (!uses)
        return false;
      any |= !uses->lookups.empty();
      addBytes(segment, *uses);
      if (uses->gradient.reduction != kNone)
        reductions_ = segment.ops[uses->gradient.reduction].channel;
      if (!uses->gathers.empty() && !gather_)
        gather_ = segment.ops[uses->gathers.front()];
      uses_.push_back(std::move(*uses));
    }
    return any && gather_ && reductions_ != plan::kNoChannel &&
           rowBytes_ < tableBytes_ - hiddenBytes_;
  }

  int64_t ofAllRanks(const Segment &segment, ValueId value) const {
    return segment.values[value].type.bytes() * strategy_.ranks;
  }

  /// Adds the bytes that a microbatch of training exchanges if the table is gathered, and if rows
  /// are exchanged.
  void addBytes(const Segment &segment, const Uses &uses) {
    if (!segment.body || segment.kind == plan::SegmentKind::Eval)
      return;
    for (uint32_t gather : uses.gathers) {
      int64_t bytes = segment.values[segment.ops[gather].results[0]].type.bytes();
      tableBytes_ += bytes;
      hiddenBytes_ += strategy_.microbatches == 1 ? bytes : 0;
    }
    for (uint32_t lookup : uses.lookups)
      rowBytes_ += ofAllRanks(segment, segment.ops[lookup].operands[0]) +
                   ofAllRanks(segment, segment.ops[lookup].results[0]);
    if (uses.gradient.reduction == kNone)
      return;
    tableBytes_ += segment.values[segment.ops[uses.gradient.reduction].operands[0]].type.bytes();
    rowBytes_ += ofAllRanks(segment, segment.ops[uses.gradient.lookups].operands[0]);
  }

  void exchange(uint32_t block) {
    for (size_t s = 0; s < role_.segments.size(); ++s)
      if (!uses_[s].lookups.empty() || uses_[s].gradient.reduction != kNone)
        rewrite(role_.segments[s], uses_[s], block);
    notes_.push_back(
        {fmt::format("each rank looks up the rows of '{}' that it owns for all ranks: {} of rows "
                     "are communicated instead of a table of {}",
                     table_->name, plan::formatBytes(rowBytes_), plan::formatBytes(tableBytes_)),
         "embedding-rows", jobLoc(plan_, plan_.job.derived.locStrategy)});
  }

  void rewrite(Segment &segment, const Uses &uses, uint32_t block) {
    std::vector<Op> old = std::move(segment.ops), ops;
    ops.reserve(old.size() + 2);
    RowGathers gathers(segment, ops, strategy_, *gather_);
    auto isIn = [](const std::vector<uint32_t> &list, uint32_t op) {
      return std::find(list.begin(), list.end(), op) != list.end();
    };
    for (uint32_t i = 0; i < old.size(); ++i) {
      if (isIn(uses.gathers, i) || isIn(uses.views, i) || i == uses.gradient.lookups ||
          i == uses.gradient.pack || i == uses.gradient.cast)
        continue;
      if (isIn(uses.lookups, i))
        lookUp(segment, ops, old[i], old[uses.gathers.front()], gathers, block);
      else if (i == uses.gradient.reduction)
        ops.push_back(sumOfRows(gathers, old, uses.gradient, block, strategy_));
      else
        ops.push_back(std::move(old[i]));
    }
    plan::replaceOps(segment, std::move(ops));
  }

  void lookUp(Segment &segment, std::vector<Op> &ops, const Op &lookup, const Op &gather,
              RowGathers &gathers, uint32_t block) {
    ValueId x = lookup.results[0], shard = gather.operands[0];
    ValueId ids = gathers.gather(lookup.operands[0], lookup.phase);
    Op rows = plan::makeOp(OpKind::EmbeddingShard, {ids, shard}, lookup.unit, lookup.loc);
    rows.phase = lookup.phase;
    rows.set(Key::block, static_cast<int64_t>(block)).set(Key::table_rows, table_->type.shape[0]);
    rows.results = {plan::addValue(segment, segment.values[x].name + ".rows", gathers.typeOfAll(x),
                                   plan::Purpose::Comm)};
    Op sum = plan::makeOp(OpKind::ReduceScatter, {rows.results[0]}, lookup.unit, lookup.loc);
    plan::setChannel(plan_, sum, reductions_);
    sum.results = {x};
    sum.phase = lookup.phase;
    ops.push_back(std::move(rows));
    ops.push_back(std::move(sum));
  }

  plan::Plan &plan_;
  plan::Role &role_;
  std::vector<BlockStrategy> strategies_; ///< by block
  BlockStrategy strategy_;                ///< of the current block
  Notes &notes_;
  const plan::Param *table_ = nullptr;
  std::vector<Uses> uses_; ///< by segment
  int64_t tableBytes_ = 0, rowBytes_ = 0;
  int64_t hiddenBytes_ = 0;  ///< bytes of tables whose gathers overlap other work
  std::optional<Op> gather_; ///< a gather of the table
  plan::ChannelId reductions_ = plan::kNoChannel; ///< channel of the gradient's reduction
};

} // namespace

void runExchangeEmbeddingRows(plan::Plan &plan, Notes &notes) {
  for (plan::Role &role : plan.roles)
    Exchanger(plan, role, notes).run();
}

} // namespace shardc::passes
