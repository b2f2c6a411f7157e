// Summaries of a plan: memory by purpose, traffic of a step, roles and segments, and the comment at
// the head of a plan file. All indices of the plan must be in range.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Memory of one rank, in bytes.
struct MemoryByPurpose {
  /// Cells, whose content persists between segments.
  std::array<int64_t, kPurposeCount> cells{};
  /// Live values at the peak: the op, among all segments, where their total is largest. Live ranges
  /// follow the order of issue.
  std::array<int64_t, kPurposeCount> transient{};
  uint32_t peakSegment = kNone; ///< segment and op of the peak
  uint32_t peakOp = kNone;

  /// Sums over all purposes.
  int64_t cellsTotal() const;
  int64_t transientTotal() const;
};
MemoryByPurpose memoryByPurpose(const Role &role);

/// A buffer of a segment and its live range. Ties, in-place operands, views and packs join several
/// values in one buffer.
struct BufferLife {
  ValueId value = kNone; ///< the largest value of the buffer
  int64_t bytes = 0;
  Purpose purpose = Purpose::Activations;
  uint32_t first = kNone, last = 0; ///< indices of ops; `first` is kNone without a defining op
  bool isCell = false;              ///< whether it is part of a cell and needs no bytes of its own
};
/// For each value of the segment, its buffer; values that share a buffer have equal entries.
std::vector<BufferLife> bufferLives(const Role &role, const Segment &segment);

/// For each cell, whether it is contained in another cell and needs no additional bytes.
std::vector<bool> nestedCells(const Role &role);

/// Traffic of one rank in one training step, without evaluation, for collectives of one kind, group
/// and type.
struct TrafficRow {
  OpKind kind;
  int16_t group;
  DType dtype; ///< the type in which the data are sent
  int64_t calls = 0;
  int64_t fullBytes = 0; ///< sum of the sizes of the gathered or reduced buffers
  int64_t sentBytes = 0; ///< per rank: (n-1)/n of fullBytes, twice that for all_reduce
};
/// The rows of all kinds that occur, for a rank of this role.
std::vector<TrafficRow> trafficOfStep(const Plan &plan, const Role &role);

/// In how many of `count` microbatches an op with this predicate is executed.
int64_t timesOf(const Pred &pred, int64_t count);
/// How often the program executes each segment of the role, without the children of `every` nodes.
std::vector<int64_t> runsOf(const Role &role, const std::vector<ProgramNode> &nodes);

/// The comment at the head of a plan file: strategy, mesh, memory, traffic, roles, segments, then
/// the lines of `more`. Passed to print() as `page`.
std::string summary(const Plan &plan, std::span<const std::string> more = {});

/// Formats bytes, such as `12.5 GiB`.
std::string formatBytes(int64_t bytes, int digits = 1);
/// Formats two sizes for comparison, with enough digits to show that they differ.
std::pair<std::string, std::string> formatBytesApart(int64_t a, int64_t b);

} // namespace shardc::plan
