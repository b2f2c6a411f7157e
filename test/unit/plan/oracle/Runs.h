// Runs of segments in their order, and of which microbatches what they pass on is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// A run of a segment for one of so many microbatches.
struct OneRun {
  uint32_t segment;
  int64_t microbatch = 0, count = 1;
  bool isNamed = false;
  const ProgramNode *node = nullptr;

  Variant variant() const { return {microbatch, count}; }
};
/// What a run, or a loop, consists of; `all` is the list of nodes in which it stands.
std::vector<OneRun> runsOf(const Role &role, const ProgramNode &node,
                           const std::vector<ProgramNode> &all);

/// Turns of the longest loop over steps; 0 without one.
int64_t longestLoop(const Plan &plan);

/// Cells of which it matters for which microbatch their content is: rings, and those at which a
/// segment says that it is of another one.
std::vector<bool> followedCells(const Role &role);

/// The slot of a ring for a microbatch.
inline int64_t slotFor(int64_t slots, int64_t microbatch) {
  return slots < 2 ? 0 : ((microbatch % slots) + slots) % slots;
}

/// What slots hold, by cell and slot.
template <typename T> struct Slots {
  struct Held {
    T content;
    int64_t microbatch;
  };
  std::map<std::pair<uint32_t, int64_t>, Held> held;

  std::pair<uint32_t, int64_t> key(const Role &role, const Segment::Boundary &boundary,
                                   int64_t microbatch) const {
    return {boundary.cell, slotFor(role.cells[boundary.cell].slots, microbatch + boundary.shift)};
  }
};

/// The microbatch of each value of one run; nothing for what is of none.
struct Batches {
  std::vector<std::optional<int64_t>> of;
  std::string problem;
};
Batches batchesOf(const Role &role, const std::vector<bool> &isFollowed, const OneRun &run);

/// The members of an op's channel among those of its group: both of a pair, or all. Empty where the
/// rank is in no pair.
std::vector<int64_t> membersOf(const Plan &plan, const Op &op, const std::vector<int64_t> &group,
                               int64_t rank);

bool hasTransfers(const Role &role);
bool addsLosses(const Role &role);
inline bool isTransfer(const Op &op) { return op.kind == OpKind::Send || op.kind == OpKind::Recv; }
/// What one side gives, or the other one takes.
inline ValueId givenBy(const Op &transfer) {
  return transfer.kind == OpKind::Send ? transfer.operands[0] : transfer.results[0];
}

/// Microbatches of an evaluation on each of the ranks that read other batches; 0 where the job's
/// sizes do not divide.
int64_t evaluationMicrobatches(const Plan &plan, int64_t readers);

} // namespace shardc::plan::oracle
