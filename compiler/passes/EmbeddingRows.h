// Helpers of the passes that exchange rows of an embedding table instead of gathering the table.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/passes/Strategy.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// The block's parameter if it is the only one, a matrix, and shards hold whole rows; otherwise
/// null.
const plan::Param *tableOf(const plan::Plan &plan, uint32_t block);

/// Whether results must be bitwise equal under all sharding strategies, so that sums must keep
/// their order. This is the case in fp32 and in deterministic runs.
bool mustAgreeToTheBit(const plan::Plan &plan, const BlockStrategy &strategy);

/// The ops that reduce a table's gradient, by index: embedding_bwd, pack, an optional cast to the
/// type of the reduction, and reduce_scatter. Each is the only user of its predecessor.
struct GradientChain {
  uint32_t lookups = plan::kNone, pack = plan::kNone;
  uint32_t cast = plan::kNone; ///< kNone if there is no cast
  uint32_t reduction = plan::kNone;
};

/// The chain that contains the pack. Empty if the ops around the pack do not form such a chain.
std::optional<GradientChain> gradientChain(const plan::Segment &segment, const plan::Users &users,
                                           uint32_t pack);

/// Appends all-gathers of data that differ between ranks: token ids, embedding rows, and gradients
/// of rows.
class RowGathers {
public:
  /// `like` is a gather of weights, whose transport the new gathers use.
  RowGathers(plan::Segment &segment, std::vector<plan::Op> &ops, const BlockStrategy &strategy,
             plan::Op like)
      : segment_(segment), ops_(ops), strategy_(strategy), like_(std::move(like)) {}

  /// The type of the gathered value.
  plan::Type typeOfAll(plan::ValueId value) const;
  /// The gathered value, for an op of the phase. Gathers a value only once, even if several tables
  /// need rows of the same tokens or gradients of the same sum.
  plan::ValueId gather(plan::ValueId value, plan::Phase phase);

private:
  std::string nameOfAll(plan::ValueId value) const;

  plan::Segment &segment_;
  std::vector<plan::Op> &ops_;
  const BlockStrategy &strategy_;
  plan::Op like_;
};

/// Sums gathered row gradients into this rank's shard. The returned op replaces the ops of the
/// chain, which are among `ops`.
plan::Op sumOfRows(RowGathers &gathers, const std::vector<plan::Op> &ops,
                   const GradientChain &chain, uint32_t block, const BlockStrategy &strategy);

} // namespace shardc::passes
