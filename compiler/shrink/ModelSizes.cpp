// Chooses the model's sizes: the smallest that keep the model's structure. For example, grouped
// attention stays grouped, a padded vocabulary stays padded, and a model with two kinds of layers
// keeps both.
#include <algorithm>
#include <numeric>

#include "compiler/model/Freeze.h"
#include "compiler/model/LayerList.h"
#include "compiler/shrink/Sizes.h"

namespace shardc::shrink {
namespace {

using config::Config;
using config::Opt;
using config::Value;

constexpr int64_t kHeadSize = 16;
constexpr int64_t kWidthStep = 16;      ///< widths are multiples of this
constexpr int64_t kMicroscaleStep = 32; ///< or of this with MXFP8, where 32 numbers share a scale
constexpr int64_t kLayers = 4;          ///< includes layers that are neither the first nor the last
constexpr int64_t kVocabulary = 512;
constexpr int64_t kByteTokens = 257; ///< the tokens of plain text: 256 bytes and end-of-document
constexpr int64_t kSequence = 32;
constexpr int64_t kExpertsOfRank = 2;

/// `number / whole * smaller`, rounded.
int64_t shareOf(int64_t number, int64_t whole, int64_t smaller) {
  return static_cast<int64_t>(static_cast<double>(number) / static_cast<double>(whole) *
                                  static_cast<double>(smaller) +
                              0.5);
}

class ModelSizes {
public:
  ModelSizes(const Config &config, const Layout &layout, int64_t scale, Changes &changes)
      : config_(config), d_(config.derived()), layout_(layout), scale_(scale), changes_(changes) {}

  void run() {
    shrinkAttention();
    shrinkWidths();
    shrinkLayers();
    shrinkExperts();
    shrinkSequence();
    shrinkVocabulary();
  }

private:
  int64_t number(Opt option) const { return config_.getIntOr(option, 0); }
  bool isInFp8() const { return config_.has(Opt::ModelFp8); }
  int64_t widthStep() const {
    bool isMicroscaled = config_.is(Opt::ModelFp8Recipe, config::Fp8Recipe::Mxfp8);
    return isInFp8() && isMicroscaled ? kMicroscaleStep : kWidthStep;
  }

  // --- heads -------------------------------------------------------------------------------------
  int64_t smallGroups() const {
    int64_t few = std::min<int64_t>(d_.numGroups, 2);
    if (d_.numGroups >= d_.tensorParallel) // tensor parallelism splits the groups
      return std::min(roundUp(few, layout_.tensor), d_.numGroups);
    bool isReplicated = layout_.tensor > few && layout_.tensor % few == 0;
    return isReplicated || layout_.tensor == 1 ? few : 1;
  }

  /// The head size; the number of elements that RoPE rotates must be even.
  int64_t smallHead() const {
    int64_t size = std::min(d_.headSize, kHeadSize * scale_);
    if (config_.has(Opt::ModelMropeSection))
      return d_.headSize; // the sections of M-RoPE add up to the head size
    double share = config_.getFloatOr(Opt::ModelRotaryPercent, 1);
    auto isEven = [&](int64_t head) {
      auto rotated = static_cast<int64_t>(static_cast<double>(head) * share);
      return rotated > 0 && rotated % 2 == 0;
    };
    while (!isEven(size) && size * 2 < d_.headSize)
      size *= 2;
    return isEven(size) ? size : d_.headSize;
  }

