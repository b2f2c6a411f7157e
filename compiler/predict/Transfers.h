// Predicts times of collectives from properties of links: within an NVLink domain, between nodes,
// over PCIe. The numbers are in LinkTable.def and DeviceTable.def.
#pragma once

#include <optional>
#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// The plan's device, with the measured rates that the plan contains; empty if the plan names no
/// device.
std::optional<Device> plannedDevice(const plan::Plan &plan);

/// The device whose predictions guide compilation. If times cannot be predicted for the plan's
/// device, it is the GPU whose links were measured.
Device deviceOf(const plan::Plan &plan);

/// The ranks of a collective and their placement.
struct Team {
  int64_t members = 1;
  int64_t inNode = 1;   ///< members per node
  int64_t inDomain = 1; ///< members per NVLink domain
};

/// The placement of a group of the plan. Ranks fill one node after the other. An NVLink domain is
/// inside a node, unless the device's domain is larger than a node, as in rack-scale systems.
Team teamOf(const Device &device, const plan::Plan &plan, int group);

/// The placement of a group whose members are `stride` ranks apart, on nodes of `node` ranks.
Team teamOf(const Device &device, int64_t node, int64_t members, int64_t stride);

/// Seconds of a collective without overlap. `wholeBytes`: size of the full value, after gathering
/// or before reducing. 0 for a single member.
double collectiveSeconds(const Device &device, CollectiveKind kind, plan::Transport transport,
                         int64_t wholeBytes, const Team &team);

/// Seconds of a collective to which the slowdown of overlapping kernels is proportional. The
/// slowdown depends on the bytes, which a slow link only spreads over more time. So this is the
/// duration of the same collective on as many H200s of one NVLink domain, at most `took`, the real
/// duration.
double contendingSeconds(CollectiveKind kind, plan::Transport transport, int64_t wholeBytes,
                         int64_t members, double took);

/// The collectives of one kind on a channel.
struct Traffic {
  CollectiveKind kind;
  Team team;
  std::vector<int64_t> wholeBytes; ///< size of each full value
  bool hasWindows = false;         ///< the buffers are registered as windows
  bool isDeterministic = false;    ///< reductions must be bitwise equal for every transport
  bool isAwaited = false;          ///< whether ops may wait for their end, not only their start
};

/// Traffic of a group of the plan, without any bytes; group -1 is a single rank.
Traffic trafficOf(const plan::Plan &plan, CollectiveKind kind, int group);

/// Streaming multiprocessors that the kernels of a large collective may occupy; 0 for copy engines.
int32_t kernelMultiprocessors(plan::Transport transport);

/// Chooses the transport of a channel. All collectives of a channel share it: a channel is one
/// communicator, and NCCL decides once per communicator whether to use copy engines.
plan::Transport chooseTransport(const Device &device, const Traffic &traffic);

/// The transport of gathers inside layers, each of `wholeBytes` bytes. Ops may have to wait for
/// them.
plan::Transport chooseLayerGather(const plan::Plan &plan, int group, int64_t wholeBytes);

/// Bandwidth in GB/s at which a rank receives an all-gather of `wholeBytes` bytes in total. 0 for a
/// single member.
double gatherGBs(const Device &device, plan::Transport transport, int64_t wholeBytes,
                 const Team &team);

} // namespace shardc::predict
