// Chooses the kind of source from the configuration: synthetic data, packs, one dataset, or a
// blend. Stores and packs are opened once per path and shared among splits.
#include "runtime/data/DataSets.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <tuple>

#include "runtime/base/Reports.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/GptSource.h"
#include "runtime/data/IndexedDataset.h"
#include "runtime/data/Sources.h"

namespace shardc::data {
namespace {

/// A source whose samples come from several sources, in the order of a BlendIndex.
class BlendedSource : public DataSource {
public:
  /// `sources`: one or more, of equal sequence length. InvalidInput if the index refers to more
  /// samples of a source than it has, so that reading a sample needs no check.
  static Result<std::unique_ptr<BlendedSource>>
  create(const std::string &name, std::vector<std::unique_ptr<DataSource>> sources,
         BlendIndex index) {
    SHARDC_CHECK(!sources.empty() && index.dataset.size() == index.sample.size(),
                 "a blend of {} sources", sources.size());
    std::vector<int64_t> needed(sources.size(), 0);
    for (size_t i = 0; i < index.dataset.size(); ++i) {
      int64_t &count = needed[static_cast<size_t>(index.dataset[i])];
      count = std::max(count, int64_t{index.sample[i]} + 1);
    }
    for (size_t i = 0; i < sources.size(); ++i)
      if (needed[i] > sources[i]->numSamples())
        return makeStatus(report::DataRefused,
                          "{}: the blend takes {} samples of '{}', which has {}; raise "
                          "'mid_level_dataset_surplus'",
                          name, needed[i], sources[i]->name(), sources[i]->numSamples());
    return std::unique_ptr<BlendedSource>(
        new BlendedSource(name, std::move(sources), std::move(index)));
  }

  const BlendIndex &index() const { return index_; }

  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return static_cast<int64_t>(index_.dataset.size()); }
  int64_t sequenceLength() const override { return sources_.front()->sequenceLength(); }

  Status sample(int64_t index, Sample &out) const override {
    if (index < 0 || index >= numSamples())
      return makeStatus(report::DataRefused, "{} has {} samples, there is no sample {}", name_,
                        numSamples(), index);
    auto at = static_cast<size_t>(index);
    return sources_[static_cast<size_t>(index_.dataset[at])]->sample(index_.sample[at], out);
  }

private:
  BlendedSource(const std::string &name, std::vector<std::unique_ptr<DataSource>> sources,
                BlendIndex index)
      : name_(name), sources_(std::move(sources)), index_(std::move(index)) {}

  std::string name_;
  std::vector<std::unique_ptr<DataSource>> sources_;
  BlendIndex index_;
};

using StorePtr = std::shared_ptr<const TokenStore>;
using Sizes = std::array<std::optional<int64_t>, kNumSplits>;

struct OpenStore {
  StorePtr store;
  bool isText = false;
};

/// Opens the datasets of one configuration, each path only once.
class Opener {
public:
  explicit Opener(const DataConfig &config) : config_(config) {}

  /// Either one blend serves all splits, and `split` divides its documents; or each split has a
  /// blend of its own, which it uses as a whole.
  Status open(DataSets &sets) {
    bool perSplit = false;
    for (const std::optional<Blend> &blend : config_.blendPerSplit)
      perSplit = perSplit || blend.has_value();
    if (perSplit && config_.blend)
      return makeStatus(report::DataRefused,
                        "a blend for all splits and blends for single ones exclude each other");
    if (!perSplit && !config_.blend)
      return openSynthetic(sets);
    if (!(config_.midLevelDatasetSurplus >= 0.0 && config_.midLevelDatasetSurplus <= 1000.0))
      return makeStatus(report::DataRefused,
                        "'mid_level_dataset_surplus' is {}; it must be from 0 to 1000",
                        config_.midLevelDatasetSurplus);
    SplitShares shares = {SplitRange{0, 1}, SplitRange{0, 1}, SplitRange{0, 1}};
    if (!perSplit) {
      ASSIGN_OR_RETURN(shares, parseSplit(config_.split));
    }
    for (Split split : kSplits) {
      auto i = static_cast<size_t>(split);
      const std::optional<Blend> &blend = perSplit ? config_.blendPerSplit[i] : config_.blend;
      if (!blend || !shares[i] || !wanted(split))
        continue;
      RETURN_IF_ERROR(checkBlend(*blend));
      bool single = blend->paths.size() == 1 && (perSplit || blend->weights.empty());
      ASSIGN_OR_RETURN(sets.sources[i], openBlend(*blend, split, *shares[i], single));
      if (sets.sources[i]->numSamples() == 0)
        return makeStatus(report::DataTooShort,
                          "the {} data of '{}' are too short for one sample of {} tokens",
                          splitName(split), blend->paths[0], config_.sequenceLength + 1);
    }
    return Status::ok();
  }

private:
  bool wanted(Split split) const {
    return config_.samples[static_cast<size_t>(split)] != std::optional<int64_t>(0);
  }