  /// Chooses heads, groups and hidden size. The copy keeps relations: several queries per group
  /// stay several, heads divide among tensor-parallel ranks, and a hidden size that differs from
  /// the heads' width stays different.
  void shrinkAttention() {
    int64_t groups = smallGroups();
    int64_t perGroup = std::min<int64_t>(d_.numHeads / d_.numGroups, 2);
    heads_ = roundUp(groups * perGroup, std::lcm(layout_.tensor, groups));
    if (heads_ > d_.numHeads || d_.numHeads % d_.numGroups != 0)
      heads_ = d_.numHeads, groups = d_.numGroups;
    head_ = smallHead();
    changes_.setInt(Opt::ModelNumAttentionHeads, heads_);
    changes_.setOwn(Opt::ModelNumQueryGroups, groups);
    changes_.setOwn(Opt::ModelKvChannels, head_);
    hidden_ = heads_ * head_;
    int64_t step = widthStep() * layout_.tensor;
    // If the heads' total width differs from the hidden size, it must also differ in the copy.
    if (d_.numHeads * d_.headSize != d_.hidden) {
      int64_t heads = hidden_;
      hidden_ =
          roundUp(std::max<int64_t>(shareOf(heads, d_.numHeads * d_.headSize, d_.hidden), 1), step);
      hidden_ += hidden_ == heads && changes_.isOwn(Opt::ModelKvChannels) ? step : 0;
    }
    hidden_ = std::min(hidden_, d_.hidden);
    changes_.setInt(Opt::ModelHiddenSize, hidden_);
    if (config_.isOn(Opt::ModelMultiLatentAttention))
      shrinkLatent();
  }

  void shrinkLatent() {
    int64_t half = std::max<int64_t>(head_ / 4 * 2, 2); // pairs of channels
    if (isInFp8())                                      // one GEMM computes these and the latent
      half = roundUp(half, widthStep());
    changes_.setOwn(Opt::ModelQkHeadDim, std::min(number(Opt::ModelQkHeadDim), head_));
    changes_.setOwn(Opt::ModelQkPosEmbHeadDim, std::min(number(Opt::ModelQkPosEmbHeadDim), half));
    changes_.setOwn(Opt::ModelVHeadDim, std::min(number(Opt::ModelVHeadDim), head_));
    for (Opt rank : {Opt::ModelKvLoraRank, Opt::ModelQLoraRank})
      if (changes_.isOwn(rank))
        changes_.setInt(rank, width(number(rank), 1));
  }

  // --- widths ------------------------------------------------------------------------------------
  /// Scales a width like the hidden size; the result is a multiple of the step for each of `ranks`
  /// ranks.
  int64_t width(int64_t before, int64_t ranks) const {
    return std::min(roundUp(shareOf(before, d_.hidden, hidden_), widthStep() * ranks), before);
  }

  void shrinkWidths() {
    changes_.setOwn(Opt::ModelFfnHiddenSize, width(d_.ffnHidden, layout_.tensor));
    Opt shared = Opt::ModelMoeSharedExpertIntermediateSize, latent = Opt::ModelMoeLatentSize;
    changes_.setOwn(Opt::ModelMoeFfnHiddenSize,
                    width(number(Opt::ModelMoeFfnHiddenSize), layout_.expertTensor));
    changes_.setOwn(shared, width(number(shared), layout_.tensor));
    changes_.setOwn(latent, width(number(latent), layout_.tensor));
  }

  // --- layers ------------------------------------------------------------------------------------
  /// The minimum number of layers with which the copy still has every kind of layer.
  int64_t fewestLayers() const {
    int64_t fewest = kLayers * scale_;
    for (Opt pattern : kPatterns)
      if (config_.has(pattern) && config_.getList(pattern).size() == 1)
        fewest = std::max(fewest, *config_.getList(pattern).front().asInt());
    fewest = std::max(fewest, static_cast<int64_t>(kindsOfLayers().size()));
    if (config_.isOn(Opt::ModelFirstLastLayersBf16))
      fewest = std::max(fewest, number(Opt::ModelNumLayersAtStartInBf16) +
                                    number(Opt::ModelNumLayersAtEndInBf16) + 1);
    return fewest;
  }

  void shrinkLayers() {
    Opt first = Opt::ModelNumLayersInFirstPipelineStage;
    Opt last = Opt::ModelNumLayersInLastPipelineStage;
    layers_ = d_.numLayers;
    if (config_.has(Opt::ModelPipelineModelParallelLayout))
      return; // the option lists the layers of each stage
    chunks_ = layout_.pipeline == 1 ? 1 : std::min<int64_t>(d_.virtualStages, 2);
    if (config_.has(first) || config_.has(last))
      shrinkUneven(first, last);
    else
      shrinkEven();
    changes_.setInt(Opt::ModelNumLayers, layers_);
    changes_.setOwn(Opt::ModelVirtualPipelineModelParallelSize, chunks_);
    for (Opt pattern : kPatterns)
      shrinkPattern(pattern);
    shrinkSymbols();
    shrinkRecompute();
    shrinkFrozen();
    shrinkCounts();
  }

