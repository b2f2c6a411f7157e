#include "runtime/measure/Measure.h"

#include <algorithm>
#include <map>

#include "runtime/base/Reports.h"

namespace shardc::measure {
namespace {

/// Series of work that differs only in size. Larger sizes are left out once they take too long.
class Series {
public:
  explicit Series(double secondsMax) : secondsMax_(secondsMax) {}

  /// Whether this work, extrapolated from the last one of its series, takes no longer than the
  /// limit.
  bool goesOn(const Rate &work) const {
    auto last = last_.find(keyOf(work));
    return last == last_.end() ||
           last->second.seconds * work.work() / last->second.work <= secondsMax_;
  }
  void note(const Rate &work, double seconds) { last_[keyOf(work)] = {work.work(), seconds}; }
  /// Ends a series that cannot be measured at any size.
  void end(const Rate &work) { last_[keyOf(work)] = {1, 1e9}; }

private:
  struct Last {
    double work, seconds;
  };
  static std::string keyOf(const Rate &work) {
    std::string key = fmt::format("{} {}", work.op, dtypeName(work.dtype));
    if (work.kind == RateKind::Attention)
      key += fmt::format(" {}", work.size("channels"));
    return key;
  }

  double secondsMax_;
  std::map<std::string, Last> last_;
};

/// Returns, for each rank, the time of its group: the shortest time of its members, since the
/// member that arrives last does not wait; for a transfer the longest, since it ends when both
/// ranks have ended.
std::vector<double> byGroup(const Grouping &grouping, const Rate &work,
                            const std::vector<double> &seconds) {
  std::vector<double> shared(seconds.size());
  for (const std::vector<int> &group : grouping.groups) {
    std::vector<double> own;
    for (int rank : group)
      own.push_back(seconds[static_cast<size_t>(rank)]);
    double time =
        work.op == "send" ? *std::ranges::max_element(own) : *std::ranges::min_element(own);
    for (int rank : group)
      shared[static_cast<size_t>(rank)] = time;
  }
  return shared;
}

void emit(const MeasureOptions &options, const Rate &work, std::vector<double> seconds) {
  Measured measured{work, std::move(seconds)};
  measured.rate.seconds = medianOf(measured.seconds);
  options.measured(measured);
}

constexpr double kLongestSeconds = 0.5; ///< limit for one call

/// Work that this device refuses ends its series, but not the measurement.
Status measureCompute(Bench &bench, const MeasureOptions &options) {
  Series series(kLongestSeconds);
  for (const Rate &work : computeGrid(options.isQuick)) {
    if (!series.goesOn(work))
      continue;
    ASSIGN_OR_RETURN(Timing timing, bench.compute(work));
    if (!timing.refused.empty()) {
      options.emit(makeReport(report::NotMeasured, work.text(), timing.refused));
      series.end(work);
      continue;
    }
    series.note(work, *std::ranges::max_element(timing.seconds));
    emit(options, work, timing.seconds);
  }
  return Status::ok();
}

/// Groups measure at the same time, each with a channel of its own.
Status measureGrouping(Bench &bench, const Grouping &grouping, const MeasureOptions &options) {
  int rank = bench.device().rank();
  const std::vector<int> *own = nullptr;
  for (const std::vector<int> &group : grouping.groups)
    if (std::ranges::find(group, rank) != group.end())
      own = &group;
  SHARDC_CHECK(own, "rank {} is in no group of {}", rank, grouping.members);
  hal::ChannelDesc desc;
  desc.name = fmt::format("measure {} of {}", grouping.members, grouping.inNode);
  desc.members = *own;
  ASSIGN_OR_RETURN(std::unique_ptr<hal::Channel> channel, bench.backend().createChannel(desc));
  auto index = static_cast<int>(std::ranges::find(*own, rank) - own->begin());
  Series series(kLongestSeconds);
  for (const Rate &work : collectiveGrid(grouping.members, grouping.inNode, options.isQuick)) {
    if (!series.goesOn(work))
      continue;
    ASSIGN_OR_RETURN(Timing timing, bench.collective(work, *channel, index));
    series.note(work, *std::ranges::max_element(timing.seconds));
    emit(options, work, byGroup(grouping, work, timing.seconds));
  }
  return bench.backend().synchronize();
}

/// Returns 2, 4, 8, ... as far as they divide `most`, and `most`.
std::vector<int64_t> sizesUpTo(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size < most; size *= 2)
    if (most % size == 0)
      sizes.push_back(size);
  if (most > 1)
    sizes.push_back(most);
  return sizes;
}

/// Divides ranks into groups of `members` neighbours.
void cut(const std::vector<int> &ranks, int64_t members, std::vector<std::vector<int>> &groups) {
  for (size_t begin = 0; begin < ranks.size(); begin += static_cast<size_t>(members)) {
    auto first = ranks.begin() + static_cast<std::ptrdiff_t>(begin);
    groups.emplace_back(first, first + members);
  }
}

} // namespace

double medianOf(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Result<Nodes> nodesOf(hal::Peers *peers) {
  if (!peers)
    return Nodes{{0}};
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   peers->allGather("finding nodes", std::to_string(peers->localRank())));
  Nodes nodes;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == "0" || nodes.empty())
      nodes.emplace_back();
    nodes.back().push_back(static_cast<int>(rank));
  }
  for (const std::vector<int> &node : nodes)
    if (node.size() != nodes.front().size())
      return makeStatus(report::MeasureRefused,
                        "the first node has {} ranks, but the one of rank {} has {}: groups "
                        "between nodes need as many on each",
                        nodes.front().size(), node.front(), node.size());
  return nodes;
}

std::vector<Grouping> groupingsOf(const Nodes &nodes) {
  std::vector<Grouping> groupings;
  auto perNode = static_cast<int64_t>(nodes.front().size());
  auto count = static_cast<int64_t>(nodes.size());
  for (int64_t members : sizesUpTo(perNode)) {
    Grouping inside{members, members, {}};
    for (const std::vector<int> &node : nodes)
      cut(node, members, inside.groups);
    groupings.push_back(std::move(inside));
  }
  for (int64_t members : sizesUpTo(count)) {
    Grouping between{members, 1, {}};
    for (size_t local = 0; local < nodes.front().size(); ++local) {
      std::vector<int> peers;
      for (const std::vector<int> &node : nodes)
        peers.push_back(node[local]);
      cut(peers, members, between.groups);
    }
    groupings.push_back(std::move(between));
  }
  if (count > 1 && perNode > 1) {
    Grouping all{count * perNode, perNode, {{}}};
    for (const std::vector<int> &node : nodes)
      all.groups.front().insert(all.groups.front().end(), node.begin(), node.end());
    groupings.push_back(std::move(all));
  }
  return groupings;
}

Status measureAll(Bench &bench, const Nodes &nodes, const MeasureOptions &options) {
  RETURN_IF_ERROR(measureCompute(bench, options));
  for (const Grouping &grouping : groupingsOf(nodes))
    RETURN_IF_ERROR(measureGrouping(bench, grouping, options));
  return Status::ok();
}

} // namespace shardc::measure
