// Variants of a body segment: which microbatches execute alike, and which of them a program runs.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Groups the microbatches of one segment by which of its ops' predicates hold.
class VariantTable {
public:
  /// Reads the segment's predicates; does not refer to it afterwards.
  explicit VariantTable(const Segment &segment);

  /// The variant that represents microbatch `microbatch` of `count`. Without predicates on numbers
  /// it is First, Middle, Last or Only.
  Variant of(int64_t microbatch, int64_t count) const;

  /// The number of consecutive loop iterations, from this one on, that execute the same variant; at
  /// least 1. `number` maps an iteration to its microbatch.
  int64_t iterationsAlike(const MicrobatchNumber &number, int64_t iteration, int64_t count) const;

  /// Numbers of microbatches that cover every variant; some variants may occur twice.
  std::vector<int64_t> numbersFor(int64_t count) const;

private:
  size_t classOf(int64_t microbatch) const;

  bool isBody_;
  std::vector<int64_t> cuts_; ///< ascending microbatches at which a predicate changes
  /// Class of the microbatches before the first boundary, and of those from each boundary on. Equal
  /// classes have equal predicates.
  std::vector<size_t> classes_;
  std::vector<int64_t> firstCuts_; ///< by class: the first boundary with this class
};

/// For each segment of the role, its number of microbatches if runs in `nodes` and their loops name
/// them, otherwise 0; other nested nodes are ignored. All segments whose runs name microbatches
/// have the same number, since several segments may share the microbatches of one pass.
std::vector<int64_t> namedMicrobatches(const Role &role, const std::vector<ProgramNode> &nodes);

/// Whether runs of both segments name microbatches of the same step, and no microbatch twice.
bool shareMicrobatches(const Role &role, uint32_t a, uint32_t b);

/// The number of series of microbatches for which the segment runs. Runs of a step that name their
/// microbatch form one series.
int countSeries(const std::vector<ProgramNode> &nodes, uint32_t segment);

/// For each segment of the role, the variants that its program executes; Only for a background
/// segment.
std::vector<std::vector<Variant>> variantsOfProgram(const Role &role);

/// Microbatches that execute the same variant at the same addresses: with rings, those with equal
/// number modulo slotsOf().
struct SegmentInstance {
  Variant variant;
  int64_t slot = 0;
  bool operator==(const SegmentInstance &) const = default;
};
/// For each segment of the role, the instances that its program executes.
std::vector<std::vector<SegmentInstance>> instancesOfProgram(const Role &role);

/// Calls fn(run, iteration) for each run in the nodes and their loops, in order; `iteration` is
/// that of the innermost loop. Stops if fn returns false.
template <typename Fn>
bool forEachRun(const std::vector<ProgramNode> &nodes, const Fn &fn, int64_t iteration = 0) {
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Run && !fn(node, iteration))
      return false;
    if (node.kind == ProgramNode::Loop)
      for (int64_t i = 0; i < node.count; ++i)
        if (!forEachRun(node.children, fn, i))
          return false;
  }
  return true;
}

/// The period, in microbatches, with which the segment's addresses repeat: the least common
/// multiple of the slots of all rings that it uses.
int64_t slotsOf(const Role &role, const Segment &segment);

} // namespace shardc::plan