  /// The symbols of the pattern of layers, each once; empty without a pattern.
  std::string kindsOfLayers() const {
    std::string kinds;
    for (char symbol : config_.getStringOr(Opt::ModelHybridLayerPattern, ""))
      if (kinds.find(symbol) == std::string::npos)
        kinds += symbol;
    return kinds;
  }

  void shrinkSymbols() {
    if (!config_.has(Opt::ModelHybridLayerPattern) || layers_ >= d_.numLayers)
      return;
    std::string symbols = kindsOfLayers() + config_.getString(Opt::ModelHybridLayerPattern);
    symbols.resize(static_cast<size_t>(layers_));
    changes_.set(Opt::ModelHybridLayerPattern, Value::ofString(symbols));
  }

  void shrinkEven() {
    int64_t extra = config_.isOn(Opt::ModelAccountForEmbeddingInPipelineSplit) +
                    config_.isOn(Opt::ModelAccountForLossInPipelineSplit);
    int64_t chunks = layout_.pipeline * chunks_;
    int64_t layers = roundUp(std::min(fewestLayers(), d_.numLayers) + extra, chunks) - extra;
    if (layers <= d_.numLayers)
      layers_ = layers;
    else if (layout_.pipeline > 1) // the recipe's layers also fit fewer stages
      chunks_ = d_.virtualStages;
  }

  /// Keeps the first and the last stage smaller than, equal to or larger than the other stages, as
  /// in the recipe.
  void shrinkUneven(Opt first, Opt last) {
    if (layout_.pipeline == 1) {
      changes_.clear(first);
      changes_.clear(last);
      layers_ = std::min(fewestLayers(), d_.numLayers);
      return;
    }
    int64_t ends = config_.has(first) + config_.has(last);
    int64_t between = d_.pipelineParallel - ends;
    int64_t each = between > 0 ? (d_.numLayers - number(first) - number(last)) / between
                               : std::max(number(first), number(last));
    int64_t small = std::min<int64_t>(each / d_.virtualStages, 2); // layers per chunk
    auto ofEnd = [&](Opt stage) {
      int64_t before = number(stage);
      return !config_.has(stage) ? 0 : before < each ? 1 : before > each ? small + 1 : small;
    };
    layers_ = (ofEnd(first) + ofEnd(last) + (layout_.pipeline - ends) * small) * chunks_;
    for (Opt stage : {first, last})
      if (config_.has(stage))
        changes_.setInt(stage, ofEnd(stage) * chunks_);
  }

  /// Shortens a list with one number per layer. Each run of equal numbers keeps one layer if there
  /// are enough layers, and the longest run gets all remaining layers.
  void shrinkPattern(Opt pattern) {
    if (!config_.has(pattern))
      return;
    const Value::List &before = config_.getList(pattern);
    if (static_cast<int64_t>(before.size()) != d_.numLayers || before.size() == 1)
      return;
    std::vector<std::pair<Value, int64_t>> runs;
    for (const Value &value : before)
      if (!runs.empty() && runs.back().first == value)
        ++runs.back().second;
      else
        runs.push_back({value, 1});
    Value::List after;
    auto count = static_cast<int64_t>(runs.size());
    if (count > layers_) {
      after.assign(before.begin(), before.begin() + layers_);
    } else {
      auto longest = std::ranges::max_element(runs, {}, &std::pair<Value, int64_t>::second);
      for (auto run = runs.begin(); run != runs.end(); ++run)
        after.insert(after.end(), static_cast<size_t>(run == longest ? layers_ - count + 1 : 1),
                     run->first);
    }
    changes_.set(pattern, Value::ofList(std::move(after)));
  }

  /// If the compiler chooses recomputation from the device's memory, the copy sets the choice of
  /// each layer explicitly. A layer copies the recipe's list at the same relative depth; without a
  /// list, the first half of the layers is recomputed.
  void shrinkRecompute() {
    if (config_.is(Opt::ModelRecomputeGranularity, config::RecomputeGranularity::Auto))
      shrinkLayerList(Opt::ModelRecomputeLayers, model::kRecomputeWords);
    if (config_.isWritten(Opt::ModelOffloadLayers))
      shrinkLayerList(Opt::ModelOffloadLayers, model::kOffloadWords);
  }

