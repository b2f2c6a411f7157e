#include "compiler/predict/MeasuredRates.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/predict/DeviceTable.h"

namespace shardc::predict {
namespace {

/// The rate at `x`, interpolated between the neighbouring measurements; constant outside. `rates`
/// has the highest rate that was measured at each x.
std::optional<double> between(const std::map<double, double> &rates, double x) {
  if (rates.empty())
    return std::nullopt;
  auto next = rates.lower_bound(x);
  if (next == rates.begin())
    return next->second;
  auto last = std::prev(next);
  if (next == rates.end())
    return last->second;
  double share = std::log(x / last->first) / std::log(next->first / last->first);
  return last->second + share * (next->second - last->second);
}

void keepHighest(std::map<double, double> &rates, double x, double rate) {
  double &kept = rates[x];
  kept = std::max(kept, rate);
}

bool isFloat8(DType type) { return type == DType::F8E4M3 || type == DType::F8E5M2; }

/// The measured collective that stands for `kind`, because it moves as many bytes over the same
/// links.
std::string_view measuredAs(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllReduce:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Send:
    return toString(kind);
  case CollectiveKind::AllReduceMax:
    return toString(CollectiveKind::AllReduce);
  case CollectiveKind::Recv:
  case CollectiveKind::Shift:
    return toString(CollectiveKind::Send);
  }
  return "";
}

/// The distance of a measured group from the requested one; empty if they are not comparable. Rates
/// inside a node say nothing about links between nodes, and vice versa.
std::optional<double> distanceOf(int64_t measured, int64_t measuredInNode, int64_t members,
                                 int64_t inNode) {
  if ((members == inNode) != (measured == measuredInNode))
    return std::nullopt;
  auto far = [](int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  double distance = far(members, measured) + (measured < members ? 0.5 : 0);
  // Between nodes, the number of ranks per node counts more, because these share the bandwidth of
  // the network adapters.
  return members == inNode ? distance : 100 * far(inNode, measuredInNode) + distance;
}

} // namespace

/// Sorts measurements by what they depend on: products by their smallest dimension, attention by
/// channels and positions, copies by bytes, collectives by group. Times of collectives are made
/// monotonic in size.
MeasuredRates::MeasuredRates(const std::vector<Rate> &rates) {
  for (const Rate &rate : rates) {
    auto of = [&rate](std::string_view size) { return static_cast<double>(rate.size(size)); };
    switch (rate.kind) {
    case RateKind::Product:
      keepHighest(products_[isFloat8(rate.dtype) ? DType::F8E4M3 : rate.dtype],
                  std::min({of("m"), of("n"), of("k")}), rate.rate());
      break;
    case RateKind::Attention:
      keepHighest(attention_[{rate.dtype, rate.op == "attention_bwd"}][rate.size("channels")],
                  of("positions"), rate.rate());
      break;
    case RateKind::Memory:
      keepHighest(memory_[rate.op], of("bytes"), rate.rate());
      break;
    case RateKind::Collective: {
      std::vector<Group> &groups = links_[rate.op];
      int64_t members = rate.size("members"), inNode = rate.size("in_node");
      auto same = std::ranges::find_if(groups, [&](const Group &group) {
        return group.members == members && group.inNode == inNode;
      });
      if (same == groups.end())
        same = groups.insert(same, {members, inNode, {}});
      same->points.push_back({rate.work(), rate.seconds});
      break;
    }
    }
  }
  for (auto &[op, groups] : links_)
    for (Group &group : groups) {
      std::ranges::sort(group.points, {}, &RatedLink::Point::bytes);
      // A larger transfer must not take less time because of noise.
      for (size_t i = 1; i < group.points.size(); ++i)
        group.points[i].seconds =
            std::max(group.points[i].seconds, group.points[i - 1].seconds * 1.0001);
    }
}

std::shared_ptr<const MeasuredRates> MeasuredRates::ofPlan(std::span<const std::string> words) {
  std::vector<Rate> rates;
  for (const std::string &each : words)
    if (std::optional<Rate> rate = Rate::ofWords(each))
      rates.push_back(std::move(*rate));
  return rates.empty() ? nullptr : std::make_shared<const MeasuredRates>(rates);
}

std::optional<double> MeasuredRates::productTflops(DType type, double extent) const {
  auto found = products_.find(isFloat8(type) ? DType::F8E4M3 : type);
  return found == products_.end() ? std::nullopt : between(found->second, extent);
}

std::optional<double> MeasuredRates::attentionTflops(DType type, int64_t channels, double positions,
                                                     bool isBackward) const {
  auto found = attention_.find({type, isBackward});
  if (found == attention_.end())
    return std::nullopt;
  auto far = [&](const auto &entry) {
    return std::abs(std::log2(static_cast<double>(channels) / static_cast<double>(entry.first)));
  };
  auto nearest = std::ranges::min_element(found->second, {}, far);
  return between(nearest->second, positions);
}

std::optional<double> MeasuredRates::largestOf(const std::string &op) const {
  auto found = memory_.find(op);
  return found == memory_.end() ? std::nullopt : std::optional(found->second.rbegin()->second);
}

std::optional<double> MeasuredRates::hostGBs() const {
  std::optional<double> to = largestOf("to_device"), from = largestOf("to_host");
  return to && from ? std::min(*to, *from) : to ? to : from;
}

std::optional<RatedLink> MeasuredRates::link(CollectiveKind kind, int64_t members,
                                             int64_t inNode) const {
  auto found = links_.find(std::string(measuredAs(kind)));
  if (found == links_.end())
    return std::nullopt;
  bool isPair = isPointToPoint(kind) || kind == CollectiveKind::Shift;
  if (isPair)
    inNode = inNode == members ? 2 : 1, members = 2;
  const Group *nearest = nullptr;
  double least = 0;
  for (const Group &group : found->second)
    if (std::optional<double> far = distanceOf(group.members, group.inNode, members, inNode);
        far && (!nearest || *far < least))
      nearest = &group, least = *far;
  if (!nearest)
    return std::nullopt;
  double faster =
      members == inNode ? 1 : static_cast<double>(inNode) / static_cast<double>(nearest->inNode);
  return RatedLink{nearest->points, faster};
}

void MeasuredRates::applyTo(Device &device) const {
  device.sustained.memoryGBs = memoryGBs().value_or(device.sustained.memoryGBs);
  device.sustained.hostGBs = hostGBs().value_or(device.sustained.hostGBs);
}

std::vector<std::string> MeasuredRates::lacking(DType compute, bool usesFp8, int64_t gpusPerNode,
                                                int64_t nodes) const {
  std::vector<std::string> found;
  auto need = [&](bool isThere, std::string what) {
    if (!isThere)
      found.push_back(std::move(what));
  };
  need(productTflops(compute, 1).has_value(), fmt::format("products of {}", dtypeName(compute)));
  if (usesFp8)
    need(productTflops(DType::F8E4M3, 1).has_value(), "products of 8 bits");
  for (bool isBackward : {false, true})
    need(attentionTflops(compute, 128, 1, isBackward).has_value(),
         fmt::format("{}attention of {}", isBackward ? "gradients of " : "", dtypeName(compute)));
  need(memoryGBs().has_value(), "copies");
  for (CollectiveKind kind :
       {CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllReduce,
        CollectiveKind::AllToAll, CollectiveKind::Send}) {
    if (gpusPerNode > 1)
      need(link(kind, gpusPerNode, gpusPerNode).has_value(),
           fmt::format("{} inside a node", toString(kind)));
    if (nodes > 1)
      need(link(kind, nodes, 1).has_value(), fmt::format("{} between nodes", toString(kind)));
  }
  return found;
}

} // namespace shardc::predict
