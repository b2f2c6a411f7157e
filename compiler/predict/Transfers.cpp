#include "compiler/predict/Transfers.h"

#include <algorithm>

namespace shardc::predict {
namespace {

using plan::OpKind;
using plan::Transport;

/// No node has more GPUs: a larger NVLink domain spans nodes.
constexpr int64_t kNodeGpusMax = 8;
/// Until the first bytes of a collective have come over a network or a bus.
constexpr double kFarSeconds = 60e-6;
/// Share of the rate of a network or a bus that collectives reach.
constexpr double kReached = 0.85;

/// A start-up time, what a rank takes in, and what products beside it lose, as a share of the time.
struct Link {
  double alphaSeconds, gbs, lost;
};

struct LinkRow {
  OpKind kind;
  Transport transport;
  int64_t members;
  Link link;
};

/// Between H200s of one NVLink domain; NCCL's kernels where nothing was measured.
Link measuredLink(OpKind kind, Transport transport, int64_t members) {
  static constexpr LinkRow kRows[] = {
#define LINK(collective, way, from, alpha, gbs, lost)                                              \
  {OpKind::collective, Transport::way, from, {(alpha)*1e-6, gbs, lost}},
#include "compiler/predict/LinkTable.def"
  };
  const LinkRow *found = nullptr;
  for (Transport way : {Transport::Nccl, transport})
    for (const LinkRow &row : kRows)
      if (row.kind == kind && row.transport == way && (row.members <= members || !found))
        found = &row;
  return found ? found->link : measuredLink(OpKind::ReduceScatter, Transport::Nccl, members);
}

/// What a rank takes in where the team spans nodes: each of a node's members has an adapter, which
/// carries its share of what crosses, and inside the node it goes on over NVLink.
Link farLink(const Device &device, const Team &team, const Link &near) {
  bool isOneNode = team.inNode == team.members;
  if (isOneNode || device.networkGBs <= 0)
    return {kFarSeconds, kReached * device.pcieGBs, near.lost};
  double network = kReached * device.networkGBs * static_cast<double>(team.inNode);
  double inside = team.inDomain == team.inNode ? near.gbs : kReached * device.pcieGBs;
  return {kFarSeconds, team.inNode > 1 ? std::min(network, inside) : network, near.lost};
}

Link linkOf(const Device &device, OpKind kind, Transport transport, const Team &team) {
  double base = predict::device(Gpu::H200).sustained.nvlinkGBs;
  Link near = measuredLink(kind, transport, team.members);
  near.gbs *= device.sustained.nvlinkGBs / base;
  return team.inDomain == team.members && near.gbs > 0 ? near : farLink(device, team, near);
}

double bytesTakenIn(OpKind kind, int64_t wholeBytes, int64_t members) {
  double moved = static_cast<double>(wholeBytes) * static_cast<double>(members - 1) /
                 static_cast<double>(members);
  return kind == OpKind::AllReduce ? 2 * moved : moved;
}

/// Whether collectives can go that way. Kernels between windows are NCCL's own choice where windows
/// are: nothing asks for them.
bool isOpen(const Traffic &traffic, Transport transport) {
  const Team &team = traffic.team;
  switch (transport) {
  case Transport::Nccl:
    return true;
  case Transport::Window:
    return false;
  case Transport::Ce: // between windows, over NVLink inside one node
    return traffic.hasWindows && team.inNode == team.members && team.inDomain == team.members;
  case Transport::Exchange:
    return traffic.kind != OpKind::AllGather;
  }
  return false;
}

/// What each collective keeps from running: products beside it while it runs, and whatever waits
/// for it while it starts.
double lostSeconds(const Device &device, const Traffic &traffic, Transport transport) {
  double sum = 0;
  for (int64_t bytes : traffic.wholeBytes) {
    Link link = linkOf(device, traffic.kind, transport, traffic.team);
    sum += link.alphaSeconds +
           link.lost * collectiveSeconds(device, traffic.kind, transport, bytes, traffic.team);
  }
  return sum;
}

/// How many of a group's members there are among `ranks` consecutive ones.
int64_t membersAmong(const plan::Plan &plan, const plan::Group &group, int64_t ranks) {
  int64_t count = 1, stride = 1;
  for (size_t axis = plan.mesh.size(); axis-- > 0; stride *= plan.mesh[axis].size)
    if (std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end())
      count *= std::clamp<int64_t>(ranks / stride, 1, plan.mesh[axis].size);
  return count;
}

} // namespace

Team teamOf(const Device &device, const plan::Plan &plan, int group) {
  const plan::Group &ranks = plan.groups[static_cast<size_t>(group)];
  int64_t nodes = std::max<int64_t>(plan.jobInt("derived.nodes", 1), 1);
  int64_t node = (plan.worldSize() + nodes - 1) / nodes;
  auto domain = static_cast<int64_t>(device.nvlinkDomain);
  Team team;
  team.members = plan.groupSize(group);
  team.inNode = membersAmong(plan, ranks, node);
  team.inDomain =
      membersAmong(plan, ranks, domain > kNodeGpusMax ? domain : std::min(domain, node));
  return team;
}

double collectiveSeconds(const Device &device, OpKind kind, Transport transport, int64_t wholeBytes,
                         const Team &team) {
  if (team.members < 2)
    return 0;
  Link link = linkOf(device, kind, transport, team);
  return link.alphaSeconds + bytesTakenIn(kind, wholeBytes, team.members) / (link.gbs * 1e9);
}

Transport chooseTransport(const Device &device, const Traffic &traffic) {
  if (traffic.isDeterministic && traffic.kind != OpKind::AllGather)
    return Transport::Exchange;
  Transport best = Transport::Nccl;
  for (Transport transport : {Transport::Window, Transport::Ce, Transport::Exchange})
    if (isOpen(traffic, transport) &&
        lostSeconds(device, traffic, transport) < lostSeconds(device, traffic, best))
      best = transport;
  return best;
}

double gatherGBs(const Device &device, Transport transport, int64_t wholeBytes, const Team &team) {
  if (team.members < 2)
    return 0;
  double seconds = collectiveSeconds(device, OpKind::AllGather, transport, wholeBytes, team);
  return bytesTakenIn(OpKind::AllGather, wholeBytes, team.members) / seconds * 1e-9;
}

} // namespace shardc::predict
