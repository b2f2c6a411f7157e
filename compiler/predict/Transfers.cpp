#include "compiler/predict/Transfers.h"

#include <algorithm>

#include "compiler/predict/MeasuredRates.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::predict {
namespace {

using plan::Transport;

/// Maximum number of GPUs per node. A larger NVLink domain spans nodes.
constexpr int64_t kNodeGpusMax = 8;
/// Latency of a collective over a network or a bus.
constexpr double kFarSeconds = 60e-6;
/// Fraction of the bandwidth of a network or a bus that collectives reach.
constexpr double kReached = 0.85;

constexpr double kBytesPerMiB = 1 << 20;

/// A measured collective: the bytes of the whole value in MiB, and its time in microseconds.
struct TimeRow {
  CollectiveKind kind;
  Transport transport;
  int64_t members;
  double wholeMiB, micros;
};

struct LostRow {
  CollectiveKind kind;
  Transport transport;
  double share;
};

constexpr TimeRow kTimes[] = {
#define TIME(collective, way, members, mib, us)                                                    \
  {CollectiveKind::collective, Transport::way, members, mib, us},
#include "compiler/predict/LinkTable.def"
};

constexpr LostRow kLost[] = {
#define LOST(collective, way, share) {CollectiveKind::collective, Transport::way, share},
#include "compiler/predict/LinkTable.def"
};

constexpr bool hasTime(CollectiveKind kind, Transport transport) {
  bool isThere = false;
  for (const TimeRow &row : kTimes)
    isThere |= row.kind == kind && row.transport == transport;
  return isThere;
}
constexpr bool isMeasured(CollectiveKind kind, Transport transport) {
  bool hasLost = false;
  for (const LostRow &row : kLost)
    hasLost |= row.kind == kind && row.transport == transport;
  return hasLost && hasTime(kind, transport);
}
/// The measured collective whose time and slowdown stand for `kind`, because it moves as many bytes
/// over the same links.
constexpr CollectiveKind measuredAs(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllReduceMax:
    return CollectiveKind::AllReduce;
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift: // like gathers of two members
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return CollectiveKind::AllGather;
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllReduce:
    return kind;
  }
  return kind;
}
constexpr bool isOfTwo(CollectiveKind kind) {
  return isPointToPoint(kind) || kind == CollectiveKind::Shift;
}
constexpr bool areAllMeasured() {
  for (size_t kind = 0; kind < kCollectiveKindCount; ++kind)
    if (!isMeasured(measuredAs(static_cast<CollectiveKind>(kind)), Transport::Nccl))
      return false;
  return true;
}
static_assert(areAllMeasured(), "LinkTable.def has rows of NCCL's kernels for every collective");

/// The bytes that a rank receives in a collective on `wholeBytes` bytes.
double bytesTakenIn(CollectiveKind kind, double wholeBytes, int64_t members) {
  auto parts = static_cast<double>(members);
  double moved = wholeBytes * (parts - 1) / parts;
  return hasParts(kind) ? moved : isOfTwo(kind) ? wholeBytes : 2 * moved;
}

/// Seconds as a function of the bytes that a rank receives: linear between at least two points, and
/// beyond them.
class Curve {
public:
  void add(double bytes, double seconds) { points_.push_back({bytes, seconds}); }
  size_t size() const { return points_.size(); }

  double at(double bytes) const {
    size_t next = 1;
    while (next + 1 < points_.size() && bytes > points_[next].bytes)
      ++next;
    return points_[next].seconds + (bytes - points_[next].bytes) * slopeTo(next);
  }
  double startSeconds() const { return at(0); }
  /// The bandwidth of large transfers.
  double bytesPerSecond() const { return 1 / slopeTo(points_.size() - 1); }

  /// The curve of a link with `times` times the bandwidth and an unchanged latency.
  Curve faster(double times) const {
    Curve scaled;
    for (const Point &point : points_)
      scaled.add(point.bytes, startSeconds() + (point.seconds - startSeconds()) / times);
    return scaled;
  }

private:
  struct Point {
    double bytes, seconds;
  };

  double slopeTo(size_t i) const {
    return (points_[i].seconds - points_[i - 1].seconds) /
           (points_[i].bytes - points_[i - 1].bytes);
  }

  llvm::SmallVector<Point, 4> points_;
};

/// The time of a collective, and the slowdown of overlapping products as a fraction of it.
struct Link {
  Curve time;
  double lost;
};

