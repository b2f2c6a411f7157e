// Measures the rates of a machine that predictions need: products, attention, copies, and
// collectives by group and size. All ranks of the job measure together, each on its own device.
#pragma once

#include <functional>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/measure/Bench.h"

namespace shardc::measure {

/// A rate and its measurements on each rank.
struct Measured {
  Rate rate; ///< rate of the median rank; for a collective, of the median group
  /// Seconds by rank. Members of a group have the group's seconds.
  std::vector<double> seconds;
};

struct MeasureOptions {
  bool isQuick = false; ///< one size of each series, as before a run
  /// Called with each measurement, on every rank.
  std::function<void(const Measured &)> measured;
  ReportSink emit; ///< receives what cannot be measured, and why
};

/// Ranks by node, in order: a rank that is the first of its node begins a new node.
using Nodes = std::vector<std::vector<int>>;

/// InvalidInput if nodes have different numbers of ranks.
Result<Nodes> nodesOf(hal::Peers *peers);

/// A division of all ranks into groups.
struct Grouping {
  int64_t members = 0, inNode = 0;
  std::vector<std::vector<int>> groups;
};

/// Returns pairs, fours and so on inside nodes, up to the whole node; the same between nodes, among
/// ranks with the same number on their nodes; and all ranks, if there are several nodes with
/// several ranks each.
std::vector<Grouping> groupingsOf(const Nodes &nodes);

/// Measures everything. A series ends as soon as a size is too slow: larger sizes are not measured.
/// Aborted once the job was asked to end.
Status measureAll(Bench &bench, const Nodes &nodes, const MeasureOptions &options);

/// Returns the median of one or more numbers; the smaller one of two.
double medianOf(std::vector<double> values);

} // namespace shardc::measure
