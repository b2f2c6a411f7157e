#include "compiler/predict/MeasuredRates.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "compiler/predict/DeviceTable.h"

namespace shardc::predict {
namespace {

/// The rate at `x` between the measurements around it; constant outside. By `x`, the highest rate
/// of each.
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

/// The measured collective that moves as many bytes over the same links.
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

/// How far a measured group is from a wanted one; nothing if it tells nothing of it. A group inside
/// a node says nothing of links between nodes, and the other way round.
std::optional<double> distanceOf(const Rate &rate, int64_t members, int64_t inNode) {
  int64_t measuredMembers = rate.size("members"), measuredInNode = rate.size("in_node");
  bool isInside = members == inNode, isMeasuredInside = measuredMembers == measuredInNode;
  if (isInside != isMeasuredInside)
    return std::nullopt;
  auto far = [](int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  double distance = far(members, measuredMembers) + (measuredMembers < members ? 0.5 : 0);
  // What differs in a node matters first: its adapters share the bytes.
  return isInside ? distance : 100 * far(inNode, measuredInNode) + distance;
}

} // namespace

std::shared_ptr<const MeasuredRates> MeasuredRates::ofPlan(std::span<const std::string> words) {
  std::vector<Rate> rates;
  for (const std::string &each : words)
    if (std::optional<Rate> rate = Rate::ofWords(each))
      rates.push_back(std::move(*rate));
  return rates.empty() ? nullptr : std::make_shared<const MeasuredRates>(std::move(rates));
}

std::optional<double> MeasuredRates::productTflops(DType type, double extent) const {
  std::map<double, double> rates;
  for (const Rate &rate : rates_)
    if (rate.kind == RateKind::Product &&
        (rate.dtype == type || (isFloat8(type) && isFloat8(rate.dtype))))
      keepHighest(rates,
                  static_cast<double>(std::min({rate.size("m"), rate.size("n"), rate.size("k")})),
                  rate.rate());
  return between(rates, extent);
}

std::optional<double> MeasuredRates::attentionTflops(DType type, int64_t channels, double positions,
                                                     bool isBackward) const {
  std::map<double, double> rates;
  std::optional<double> nearest;
  auto far = [&](const Rate &rate) {
    return std::abs(
        std::log2(static_cast<double>(channels) / static_cast<double>(rate.size("channels"))));
  };
  auto isOfIt = [&](const Rate &rate) {
    return rate.kind == RateKind::Attention && rate.dtype == type &&
           rate.op == (isBackward ? "attention_bwd" : "attention");
  };
  for (const Rate &rate : rates_)
    if (isOfIt(rate))
      nearest = std::min(nearest.value_or(far(rate)), far(rate));
  for (const Rate &rate : rates_)
    if (isOfIt(rate) && far(rate) == *nearest)
      keepHighest(rates, static_cast<double>(rate.size("positions")), rate.rate());
  return between(rates, positions);
}

std::optional<double> MeasuredRates::ofLargest(std::string_view op) const {
  const Rate *largest = nullptr;
  for (const Rate &rate : rates_)
    if (rate.kind == RateKind::Memory && rate.op == op &&
        (!largest || rate.size("bytes") > largest->size("bytes")))
      largest = &rate;
  return largest ? std::optional(largest->rate()) : std::nullopt;
}

std::optional<double> MeasuredRates::hostGBs() const {
  std::optional<double> to = ofLargest("to_device"), from = ofLargest("to_host");
  return to && from ? std::min(*to, *from) : to ? to : from;
}

std::optional<RatedLink> MeasuredRates::link(CollectiveKind kind, int64_t members,
                                             int64_t inNode) const {
  bool isPair = isPointToPoint(kind) || kind == CollectiveKind::Shift;
  auto distance = [&](const Rate &rate) -> std::optional<double> {
    if (rate.kind != RateKind::Collective || rate.op != measuredAs(kind))
      return std::nullopt;
    return isPair ? distanceOf(rate, 2, std::min<int64_t>(inNode, inNode == members ? 2 : 1))
                  : distanceOf(rate, members, inNode);
  };
  std::optional<double> least;
  for (const Rate &rate : rates_)
    if (std::optional<double> far = distance(rate); far && (!least || *far < *least))
      least = far;
  if (!least)
    return std::nullopt;
  RatedLink link;
  for (const Rate &rate : rates_)
    if (distance(rate) == least) {
      link.points.push_back({rate.work(), rate.seconds});
      if (!isPair && members != inNode)
        link.faster = static_cast<double>(inNode) / static_cast<double>(rate.size("in_node"));
    }
  std::ranges::sort(link.points, {}, &RatedLink::Point::bytes);
  // Noise must not make more bytes take less time.
  for (size_t i = 1; i < link.points.size(); ++i)
    link.points[i].seconds = std::max(link.points[i].seconds, link.points[i - 1].seconds * 1.0001);
  return link;
}

void MeasuredRates::applyTo(Device &device) const {
  device.sustained.memoryGBs = memoryGBs().value_or(device.sustained.memoryGBs);
  device.pcieGBs = hostGBs().value_or(device.pcieGBs);
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
