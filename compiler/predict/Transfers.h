// How long collectives take, from what is known of links: inside an NVLink domain, between nodes,
// over PCIe. Figures are in LinkTable.def and DeviceTable.def.
#pragma once

#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// The ranks of a collective and how they lie.
struct Team {
  int64_t members = 1;
  int64_t inNode = 1;   ///< of them, on one node
  int64_t inDomain = 1; ///< of them, in one NVLink domain
};

/// The members of one of the plan's groups. Ranks fill one node after the other. An NVLink domain
/// lies inside of a node but where the device's is larger than any node, as in racks.
Team teamOf(const Device &device, const plan::Plan &plan, int group);

/// Seconds of an all-gather, a reduce-scatter or an all-reduce by itself; `wholeBytes` are those
/// of the gathered, or not yet reduced, value. 0 for a single member.
double collectiveSeconds(const Device &device, plan::OpKind kind, plan::Transport transport,
                         int64_t wholeBytes, const Team &team);

/// The collectives of one kind that a channel carries.
struct Traffic {
  plan::OpKind kind;
  Team team;
  std::vector<int64_t> wholeBytes; ///< of each, as collectiveSeconds takes them
  bool hasWindows = false;         ///< what they read and write is registered as windows
  bool isDeterministic = false;    ///< sums have to be the same bits whatever they travel over
};

/// How they travel. All of a channel go one way: it is one communicator, which is told once whether
/// to take copy engines.
plan::Transport chooseTransport(const Device &device, const Traffic &traffic);

/// GB/s in which a rank takes in an all-gather of this many bytes in all. 0 for a single member.
double gatherGBs(const Device &device, plan::Transport transport, int64_t wholeBytes,
                 const Team &team);

} // namespace shardc::predict
