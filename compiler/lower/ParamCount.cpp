#include "compiler/lower/ParamCount.h"

namespace shardc::lower {
namespace {

using config::Opt;

// Sizes of a recipe that nothing could hold are still sizes, so sums and products saturate. None is
// negative.
int64_t plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

class Count {
public:
  void add(int64_t rows, int64_t columns = 1) { total_ = plus(total_, times(rows, columns)); }
  int64_t total() const { return total_; }

private:
  int64_t total_ = 0;
};

class Counter {
public:
  explicit Counter(const config::Config &config) : config_(config), d_(config.derived()) {}

  int64_t run() {
    count_.add(d_.paddedVocab, d_.hidden);
    if (config_.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::LearnedAbsolute))
      count_.add(d_.maxPositions, d_.hidden);
    Count dense = countLayer(/*hasExperts=*/false), experts;
    if (config_.has(Opt::ModelNumMoeExperts))
      experts = countLayer(/*hasExperts=*/true);
    int64_t numExpertLayers = 0;
    for (int64_t layer = 0; layer < d_.numLayers && layer < kLayersMax; ++layer)
      numExpertLayers += hasExperts(layer);
    count_.add(dense.total(), d_.numLayers - numExpertLayers);
    count_.add(experts.total(), numExpertLayers);
    addNorm(count_, d_.hidden);
    if (!d_.tied)
      count_.add(d_.paddedVocab, d_.hidden);
    addPredictionLayers(hasExperts(d_.numLayers - 1) ? experts : dense);
    return count_.total();
  }

private:
  /// Layers beyond which a pattern of layers is not looked at.
  static constexpr int64_t kLayersMax = 1'000'000;

  int64_t sizeOf(Opt opt, int64_t otherwise) const { return config_.getIntOr(opt, otherwise); }

  /// moe_layer_freq is a number n, for every n-th layer, or a list of 0 and 1.
  bool hasExperts(int64_t layer) const {
    if (!config_.has(Opt::ModelNumMoeExperts))
      return false;
    if (!config_.has(Opt::ModelMoeLayerFreq))
      return true;
    const config::Value::List &pattern = config_.getList(Opt::ModelMoeLayerFreq);
    if (pattern.size() == 1 && *pattern.front().asInt() > 1)
      return layer % *pattern.front().asInt() == 0;
    if (pattern.empty())
      return true;
    return *pattern[static_cast<size_t>(layer) % pattern.size()].asInt() != 0;
  }

  void addNorm(Count &count, int64_t size) const {
    count.add(size);
    if (config_.is(Opt::ModelNormalization, config::Normalization::LayerNorm))
      count.add(size);
  }

  /// A product from `in` to `out` features.
  static void addLinear(Count &count, int64_t out, int64_t in, bool hasBias) {
    count.add(out, in);
    if (hasBias)
      count.add(out);
  }

  bool hasBias() const { return config_.isOn(Opt::ModelAddBiasLinear); }

  Count countLayer(bool hasExperts) const {
    Count count;
    addNorm(count, d_.hidden);
    if (config_.isOn(Opt::ModelMultiLatentAttention))
      addLatentAttention(count);
    else
      addAttention(count);
    addNorm(count, d_.hidden);
    if (hasExperts)
      addExperts(count);
    else
      addFeedForward(count, d_.ffnHidden, hasBias());
    return count;
  }

  void addAttention(Count &count) const {
    int64_t queries = times(d_.numHeads, d_.headSize), groups = times(d_.numGroups, d_.headSize);
    int64_t gate = config_.isOn(Opt::ModelAttentionOutputGate) ? queries : 0;
    addLinear(count, plus(plus(queries, gate), times(2, groups)), d_.hidden,
              hasBias() || config_.isOn(Opt::ModelAddQkvBias));
    addLinear(count, d_.hidden, queries, hasBias());
    if (config_.isOn(Opt::ModelQkLayernorm)) {
      addNorm(count, d_.headSize);
      addNorm(count, d_.headSize);
    }
    if (config_.is(Opt::ModelSoftmaxType, config::SoftmaxType::Learnable))
      count.add(d_.numHeads); // a sink for each head
  }

  /// Queries, keys and values by way of vectors of a lower rank, which have norms of their own.
  void addLatentAttention(Count &count) const {
    int64_t channels = sizeOf(Opt::ModelQkHeadDim, 1),
            rotated = sizeOf(Opt::ModelQkPosEmbHeadDim, 0);
    int64_t values = sizeOf(Opt::ModelVHeadDim, 1), rank = sizeOf(Opt::ModelKvLoraRank, 1);
    int64_t queries = times(d_.numHeads, plus(channels, rotated));
    bool hasNorms = config_.isOn(Opt::ModelQkLayernorm);
    if (config_.has(Opt::ModelQLoraRank)) {
      int64_t queryRank = config_.getInt(Opt::ModelQLoraRank);
      count.add(queryRank, d_.hidden);
      count.add(queries, queryRank);
      if (hasNorms)
        addNorm(count, queryRank);
    } else {
      count.add(queries, d_.hidden);
    }
    count.add(plus(rank, rotated), d_.hidden);
    count.add(times(d_.numHeads, plus(channels, values)), rank);
    if (hasNorms)
      addNorm(count, rank);
    addLinear(count, d_.hidden, times(d_.numHeads, values), hasBias());
  }

  void addFeedForward(Count &count, int64_t width, bool hasBias) const {
    addLinear(count, d_.gated ? times(2, width) : width, d_.hidden, hasBias);
    addLinear(count, d_.hidden, width, hasBias);
  }

  void addExperts(Count &count) const {
    int64_t experts = config_.getInt(Opt::ModelNumMoeExperts);
    count.add(experts, d_.hidden); // the router
    Count one;
    addFeedForward(one, sizeOf(Opt::ModelMoeFfnHiddenSize, d_.ffnHidden), hasBias());
    count.add(one.total(), experts);
    if (config_.has(Opt::ModelMoeSharedExpertIntermediateSize))
      addFeedForward(count, config_.getInt(Opt::ModelMoeSharedExpertIntermediateSize), hasBias());
    if (config_.isOn(Opt::ModelMoeSharedExpertGate))
      count.add(d_.hidden);
  }

  /// Layers that predict further tokens: two norms, a product of both inputs, a layer, a norm.
  void addPredictionLayers(const Count &layer) {
    Count one = layer;
    for (int norm = 0; norm < 3; ++norm)
      addNorm(one, d_.hidden);
    one.add(d_.hidden, times(2, d_.hidden));
    count_.add(one.total(), sizeOf(Opt::ModelMtpNumLayers, 0));
  }

  const config::Config &config_;
  const config::Derived &d_;
  Count count_;
};

} // namespace

int64_t countParameters(const config::Config &config) { return Counter(config).run(); }

} // namespace shardc::lower