Curve measuredTime(CollectiveKind kind, Transport transport, int64_t members) {
  auto isOfIt = [&](const TimeRow &row) { return row.kind == kind && row.transport == transport; };
  int64_t group = 0; // the smallest measured group with at least as many members, else the largest
  for (const TimeRow &row : kTimes)
    if (isOfIt(row) && group < members)
      group = row.members;
  Curve curve;
  if (llvm::count_if(kTimes, isOfIt) == 1)
    curve.add(0, measuredTime(kind, Transport::Nccl, members).startSeconds());
  for (const TimeRow &row : kTimes)
    if (isOfIt(row) && row.members == group)
      curve.add(bytesTakenIn(kind, row.wholeMiB * kBytesPerMiB, group), row.micros * 1e-6);
  return curve;
}

/// The link between H200s of one NVLink domain; that of NCCL's kernels if the transport was not
/// measured.
Link measuredLink(CollectiveKind kind, Transport transport, int64_t members) {
  if (CollectiveKind like = measuredAs(kind); like != kind) {
    Link link = measuredLink(like, Transport::Nccl, isOfTwo(kind) ? 2 : members);
    if (hasTime(kind, Transport::Nccl))
      link.time = measuredTime(kind, Transport::Nccl, members);
    return link;
  }
  Transport way = isMeasured(kind, transport) ? transport : Transport::Nccl;
  const LostRow *row = llvm::find_if(
      kLost, [&](const LostRow &row) { return row.kind == kind && row.transport == way; });
  return {measuredTime(kind, way, members), row->share};
}

/// The link of a team outside of one NVLink domain. If the team spans nodes, each member in a node
/// has an adapter that carries its share of the bytes between nodes; NVLink forwards them inside
/// the node.
Link farLink(const Device &device, const Team &team, const Link &near) {
  bool isOneNode = team.inNode == team.members;
  double gbs = std::min(kReached * device.peak.hostGBs, device.sustained.hostGBs);
  if (!isOneNode && device.networkGBs > 0) {
    double inside = team.inDomain == team.inNode ? near.time.bytesPerSecond() * 1e-9 : gbs;
    gbs = kReached * device.networkGBs * static_cast<double>(team.inNode);
    if (team.inNode > 1)
      gbs = std::min(gbs, inside);
  }
  // Two points make a line: a constant time, and more at `gbs` from there.
  Curve time;
  time.add(0, kFarSeconds);
  constexpr int64_t kSecond = int64_t{1} << 20;
  time.add(kSecond, kFarSeconds + kSecond / (gbs * 1e9));
  return {time, near.lost};
}

/// The curve of a measured group with the same placement; empty if the rates file has none. Bytes
/// count what one member receives.
std::optional<Curve> ratedTime(const Device &device, CollectiveKind kind, const Team &team) {
  if (!device.rates)
    return std::nullopt;
  std::optional<RatedLink> rated = device.rates->link(kind, team.members, team.inNode);
  if (!rated)
    return std::nullopt;
  Curve curve;
  if (rated->points.size() == 1)
    curve.add(0, 0);
  for (const RatedLink::Point &point : rated->points)
    curve.add(point.bytes, point.seconds);
  return curve.faster(rated->faster);
}

/// Links of other devices were not measured: they are assumed to be those of H200 with another
/// bandwidth.
Link linkOf(const Device &device, CollectiveKind kind, Transport transport, const Team &team) {
  if (std::optional<Curve> rated = ratedTime(device, kind, team))
    return {*rated, measuredLink(kind, transport, team.members).lost};
  double times = device.sustained.nvlinkGBs / predict::device(Gpu::H200).sustained.nvlinkGBs;
  Link near = measuredLink(kind, transport, team.members);
  if (times > 0)
    near.time = near.time.faster(times);
  return team.inDomain == team.members && times > 0 ? near : farLink(device, team, near);
}

/// Whether collectives can use the transport. Transport Window is never requested: NCCL itself
/// chooses kernels between windows if buffers are windows.
bool isOpen(const Traffic &traffic, Transport transport) {
  const Team &team = traffic.team;
  switch (transport) {
  case Transport::Nccl:
    return true;
  case Transport::Window:
    return false;
  case Transport::Ce: // needs windows, and NVLink between all members of one node
    return traffic.hasWindows && team.inNode == team.members && team.inDomain == team.members;
  case Transport::Exchange:
    return isSum(traffic.kind);
  }
  return false;
}

/// The cost of collectives: the slowdown of overlapping products, plus the time for which ops wait:
/// all of the collective's time if ops wait for its end, otherwise its latency.
double lostSeconds(const Device &device, const Traffic &traffic, Transport transport) {
  double sum = 0;
  for (int64_t bytes : traffic.wholeBytes) {
    Link link = linkOf(device, traffic.kind, transport, traffic.team);
    double seconds = collectiveSeconds(device, traffic.kind, transport, bytes, traffic.team);
    sum += (traffic.isAwaited ? seconds : link.time.startSeconds()) + link.lost * seconds;
  }
  return sum;
}

