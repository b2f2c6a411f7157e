// Shared by the passes that exchange rows of an embedding instead of gathering the table.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/passes/Strategy.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// The only parameter of a block, if it is a matrix whose shards hold whole rows; otherwise null.
const plan::Param *tableOf(const plan::Plan &plan, uint32_t block);

/// In fp32 and in deterministic runs all strategies are bitwise equal, so sums keep their order.
bool mustAgreeToTheBit(const plan::Plan &plan, const BlockStrategy &strategy);

/// The last ops of a table's gradient, by index: embedding_bwd, pack, an optional cast to the
/// reduction's type, reduce_scatter. Each is the only reader of the one before.
struct GradientChain {
  uint32_t lookups = plan::kNone, pack = plan::kNone;
  uint32_t cast = plan::kNone; ///< kNone without one
  uint32_t reduction = plan::kNone;
};

/// The chain that contains the pack; nothing if the ops around it differ.
std::optional<GradientChain> gradientChain(const plan::Segment &segment, const plan::Users &users,
                                           uint32_t pack);

/// Appends gathers of each rank's own data: token ids, rows, their gradients.
class RowGathers {
public:
  /// `like`: a gather of weights, whose transport these use.
  RowGathers(plan::Segment &segment, std::vector<plan::Op> &ops, const BlockStrategy &strategy,
             plan::Op like)
      : segment_(segment), ops_(ops), strategy_(strategy), like_(std::move(like)) {}

  /// The value's type with the rows of all ranks.
  plan::Type typeOfAll(plan::ValueId value) const;
  /// All ranks' versions of a value, for an op of the phase; gathered once, though several tables
  /// have rows of the same tokens, or gradients of the same sum.
  plan::ValueId gather(plan::ValueId value, plan::Phase phase);

private:
  std::string nameOfAll(plan::ValueId value) const;

  plan::Segment &segment_;
  std::vector<plan::Op> &ops_;
  const BlockStrategy &strategy_;
  plan::Op like_;
};

/// Sums the gathered rows' gradients into a shard; replaces the ops of the chain, which are among
/// these.
plan::Op sumOfRows(RowGathers &gathers, const std::vector<plan::Op> &ops,
                   const GradientChain &chain, uint32_t block, const BlockStrategy &strategy);

} // namespace shardc::passes