  /// With `PathKind::Auto`, a path is an indexed dataset if its .idx and .bin files exist, and text
  /// otherwise.
  Result<OpenStore> openStore(const std::string &path) {
    if (auto known = stores_.find(path); known != stores_.end())
      return known->second;
    OpenStore result;
    bool indexed = config_.pathKind == PathKind::Indexed ||
                   (config_.pathKind == PathKind::Auto && IndexedDataset::exists(path));
    if (indexed) {
      ASSIGN_OR_RETURN(IndexedDataset dataset, IndexedDataset::open(path));
      result.store = std::make_shared<IndexedDataset>(std::move(dataset));
    } else {
      Result<TextCorpus> text = TextCorpus::open(path, {&path, 1}, config_.text);
      if (!text.isOk() && text.status().code() == StatusCode::NotFound &&
          config_.pathKind == PathKind::Auto)
        return makeStatus(
            report::DataNotFound,
            "there is no dataset '{0}': neither the pair '{0}.idx' and '{0}.bin' nor a "
            "text file or folder of that name",
            path);
      if (!text.isOk())
        return text.status();
      result.store = std::make_shared<TextCorpus>(std::move(*text));
      result.isText = true;
    }
    stores_.emplace(path, result);
    return result;
  }

  Status openSynthetic(DataSets &sets) {
    for (Split split : kSplits) {
      if (!wanted(split))
        continue;
      ASSIGN_OR_RETURN(
          sets.sources[static_cast<size_t>(split)],
          data::openSynthetic(config_.vocabSize, config_.sequenceLength, config_.seed, split));
    }
    return Status::ok();
  }

  /// Returns the range of documents of a dataset that belongs to a split. Fails if it is empty.
  Result<std::pair<int64_t, int64_t>> documentsOf(const std::string &path, Split split,
                                                  const SplitRange &range,
                                                  int64_t numDocuments) const {
    auto [first, end] = splitDocuments(range, numDocuments);
    if (first == end)
      return makeStatus(report::DataRefused,
                        "the split '{}' gives the {} data none of the {} documents of "
                        "'{}'; increase its weight, "
                        "or use no such data",
                        config_.split, splitName(split), numDocuments, path);
    return std::pair(first, end);
  }

  /// `single`: whether there is only one dataset, which is not a blend whatever its weight.
  Result<std::unique_ptr<DataSource>> openBlend(const Blend &blend, Split split,
                                                const SplitRange &range, bool single) {
    std::optional<int64_t> target = config_.samples[static_cast<size_t>(split)];
    if (single)
      return openOne(blend.paths[0], split, range, target);
    bool weighted = !blend.weights.empty();
    if (config_.pathKind == PathKind::Packed) { // all packs; the batches determine their order
      target.reset();
      if (weighted)
        return makeStatus(
            report::DataRefused,
            "packs have no weights; 'shardc data pack A B -o PREFIX --length=N' packs "
            "the rows of several together");
    }
    if (weighted && !target)
      return makeStatus(report::DataRefused,
                        "a blend with weights has no end; set the number of {} samples",
                        splitName(split));
    std::vector<double> weights = normalizeWeights(blend.weights);
    std::vector<std::unique_ptr<DataSource>> sources;
    std::vector<int64_t> sizes;
    int64_t size = 0, total = 0;
    for (size_t i = 0; i < blend.paths.size(); ++i) {
      std::optional<int64_t> numSamples;
      if (weighted) {
        numSamples = samplesOfDataset(*target, weights[i], config_.midLevelDatasetSurplus);
        size += samplesOfDataset(*target, weights[i], 0.0);
      }
      ASSIGN_OR_RETURN(auto source, openOne(blend.paths[i], split, range, numSamples));
      sizes.push_back(source->numSamples());
      if (sizes.back() == 0)
        return makeStatus(report::DataTooShort,
                          "the {} data of '{}' are too short for one sample of {} tokens",
                          splitName(split), blend.paths[i], config_.sequenceLength + 1);
      total += sizes.back();
      sources.push_back(std::move(source));
    }
    if (!weighted) {
      weights.assign(sizes.begin(), sizes.end());
      size = target ? std::min(*target, total) : total;
    }
    constexpr int64_t kBytesPerSample = 6;
    if (size > config_.indexBytesMax / kBytesPerSample)
      return makeStatus(
          StatusCode::Exhausted,
          "the order of {} samples of the {} blend needs more than the limit of {} bytes", size,
          splitName(split), config_.indexBytesMax);
    BlendIndex index =
        weighted || target ? blendByWeight(normalizeWeights(weights), size) : blendAll(sizes);
    ASSIGN_OR_RETURN(auto source,
                     BlendedSource::create(fmt::format("the {} blend", splitName(split)),
                                           std::move(sources), std::move(index)));
    return std::unique_ptr<DataSource>(std::move(source));
  }

