#include "compiler/tools/TuneSmall.h"

#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardc::tools {
namespace {

using config::Opt;

/// Numbers the kinds of layers from 0; equal layers have the same kind. The first and the last
/// layer have separate kinds, because their costs may include ops outside of layers. So do layers
/// whose neighbours have another cost.
std::vector<size_t> kindsOf(const std::vector<PartCost> &layers) {
  std::vector<const PartCost *> costs;
  std::vector<size_t> own, kinds;
  std::map<std::tuple<size_t, size_t, size_t>, size_t> known;
  for (const PartCost &layer : layers) {
    auto at = std::ranges::find_if(costs, [&](const PartCost *cost) { return *cost == layer; });
    own.push_back(static_cast<size_t>(at - costs.begin()));
    if (at == costs.end())
      costs.push_back(&layer);
  }
  size_t last = own.size() - 1;
  for (size_t i = 0; i < own.size(); ++i) {
    bool isEnd = i == 0 || i == last;
    std::tuple key = {isEnd ? costs.size() + i : own[i], i > 1 && !isEnd ? own[i - 1] : own[i],
                      i + 1 < last && !isEnd ? own[i + 1] : own[i]};
    kinds.push_back(known.try_emplace(key, known.size()).first->second);
  }
  return kinds;
}

/// The smallest selection of layers in which each kind occurs: removes the layers between two of
/// the same kind, unless a kind would disappear.
std::vector<size_t> fewestOf(const std::vector<size_t> &kinds) {
  std::vector<size_t> kept(kinds.size()), counts(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    kept[i] = i;
    ++counts[kinds[i]];
  }
  for (size_t begin = 0; begin < kept.size(); ++begin)
    for (size_t end = kept.size(); end-- > begin + 1;) {
      if (kinds[kept[end]] != kinds[kept[begin]])
        continue;
      std::vector<size_t> left = counts;
      for (size_t i = begin + 1; i <= end; ++i)
        --left[kinds[kept[i]]];
      if (std::ranges::any_of(kinds, [&](size_t kind) { return left[kind] == 0; }))
        continue;
      counts = std::move(left);
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(begin) + 1,
                 kept.begin() + static_cast<ptrdiff_t>(end) + 1);
      break;
    }
  return kept;
}

/// An option that gives each layer a property: as a list with one entry per layer, or as a number
/// `n` that selects every n-th layer.
struct Pattern {
  Opt opt;
  int64_t from;    ///< offset of the first of every n-th layer
  int64_t ofEvery; ///< list value of every n-th layer
};
constexpr Pattern kPatterns[] = {{Opt::ModelMoeLayerFreq, 0, 1},
                                 {Opt::ModelNoRopeFreq, 1, 1},
                                 {Opt::ModelLinearAttentionFreq, 1, 0},
                                 {Opt::ModelShortConvFreq, 1, 0},
                                 {Opt::ModelWindowAttnSkipFreq, 1, 0}};

} // namespace

/// Chooses layers that represent all kinds of layers, and shortens options that list a value per
/// layer to these.
SmallModel::SmallModel(const BodyCost &whole, const config::Config &config) {
  if (whole.layers.size() < 2)
    return;
  std::vector<size_t> kinds = kindsOf(whole.layers);
  layers_ = fewestOf(kinds);
  for (size_t kind : kinds)
    standIns_.push_back(static_cast<size_t>(
        std::ranges::find(layers_, kind, [&](size_t layer) { return kinds[layer]; }) -
        layers_.begin()));
  if (constexpr Opt kSymbols = Opt::ModelHybridLayerPattern; config.has(kSymbols)) {
    std::string symbols;
    for (size_t layer : layers_)
      symbols += config.getString(kSymbols)[layer];
    patterns_.push_back(fmt::format("{}={}", config::info(kSymbols).path, symbols));
  }
  for (const Pattern &pattern : kPatterns) {
    if (!config.has(pattern.opt) || config.getList(pattern.opt).empty())
      continue;
    const config::Value::List &list = config.getList(pattern.opt);
    std::vector<int64_t> values;
    for (size_t layer : layers_) {
      int64_t every = *list.front().asInt();
      if (list.size() > 1 || every <= 1)
        values.push_back(*list[layer % list.size()].asInt());
      else
        values.push_back((static_cast<int64_t>(layer) + pattern.from) % every == 0
                             ? pattern.ofEvery
                             : 1 - pattern.ofEvery);
    }
    patterns_.push_back(
        fmt::format("{}=[{}]", config::info(pattern.opt).path, fmt::join(values, ",")));
  }
}

std::vector<std::string> SmallModel::sets(const Layout &layout, const TuneSizes &sizes) const {
  std::vector<std::string> sets = layout.sets();
  int64_t replicas = sizes.ranks / (layout.size(Knob::Tensor) * layout.size(Knob::Context));
  for (std::string set :
       {fmt::format("model.num_layers={}", layers_.size()),
        fmt::format("train.global_batch_size={}", replicas * layout.size(Knob::MicroBatch)),
        std::string("model.pipeline_model_parallel_size=1"),
        std::string("model.virtual_pipeline_model_parallel_size=none"),
        std::string("model.microbatch_group_size_per_vp_stage=none"),
        std::string("model.pipeline_schedule=one_forward_one_backward"),
        std::string("model.pipeline_schedule_csv=none"),
        std::string("model.pipeline_placement=none"), std::string("model.pipeline_split=even")})
    sets.push_back(std::move(set));
  sets.insert(sets.end(), patterns_.begin(), patterns_.end());
  return sets;
}

std::optional<BodyCost> SmallModel::grown(BodyCost cost) const {
  bool hasTimes = !cost.times.seconds.empty();
  if (cost.layers.size() != layers_.size() ||
      (hasTimes && cost.times.seconds.size() != layers_.size()))
    return std::nullopt;
  std::vector<PartCost> layers;
  decltype(cost.times.seconds) seconds;
  for (size_t layer : standIns_) {
    layers.push_back(cost.layers[layer]);
    if (hasTimes)
      seconds.push_back(cost.times.seconds[layer]);
  }
  cost.layers = std::move(layers);
  cost.times.seconds = std::move(seconds);
  return cost;
}

} // namespace shardc::tools
