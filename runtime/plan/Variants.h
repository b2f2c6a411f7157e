// Which runs of segments a program has, and which microbatches of a segment execute alike.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Which microbatches of one segment execute alike, by the predicates of its ops.
class VariantTable {
public:
  explicit VariantTable(const Segment &segment);

  /// The one that stands for microbatch `microbatch` of `count`. Without predicates that name
  /// numbers one of First, Middle, Last and Only.
  Variant of(int64_t microbatch, int64_t count) const;

  /// So many turns of a loop from this one on run the same variant, with microbatches that are
  /// those of `number`; at least 1.
  int64_t turnsAlike(const MicrobatchNumber &number, int64_t turn, int64_t count) const;

  /// Microbatches of `count`, among which there is one of each variant; maybe some of them twice.
  std::vector<int64_t> numbersFor(int64_t count) const;

private:
  size_t classOf(int64_t microbatch) const;

  bool isBody_;
  std::vector<int64_t> cuts_; ///< microbatches with which a predicate begins, or has ended; rising
  /// Of the numbers before the first cut, and from each cut on: equal where the same predicates
  /// hold.
  std::vector<size_t> classes_;
  std::vector<int64_t> firstCuts_; ///< by class: the first cut whose number is of it
};

/// Runs that name their microbatch, of each segment of the role, among the nodes and in their
/// loops, but not in other nodes: as many microbatches has the segment there.
std::vector<int64_t> namedRuns(const Role &role, const std::vector<ProgramNode> &nodes);

/// The variants of each segment of the role that its program runs; of a background segment Only.
std::vector<std::vector<Variant>> variantsOfProgram(const Role &role);

/// Microbatches that execute alike, at the same places: where segments work in rings, those whose
/// numbers have the same rest modulo slotsOf.
struct SegmentInstance {
  Variant variant;
  int64_t slot = 0;
  bool operator==(const SegmentInstance &) const = default;
};
/// The instances of each segment of the role that its program runs.
std::vector<std::vector<SegmentInstance>> instancesOfProgram(const Role &role);

/// Calls fn(run, turn) for each run among the nodes and in their loops, in order, where `turn` is
/// that of the innermost loop. Stops where fn returns false.
template <typename Fn>
bool forEachRun(const std::vector<ProgramNode> &nodes, const Fn &fn, int64_t turn = 0) {
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Run && !fn(node, turn))
      return false;
    if (node.kind == ProgramNode::Loop)
      for (int64_t i = 0; i < node.count; ++i)
        if (!forEachRun(node.children, fn, i))
          return false;
  }
  return true;
}

/// The slots by which what the segment does at its bytes repeats: the least common multiple of
/// those of all rings that it touches.
int64_t slotsOf(const Role &role, const Segment &segment);

} // namespace shardc::plan