  /// Packs are split like documents: each split has consecutive packs.
  Result<std::unique_ptr<DataSource>> openPacks(const std::string &path, Split split,
                                                const SplitRange &range) {
    std::shared_ptr<const PackFiles> &files = packs_[path];
    if (files == nullptr) {
      ASSIGN_OR_RETURN(PackFiles opened, PackFiles::open(path));
      files = std::make_shared<const PackFiles>(std::move(opened));
    }
    ASSIGN_OR_RETURN(auto packs, documentsOf(path, split, range, files->numPacks()));
    return data::openPacks(files, packs.first, packs.second, config_.sequenceLength,
                           config_.vocabSize, config_.pairs);
  }

  /// Opens one dataset as a GPT source: its documents of the split, cut into sequences of the
  /// configured length. Text has no end token of its own, so kByteEndToken is used.
  Result<std::unique_ptr<DataSource>> openOne(const std::string &path, Split split,
                                              const SplitRange &range,
                                              std::optional<int64_t> numSamples) {
    if (config_.pathKind == PathKind::Packed)
      return openPacks(path, split, range);
    ASSIGN_OR_RETURN(OpenStore open, openStore(path));
    auto numSequences = static_cast<int64_t>(open.store->sequenceLengths().size());
    GptIndexSpec spec;
    ASSIGN_OR_RETURN(auto documents, documentsOf(path, split, range, numSequences));
    std::tie(spec.firstSequence, spec.endSequence) = documents;
    spec.sequenceLength = config_.sequenceLength;
    spec.numSamples = numSamples;
    spec.seed = config_.seed;
    spec.dropLastPartial = split != Split::Valid || config_.dropLastPartialValidationSequence;
    spec.bytesMax = config_.indexBytesMax;
    DocumentOptions options = config_.documents;
    if (open.isText && options.endToken < 0)
      options.endToken = kByteEndToken;
    if (open.isText && config_.vocabSize > 0 && config_.vocabSize < kByteVocabSize)
      return makeStatus(
          report::DataRefused,
          "the text '{}' needs a vocabulary of {} (bytes and an end token), the model has "
          "{}",
          path, kByteVocabSize, config_.vocabSize);
    ASSIGN_OR_RETURN(auto source, GptSource::create(open.store, spec, options, config_.vocabSize));
    return std::unique_ptr<DataSource>(std::move(source));
  }

  const DataConfig &config_;
  std::map<std::string, OpenStore> stores_;
  std::map<std::string, std::shared_ptr<const PackFiles>> packs_;
};

/// Returns the product, or the largest number if it does not fit. Opening refuses that number.
int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

} // namespace

Result<DataSets> openDataSets(const DataConfig &config) {
  for (const std::optional<int64_t> &samples : config.samples)
    if (samples && (*samples < 0 || *samples > kSamplesMax))
      return makeStatus(report::DataRefused, "{} samples are requested; the limit is {}", *samples,
                        kSamplesMax);
  try {
    DataSets sets;
    RETURN_IF_ERROR(Opener(config).open(sets));
    return sets;
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for the order of the samples");
  }
}

Status setBlends(const DataPaths &paths, DataConfig &config) {
  if (paths.isSynthetic)
    return Status::ok();
  if (const auto &all = paths.blend.empty() ? paths.dataPath : paths.blend; !all.empty()) {
    ASSIGN_OR_RETURN(config.blend, parseBlend(all));
    return Status::ok();
  }
  for (auto [split, list] : {std::pair(Split::Train, &paths.trainDataPath),
                             std::pair(Split::Valid, &paths.validDataPath)})
    if (!list->empty()) {
      ASSIGN_OR_RETURN(config.blendPerSplit[static_cast<size_t>(split)], parseBlend(*list));
    }
  return Status::ok();
}

std::array<std::optional<int64_t>, kNumSplits> samplesOfRun(const RunLength &length) {
  int64_t evaluations = length.evalInterval > 0 ? length.trainIters / length.evalInterval + 1 : 0;
  std::optional<int64_t> validation =
      product(product(evaluations, length.evalIters), length.evalGlobalBatch);
  if (length.evaluatesWhole)
    validation = evaluations > 0 ? std::nullopt : std::optional<int64_t>(0);
  return {product(length.trainIters, length.globalBatch), validation,
          product(length.evalIters, length.evalGlobalBatch)};
}

Result<int64_t> samplesOfPass(const DataConfig &config, Split split) {
  DataConfig one = config;
  one.samples = {0, 0, 0};
  one.samples[static_cast<size_t>(split)] = std::nullopt;
  ASSIGN_OR_RETURN(DataSets sets, openDataSets(one));
  const DataSource *source = sets.source(split);
  if (source == nullptr)
    return makeStatus(report::DataRefused, "there are no {} data", splitName(split));
  if (source->numSamples() == DataSource::kUnbounded)
    return makeStatus(report::DataRefused, "{} have no end", source->name());
  return source->numSamples();
}

} // namespace shardc::data