  void shrinkLayerList(Opt option, const model::LayerWords &words) {
    auto layers = static_cast<size_t>(layers_);
    std::vector<model::LayerParts> small(layers);
    std::vector<std::string> entries;
    if (config_.has(option))
      for (const Value &entry : config_.getList(option))
        entries.push_back(*entry.asString());
    std::vector<model::LayerParts> all = model::readLayerList(entries, d_.numLayers, words).layers;
    for (size_t layer = 0; layer < layers; ++layer)
      if (entries.empty())
        small[layer].isFull = layer < (layers + 1) / 2;
      else
        small[layer] = all[layer * all.size() / layers];
    Value::List list;
    for (std::string &entry : model::layerListText(small, words))
      list.push_back(Value::ofString(std::move(entry)));
    changes_.set(option, Value::ofList(std::move(list)));
  }

  /// Freezes about the same fraction of the layers.
  void shrinkFrozen() {
    if (!config_.has(Opt::ModelFreeze))
      return;
    std::vector<std::string> entries;
    for (const Value &entry : config_.getList(Opt::ModelFreeze))
      entries.push_back(*entry.asString());
    Value::List list;
    for (model::Frozen::Entry &entry : model::readFrozen(entries, d_.numLayers).entries) {
      if (entry.last != model::Frozen::kLast) {
        // Leave at least one layer below and above the frozen ones, if the recipe does.
        const int64_t least = std::min<int64_t>(entry.first > 0, layers_ - 1);
        const int64_t most = std::max(layers_ - 1 - int64_t{entry.last + 1 < d_.numLayers}, least);
        entry.first = std::clamp(shareOf(entry.first, d_.numLayers, layers_), least, most);
        int64_t end = shareOf(entry.last + 1, d_.numLayers, layers_);
        entry.last = std::clamp(end - 1, entry.first, most);
      }
      list.push_back(Value::ofString(model::frozenText(entry)));
    }
    changes_.set(Opt::ModelFreeze, Value::ofList(std::move(list)));
  }

  /// Scales the options that hold a number of layers.
  void shrinkCounts() {
    Opt recompute = Opt::ModelRecomputeNumLayers, offload = Opt::ModelCpuOffloadingNumLayers;
    int64_t before = d_.numLayers / d_.pipelineParallel;
    int64_t after = std::max<int64_t>(layers_ / layout_.pipeline, 1);
    auto scaled = [](int64_t count, int64_t whole, int64_t smaller) {
      return count >= whole ? smaller
                            : std::clamp<int64_t>(shareOf(count, whole, smaller), 1,
                                                  std::max<int64_t>(smaller - 1, 1));
    };
    if (config_.has(recompute))
      changes_.setInt(recompute, scaled(number(recompute), before, after));
    if (number(offload) > 0)
      changes_.setInt(offload, scaled(number(offload), d_.numLayers, layers_));
  }

  // --- experts -----------------------------------------------------------------------------------
  void shrinkExperts() {
    Opt experts = Opt::ModelNumMoeExperts, topk = Opt::ModelMoeRouterTopk;
    int64_t before = number(experts);
    if (before == 0)
      return;
    int64_t after = layout_.expert * std::min(before / d_.expertParallel, kExpertsOfRank);
    after =
        std::min(before, roundUp(std::max(after, std::min<int64_t>(before, 4)), layout_.expert));
    Opt groups = Opt::ModelMoeRouterNumGroups, groupTopk = Opt::ModelMoeRouterGroupTopk;
    int64_t chosen = std::min<int64_t>(number(topk), std::max<int64_t>(after / 2, 1));
    if (number(groups) > 1) {
      int64_t some = number(groups);
      while (after % some != 0 || after / some < std::min<int64_t>(before / number(groups), 2))
        --some; // ends at 1 at the latest
      int64_t best = std::clamp<int64_t>(shareOf(number(groupTopk), number(groups), some), 1, some);
      chosen = std::min(chosen, best * (after / some));
      changes_.setInt(groups, some);
      if (config_.has(groupTopk))
        changes_.setInt(groupTopk, best);
    }
    changes_.setInt(experts, after);
    changes_.setInt(topk, chosen);
    if (config_.has(Opt::ModelMoeRouterTopkLimitedDevices))
      changes_.setInt(Opt::ModelMoeRouterTopkLimitedDevices,
                      std::min(number(Opt::ModelMoeRouterTopkLimitedDevices), layout_.expert));
  }

