// Summary of a plan: memory by purpose, traffic of a step, roles, segments; and the
// comments at a plan file's head that show it. Takes plans whose indices are in
// range.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Bytes of one rank.
struct MemoryByPurpose {
  /// Cells: bytes that keep their content between segments.
  std::array<int64_t, kPurposeCount> cells{};
  /// Values of one segment, at the op of all segments where they are largest in sum; in order of
  /// issue.
  std::array<int64_t, kPurposeCount> transient{};
  uint32_t peakSegment = kNone; ///< where `transient` was taken, and the op there
  uint32_t peakOp = kNone;

  int64_t cellsTotal() const;
  int64_t transientTotal() const;
};
MemoryByPurpose memoryByPurpose(const Role &role);

/// Values of one segment that share one buffer, joined by ties, in-place operands, views and packs.
struct BufferLife {
  ValueId value = kNone; ///< the largest of them
  int64_t bytes = 0;
  Purpose purpose = Purpose::Activations;
  uint32_t first = kNone, last = 0; ///< ops; first is kNone if no op of the segment defines one
  bool isCell = false;              ///< it lies in a cell, and needs no bytes of its own
};
/// By value of a segment of the role, its buffer; equal for all values of one.
std::vector<BufferLife> bufferLives(const Role &role, const Segment &segment);

/// For each cell whether it lies completely inside another one, and so needs no additional bytes.
std::vector<bool> nestedCells(const Role &role);

/// What one rank sends for collectives of one kind in one training step, without evaluation.
struct TrafficRow {
  OpKind kind;
  int16_t group;
  DType dtype; ///< on the wire
  int64_t calls = 0;
  int64_t fullBytes = 0; ///< of the gathered or reduced buffers
  int64_t sentBytes = 0; ///< by a rank: (n-1)/n of it, twice that for all_reduce
};
std::vector<TrafficRow> trafficOfStep(const Plan &plan, const Role &role);

/// How often an op with the predicate takes effect in `count` microbatches.
int64_t timesOf(const Pred &pred, int64_t count);
/// How often the nodes run each segment of the role, without what is in an `every`.
std::vector<int64_t> runsOf(const Role &role, const std::vector<ProgramNode> &nodes);

/// The comment page: strategy, mesh, memory, traffic, roles, segments, and `more` at its end, one
/// comment line each. For print()'s `page`.
std::string summary(const Plan &plan, std::span<const std::string> more = {});

/// `12.5 GiB`.
std::string formatBytes(int64_t bytes, int digits = 1);
/// The same of two amounts that are compared: with as many digits as show that they differ.
std::pair<std::string, std::string> formatBytesApart(int64_t a, int64_t b);

} // namespace shardc::plan