/// Number of a group's members among `ranks` consecutive ranks.
int64_t membersAmong(const plan::Plan &plan, const plan::Group &group, int64_t ranks) {
  int64_t count = 1, stride = 1;
  for (size_t axis = plan.mesh.size(); axis-- > 0; stride *= plan.mesh[axis].size)
    if (std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end())
      count *= std::clamp<int64_t>(ranks / stride, 1, plan.mesh[axis].size);
  return count;
}

/// Ranks in one NVLink domain, if nodes have `node` ranks.
int64_t domainOf(const Device &device, int64_t node) {
  auto domain = static_cast<int64_t>(device.nvlinkDomain);
  return domain > kNodeGpusMax ? domain : std::min(domain, node);
}

} // namespace

std::optional<Device> plannedDevice(const plan::Plan &plan) {
  std::optional<Gpu> gpu = findDevice(plan.needsGpu);
  if (!gpu)
    return std::nullopt;
  Device planned = device(*gpu);
  planned.rates = MeasuredRates::ofPlan(plan.job.derived.rates);
  if (planned.rates) {
    planned.rates->applyTo(planned);
    planned.measured = true;
  }
  return planned;
}

Device deviceOf(const plan::Plan &plan) {
  std::optional<Device> planned = plannedDevice(plan);
  return planned && planned->isPredicted() ? *planned : device(Gpu::H200);
}

Team teamOf(const Device &device, const plan::Plan &plan, int group) {
  const plan::Group &ranks = plan.groups[static_cast<size_t>(group)];
  int64_t nodes = std::max<int64_t>(plan.job.derived.nodes, 1);
  int64_t node = (plan.worldSize() + nodes - 1) / nodes;
  return {plan.groupSize(group), membersAmong(plan, ranks, node),
          membersAmong(plan, ranks, domainOf(device, node))};
}

Team teamOf(const Device &device, int64_t node, int64_t members, int64_t stride) {
  auto among = [&](int64_t ranks) { return std::clamp<int64_t>(ranks / stride, 1, members); };
  return {members, among(node), among(domainOf(device, node))};
}

double collectiveSeconds(const Device &device, CollectiveKind kind, Transport transport,
                         int64_t wholeBytes, const Team &team) {
  if (team.members < 2)
    return 0;
  Link link = linkOf(device, kind, transport, team);
  return link.time.at(bytesTakenIn(kind, static_cast<double>(wholeBytes), team.members));
}

double contendingSeconds(CollectiveKind kind, Transport transport, int64_t wholeBytes,
                         int64_t members, double took) {
  Team near = {members, members, members};
  return std::min(took, collectiveSeconds(device(Gpu::H200), kind, transport, wholeBytes, near));
}

int32_t kernelMultiprocessors(Transport transport) {
  switch (transport) {
#define MULTIPROCESSORS(way, count)                                                                \
  case Transport::way:                                                                             \
    return count;
#include "compiler/predict/LinkTable.def"
  }
  return 0;
}

Transport chooseTransport(const Device &device, const Traffic &traffic) {
  if (traffic.isDeterministic && isSum(traffic.kind))
    return Transport::Exchange;
  Transport best = Transport::Nccl;
  for (Transport transport : {Transport::Window, Transport::Ce, Transport::Exchange})
    if (isOpen(traffic, transport) &&
        lostSeconds(device, traffic, transport) < lostSeconds(device, traffic, best))
      best = transport;
  return best;
}

Traffic trafficOf(const plan::Plan &plan, CollectiveKind kind, int group) {
  Traffic traffic;
  traffic.kind = kind;
  if (group >= 0)
    traffic.team = teamOf(deviceOf(plan), plan, group);
  traffic.hasWindows = plan.job.ddp.ncclUb && !plan.job.ddp.disableSymmetricRegistration;
  return traffic;
}

Transport chooseLayerGather(const plan::Plan &plan, int group, int64_t wholeBytes) {
  const Device device = deviceOf(plan);
  Traffic traffic = trafficOf(plan, CollectiveKind::AllGather, group);
  traffic.wholeBytes = {wholeBytes};
  traffic.isAwaited = true;
  return chooseTransport(device, traffic);
}

double gatherGBs(const Device &device, Transport transport, int64_t wholeBytes, const Team &team) {
  if (team.members < 2)
    return 0;
  double seconds =
      collectiveSeconds(device, CollectiveKind::AllGather, transport, wholeBytes, team);
  return bytesTakenIn(CollectiveKind::AllGather, static_cast<double>(wholeBytes), team.members) /
         seconds * 1e-9;
}

} // namespace shardc::predict