  // --- sequence ----------------------------------------------------------------------------------
  void shrinkSequence() {
    int64_t pieces = 2 * layout_.context * layout_.tensor;
    int64_t sequence = std::min(roundUp(kSequence * scale_, pieces), d_.seqLength);
    if (sequence % pieces != 0) // the recipe's length is shorter and already divisible
      sequence = d_.seqLength;
    changes_.setInt(Opt::ModelSeqLength, sequence);
    changes_.setOwn(Opt::DatasetSeqLength, sequence);
    int64_t positions = d_.maxPositions == d_.seqLength ? sequence : 2 * sequence;
    changes_.setOwn(Opt::ModelMaxPositionEmbeddings, std::min(positions, d_.maxPositions));
    shrinkSteps(Opt::ModelAttentionChunkSize, sequence);
    if (config_.isOn(Opt::ModelAttnTemperatureTuning))
      shrinkSteps(Opt::ModelAttnFloorScale, sequence);
    if (!config_.has(Opt::ModelWindowSize))
      return;
    Value::List window;
    for (const Value &side : config_.getList(Opt::ModelWindowSize)) {
      int64_t width = *side.asInt(); // 0: no position; -1: all
      window.push_back(Value::ofInt(width > 0 ? std::min(width, sequence / 4 - 1) : width));
    }
    changes_.set(Opt::ModelWindowSize, Value::ofList(std::move(window)));
  }

  /// Limits an option, in positions, to a quarter of the sequence, so that a sequence spans several
  /// of them.
  void shrinkSteps(Opt option, int64_t sequence) {
    if (config_.has(option))
      changes_.setInt(option, std::min(number(option), std::max<int64_t>(sequence / 4, 1)));
  }

  // --- vocabulary --------------------------------------------------------------------------------
  /// Keeps the vocabulary if the data are token ids in files.
  void shrinkVocabulary() {
    if (config_.is(Opt::DatasetKind, config::DatasetKind::Indexed))
      return;
    bool pads = config_.isOn(Opt::ModelShouldPadVocab);
    int64_t multiple =
        pads ? number(Opt::ModelMakeVocabSizeDivisibleBy) * layout_.tensor : layout_.tensor;
    int64_t least = std::max(kByteTokens, config_.getIntOr(Opt::DatasetEodToken, 0) + 1);
    int64_t vocabulary = roundUp(std::max(kVocabulary, least), multiple);
    if (pads && d_.paddedVocab != d_.vocab)
      vocabulary = std::max(vocabulary - std::max<int64_t>(multiple / 4, 1), least);
    if (vocabulary < d_.vocab)
      changes_.setOwn(Opt::ModelVocabSize, vocabulary);
  }

  static constexpr Opt kPatterns[] = {Opt::ModelMoeLayerFreq, Opt::ModelLinearAttentionFreq,
                                      Opt::ModelNoRopeFreq, Opt::ModelShortConvFreq,
                                      Opt::ModelWindowAttnSkipFreq};

  const Config &config_;
  const config::Derived &d_;
  const Layout &layout_;
  int64_t scale_;
  Changes &changes_;
  int64_t heads_ = 1, head_ = 1, hidden_ = 1, layers_ = 1, chunks_ = 1;
};

} // namespace

bool Changes::isOwn(Opt option) const {
  return config_.has(option) && config_[option].from.origin != config::Origin::Derived;
}

void Changes::set(Opt option, Value value) {
  if (config_[option].value != value)
    changes_.push_back({option, std::move(value)});
}

void shrinkModel(const Config &config, const Layout &layout, int64_t scale, Changes &changes) {
  ModelSizes(config, layout, scale, changes).run();
}

} // namespace shardc::shrink
