// Times of collectives from the properties of links: inside an NVLink domain, between nodes, over
// PCIe. The figures are in LinkTable.def and DeviceTable.def.
#pragma once

#include <optional>
#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// The device that the plan names, with the measured rates that the plan has. Nothing if it names
/// none.
std::optional<Device> plannedDevice(const plan::Plan &plan);

/// The device for which a plan is predicted while it is made. If times of the plan's device are not
/// predicted, that is the GPU whose links were measured.
Device deviceOf(const plan::Plan &plan);

/// The ranks of a collective and their placement.
struct Team {
  int64_t members = 1;
  int64_t inNode = 1;   ///< of them, on one node
  int64_t inDomain = 1; ///< of them, in one NVLink domain
};

/// The members of one of the plan's groups. Ranks fill one node after the other. An NVLink domain
/// lies inside a node, unless the device's domain is larger than any node, as in racks.
Team teamOf(const Device &device, const plan::Plan &plan, int group);

/// Members of which each is `stride` ranks behind the one before it, where nodes hold `node` ranks.
Team teamOf(const Device &device, int64_t node, int64_t members, int64_t stride);

/// Seconds of an all-gather, a reduce-scatter or an all-reduce without overlap; `wholeBytes` is the
/// size of the gathered, or not yet reduced, value. 0 for a single member.
double collectiveSeconds(const Device &device, CollectiveKind kind, plan::Transport transport,
                         int64_t wholeBytes, const Team &team);

/// The seconds for which it slows down what runs beside it. That depends on its bytes, which a slow
/// link spreads over more time: what it would take between so many H200s of one domain, or the time
/// that it took if that is less.
double contendingSeconds(CollectiveKind kind, plan::Transport transport, int64_t wholeBytes,
                         int64_t members, double took);

/// The collectives of one kind that a channel carries.
struct Traffic {
  CollectiveKind kind;
  Team team;
  std::vector<int64_t> wholeBytes; ///< size of each, as for collectiveSeconds
  bool hasWindows = false;         ///< their buffers are registered as windows
  bool isDeterministic = false;    ///< sums must be bitwise equal for every transport
  bool isAwaited = false;          ///< ops may wait for them while they last, and not only start
};

/// Traffic of a plan's ranks in a group, or of a rank alone if it is -1, with no collective yet.
Traffic trafficOf(const plan::Plan &plan, CollectiveKind kind, int group);

/// Multiprocessors that the kernels of a large collective may take: 0 for copy engines.
int32_t kernelMultiprocessors(plan::Transport transport);

/// Chooses their transport. All collectives of a channel use the same one: a channel is one
/// communicator, and NCCL decides once per communicator whether to use copy engines.
plan::Transport chooseTransport(const Device &device, const Traffic &traffic);

/// The transport of gathers inside of layers, of `wholeBytes` each, for which ops may have to wait.
plan::Transport chooseLayerGather(const plan::Plan &plan, int group, int64_t wholeBytes);

/// GB/s at which a rank receives an all-gather of `wholeBytes` in total. 0 for a single member.
double gatherGBs(const Device &device, plan::Transport transport, int64_t wholeBytes,
                 const Team &team);

} // namespace shardc::predict
