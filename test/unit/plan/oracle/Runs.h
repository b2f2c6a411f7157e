// Runs of segments in order.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// A run of a segment for microbatch `microbatch` of `count`.
struct OneRun {
  uint32_t segment;
  int64_t microbatch = 0, count = 1;
  bool isNamed = false;
  const ProgramNode *node = nullptr;

  Variant variant() const { return {microbatch, count}; }
};
/// The runs of a node of the program; `all` is the list of nodes that contains it.
std::vector<OneRun> runsOf(const Role &role, const ProgramNode &node,
                           const std::vector<ProgramNode> &all);

/// Number of iterations of the longest loop over steps; 0 if there is none.
int64_t longestLoop(const Plan &plan);

/// The slot of a ring for a microbatch.
inline int64_t slotFor(int64_t slots, int64_t microbatch) {
  return slots < 2 ? 0 : ((microbatch % slots) + slots) % slots;
}

/// The members of the op's channel, from the members of its group: both of a pair, or all. Empty if
/// the rank is in no pair.
std::vector<int64_t> membersOf(const Plan &plan, const Op &op, const std::vector<int64_t> &group,
                               int64_t rank);

inline bool isTransfer(const Op &op) { return op.kind == OpKind::Send || op.kind == OpKind::Recv; }
/// The value that a send sends, or a receive receives.
inline ValueId givenBy(const Op &transfer) {
  return transfer.kind == OpKind::Send ? transfer.operands[0] : transfer.results[0];
}

} // namespace shardc::plan::oracle
