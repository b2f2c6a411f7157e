// Measures what predictions need of a machine: products, attention, copies, and collectives by
// group and size. All ranks of the job measure together, each on its own device.
#pragma once

#include <functional>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/measure/Bench.h"

namespace shardc::measure {

/// A rate and what each rank found.
struct Measured {
  Rate rate; ///< of the middle rank; of a collective, of the middle group
  /// Seconds by rank. Members of one group have those of their group.
  std::vector<double> seconds;
};

struct MeasureOptions {
  bool isQuick = false; ///< one size of each series, as before a run
  /// Called with each measurement, on every rank.
  std::function<void(const Measured &)> measured;
  ReportSink emit; ///< takes what cannot be measured, with its reason
};

/// Ranks by node, in their order: one that its node counts as its first begins a node.
using Nodes = std::vector<std::vector<int>>;

/// InvalidInput if nodes have different numbers of ranks.
Result<Nodes> nodesOf(hal::Peers *peers);

/// A kind of groups, in which every rank is a member of one.
struct Grouping {
  int64_t members = 0, inNode = 0;
  std::vector<std::vector<int>> groups;
};

/// Pairs, fours and so on inside nodes, up to the whole node; the same between nodes, of ranks with
/// the same number on their nodes; and all ranks, if there are several nodes of several.
std::vector<Grouping> groupingsOf(const Nodes &nodes);

/// Everything. The first series that is too slow to go on with ends there: its larger sizes are not
/// measured. Aborted once the job was asked to end.
Status measureAll(Bench &bench, const Nodes &nodes, const MeasureOptions &options);

/// The middle of numbers, at least one: of two, the smaller.
double medianOf(std::vector<double> values);

} // namespace shardc::measure
