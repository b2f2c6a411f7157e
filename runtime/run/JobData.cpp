// Translates the options of section `dataset` to a DataConfig of runtime/data, and keeps the
// options' names for messages.
#include "runtime/run/JobData.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/Preference.h"
#include "runtime/base/Reports.h"
#include "runtime/data/BatchFeeder.h"
#include "runtime/data/DataSets.h"
#include "runtime/data/IndexedDataset.h"
#include "runtime/data/PackReference.h"
#include "runtime/plan/JobFacts.h"

namespace shardc::run {
namespace {

/// Whether the job's loss compares answers with a reference model's.
bool hasReference(const plan::Plan &plan) {
  const auto &loss = plan.job.preference.loss;
  return loss && shardc::hasReference(static_cast<PairLossKind>(*loss));
}

using data::Split;

bool evaluates(const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Cell &cell : role.cells)
      if (cell.kind == plan::CellKind::EvalFeed)
        return true;
  return false;
}

/// The seed for shuffling the data.
uint64_t seedOf(const plan::Plan &plan) {
  return static_cast<uint64_t>(plan.job.has(plan::JobField::dataset_randomSeed)
                                   ? plan.job.dataset.randomSeed
                                   : plan.job.rng.seed);
}

/// How a split is divided among ranks, and the order of its samples.
struct Feeding {
  data::BatchShape shape;
  data::OrderSpec order;
};

Feeding feedingOf(const plan::Plan &plan, Split split, const data::DataSource &source) {
  Feeding feeding;
  plan::BatchSizes sizes = plan::batchSizesOf(plan.job, split == Split::Valid);
  feeding.shape = {sizes.global, sizes.micro,
                   plan.groupSize(plan::groupOfKind(plan, plan::GroupKind::Data)),
                   split == Split::Valid ? 0 : plan.job.derived.samplesBefore};
  feeding.order.isSharded = plan.job.dataset.dataSharding;
  if (plan.job.dataset.dataloaderType == plan::Job::DataloaderType::Cyclic)
    feeding.order.kind = data::OrderKind::Cyclic;
  if (plan.job.dataset.dataloaderType == plan::Job::DataloaderType::Batch)
    feeding.order.kind = data::OrderKind::Batch;
  feeding.order.seed = seedOf(plan);
  // With a per-token loss, the result does not depend on which rank gets a sample, so samples are
  // assigned by cost. If means of microbatches are averaged, it does.
  if (plan.job.model.calculatePerTokenLoss && feeding.shape.dataParallel > 1)
    feeding.order.costs = source.costs();
  // Upstream never shuffles these samples either.
  if (split == Split::Valid && plan.job.validation.fullValidation)
    feeding.order.kind = data::OrderKind::Whole;
  return feeding;
}

/// `isOfRows`: the sample's documents are rows of packs, whose masks say what answers them.
Result<BegunText> begunText(const data::DataSource &source, int64_t index, int64_t tokens,
                            bool isOfRows) {
  const auto n = static_cast<size_t>(source.sequenceLength());
  std::vector<int32_t> inputs(n), labels(n), positions(n), starts(n + 1);
  std::vector<float> mask(n);
  data::Sample sample{inputs, labels, mask, positions, starts};
  RETURN_IF_ERROR(source.sample(index, sample));
  const auto end = static_cast<size_t>(starts[sample.numDocuments > 0 ? 1 : 0]);
  size_t first = std::min(static_cast<size_t>(tokens), end) - 1; // whose label counts
  if (isOfRows)
    first = static_cast<size_t>(std::find(mask.begin(), mask.end(), 1.0F) - mask.begin());
  BegunText text;
  text.prompt.assign(inputs.begin(),
                     inputs.begin() + static_cast<int64_t>(std::min(first + 1, end)));
  for (size_t i = first; i < end && mask[i] != 0; ++i)
    if (isOfRows || std::ssize(text.answer) < tokens)
      text.answer.push_back(labels[i]);
  return text;
}

/// Data that evaluations use in addition to the validation data of the run, or instead of them.
struct EvaluationData {
  data::DataSets sets;
  std::optional<data::BatchFeeder> feeder;
};

class JobData final : public JobSource {
public:
  /// Each configuration in `validSets`, and `test`, has one split.
  static Result<std::unique_ptr<JobSource>> open(const plan::Plan &plan,
                                                 const data::DataConfig &config,
                                                 std::span<const data::DataConfig> validSets,
                                                 const std::optional<data::DataConfig> &test) {
    std::unique_ptr<JobData> job(new JobData);
    ASSIGN_OR_RETURN(job->sets_, data::openDataSets(config));
    job->samples_ = config.samples;
    for (Split split : {Split::Train, Split::Valid})
      RETURN_IF_ERROR(job->feed(plan, split));
    for (const data::DataConfig &set : validSets) {
      ASSIGN_OR_RETURN(EvaluationData opened, openEvaluation(plan, set, Split::Valid));
      job->validSets_.push_back(std::move(opened));
    }
    if (test) {
      ASSIGN_OR_RETURN(job->test_, openEvaluation(plan, *test, Split::Test));
    }
    if (!job->feeders_[1] && job->validSets_.empty() && evaluates(plan))
      return makeStatus(report::JobDisagrees,
                        "plan '{}' evaluates, but its job has no validation data", plan.name);
    if (!job->feeders_[0])
      return makeStatus(report::JobDisagrees, "plan '{}': there are no training data", plan.name);
    RETURN_IF_ERROR(job->checkWhole(plan));
    job->sequence_ = config.sequenceLength;
    job->hasRows_ = config.pathKind == data::PathKind::Packed;
    return std::unique_ptr<JobSource>(std::move(job));
  }

  Status turnTo(const plan::Plan &plan) override { return feed(plan, Split::Train); }

  Result<std::vector<BegunText>> begunTexts(int64_t count, int64_t tokens) const override {
    const data::DataSource *source =
        validSets_.empty() ? sets_.source(Split::Valid) : validSets_[0].sets.source(Split::Valid);
    std::vector<BegunText> texts;
    for (int64_t i = 0; source && i < std::min(count, source->numSamples()); ++i) {
      ASSIGN_OR_RETURN(BegunText text, begunText(*source, i, tokens, hasRows_));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  void evaluate(int64_t set, bool isTest) override {
    set_ = static_cast<size_t>(set);
    isTest_ = isTest;
  }

  Status fill(FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
              int64_t dataIndex, const FeedEntry &entry) override {
    std::optional<data::BatchFeeder> &feeder =
        kind == FeedKind::Train ? feeders_[0] : evaluationFeeder(visit);
    if (!feeder)
      return makeStatus(report::JobDisagrees,
                        "the plan evaluates, but its job names no validation data");
    int64_t perStep = feeder->numMicrobatches();
    // An evaluation reads several global batches, and continues where the previous evaluation
    // ended.
    int64_t step = visit * (microbatches / perStep) + microbatch / perStep;
    if (microbatches % perStep != 0 || entry.batch != feeder->shape().microBatch ||
        entry.sequence * entry.slice.count != sequence_)
      return makeStatus(report::JobDisagrees,
                        "the plan runs {} microbatches of {} x {} tokens, but the job's sizes give "
                        "{} of {} x {}",
                        microbatches, entry.batch, entry.sequence * entry.slice.count, perStep,
                        feeder->shape().microBatch, sequence_);
    const bool isWhole = entry.slice.count == 1;
    FeedEntry whole = isWhole ? entry : sequences(entry.batch);
    auto n = static_cast<size_t>(whole.batch * whole.sequence);
    starts_.resize(n + static_cast<size_t>(whole.batch));
    counts_.resize(static_cast<size_t>(whole.batch));
    data::MicroBatch out{{whole.tokens, n},    {whole.labels, n}, {whole.mask, n},
                         {whole.positions, n}, starts_,           counts_};
    if (whole.reference != nullptr)
      out.reference = {whole.reference, n};
    RETURN_IF_ERROR(feeder->fill(step, microbatch % perStep, dataIndex, out));
    writeDocs(whole);
    if (whole.places != nullptr)
      for (int64_t row = 0; row < whole.batch; ++row)
        std::iota(whole.places + row * sequence_, whole.places + (row + 1) * sequence_, 0);
    if (!isWhole)
      writeSlices(whole, entry);
    for (int64_t row = 0; row < entry.batch; ++row) {
      int64_t sample = feeder->sampleIndex(step, microbatch % perStep, dataIndex, row);
      std::memcpy(entry.samples + row * sizeof sample, &sample, sizeof sample);
    }
    return Status::ok();
  }

private:
  /// The feeder for an evaluation. If there are several validation sets, evaluations of the job
  /// visit them in turn.
  std::optional<data::BatchFeeder> &evaluationFeeder(int64_t &visit) {
    if (isTest_) {
      visit = 0;
      return test_.feeder;
    }
    if (validSets_.empty())
      return feeders_[1];
    visit /= std::ssize(validSets_);
    return validSets_[set_].feeder;
  }

  static Result<EvaluationData> openEvaluation(const plan::Plan &plan,
                                               const data::DataConfig &config, Split split) {
    EvaluationData opened;
    ASSIGN_OR_RETURN(opened.sets, data::openDataSets(config));
    const data::DataSource &source = *opened.sets.source(split);
    Feeding feeding = feedingOf(plan, Split::Valid, source);
    auto feeder = data::BatchFeeder::create(source, feeding.shape, feeding.order,
                                            data::DataSource::kUnbounded);
    RETURN_IF_ERROR(feeder.status());
    opened.feeder = std::move(*feeder);
    return opened;
  }

  /// Creates the feeder of a split if it has data.
  Status feed(const plan::Plan &plan, Split split) {
    const data::DataSource *source = sets_.source(split);
    if (!source)
      return Status::ok();
    auto index = static_cast<size_t>(split);
    Feeding feeding = feedingOf(plan, split, *source);
    // From an endless data source, only the samples that the run requests are taken.
    int64_t samples = source->numSamples() == data::DataSource::kUnbounded
                          ? samples_[index].value_or(data::DataSource::kUnbounded)
                          : data::DataSource::kUnbounded;
    auto feeder = data::BatchFeeder::create(*source, feeding.shape, feeding.order, samples);
    RETURN_IF_ERROR(feeder.status());
    feeders_[index] = std::move(*feeder);
    return Status::ok();
  }

  /// Checks that a plan for a full validation was compiled for as many samples as there are.
  Status checkWhole(const plan::Plan &plan) const {
    const data::DataSource *source = sets_.source(Split::Valid);
    if (!plan.job.validation.fullValidation || source == nullptr)
      return Status::ok();
    int64_t planned = plan.job.derived.evalMicrobatches;
    if (source->numSamples() == data::DataSource::kUnbounded)
      return makeStatus(report::DataRefused,
                        "'validation.full_validation' is true, and {} have no end", source->name());
    if (feeders_[1]->numMicrobatches() != planned)
      return makeStatus(report::JobDisagrees,
                        "the plan evaluates {} microbatches on each rank; the {} samples of {} "
                        "need {}",
                        planned, source->numSamples(), source->name(),
                        feeders_[1]->numMicrobatches());
    return Status::ok();
  }

  /// Writes the start of each token's document, from the boundaries between documents.
  void writeDocs(const FeedEntry &entry) const {
    for (int64_t row = 0; row < entry.batch; ++row) {
      const int32_t *starts = starts_.data() + row * (entry.sequence + 1);
      int32_t *docs = entry.docs + row * entry.sequence;
      for (int32_t d = 0; d < counts_[static_cast<size_t>(row)]; ++d)
        std::fill(docs + starts[d], docs + starts[d + 1], starts[d]);
    }
  }

  /// Memory for whole sequences, from which slices are copied to an entry.
  FeedEntry sequences(int64_t batch) {
    whole_.resize(static_cast<size_t>(FeedEntry::words(batch, sequence_, FeedMore::Places)));
    return FeedEntry::at(whole_.data(), batch, sequence_, FeedMore::Places);
  }

  /// Copies the two chunks of each sequence that belong to the entry's slice.
  static void writeSlices(const FeedEntry &from, const FeedEntry &to) {
    int64_t chunk = to.sequence / 2;
    int64_t chunks[] = {to.slice.index, 2 * to.slice.count - 1 - to.slice.index};
    for (int64_t row = 0; row < to.batch; ++row)
      for (int64_t half = 0; half < 2; ++half) {
        int64_t source = row * from.sequence + chunks[half] * chunk;
        int64_t target = row * to.sequence + half * chunk;
        auto copy = [&](const auto *all, auto *part) {
          if (part != nullptr)
            std::copy_n(all + source, chunk, part + target);
        };
        copy(from.tokens, to.tokens);
        copy(from.labels, to.labels);
        copy(from.mask, to.mask);
        copy(from.positions, to.positions);
        copy(from.docs, to.docs);
        copy(from.places, to.places);
      }
  }

  data::DataSets sets_;
  std::array<std::optional<int64_t>, data::kNumSplits> samples_{}; ///< requested samples
  std::array<std::optional<data::BatchFeeder>, 2> feeders_;
  std::vector<EvaluationData> validSets_; ///< used instead of sets_ if there are several
  EvaluationData test_;
  size_t set_ = 0; ///< index in validSets_ for evaluations
  bool isTest_ = false;
  int64_t sequence_ = 0;                 ///< tokens
  bool hasRows_ = false;                 ///< of packs
  std::vector<int32_t> starts_, counts_; ///< documents of the microbatch that is being written
  std::vector<int32_t> whole_;           ///< whole sequences, if ranks have slices of them
};

/// A hint for a path without data of the requested kind: the option with which the existing data
/// could be read; empty if there are none.
std::string otherKind(const plan::Job::Dataset &dataset, const std::string &path) {
  using Kind = plan::Job::DatasetKind;
  std::error_code error;
  if (dataset.kind == Kind::Indexed && std::filesystem::exists(path, error))
    return "; 'dataset.kind = text' reads it as text";
  if (dataset.kind == Kind::Text && std::filesystem::exists(path + ".mask.idx", error))
    return "; it is a prefix of packs, which 'dataset.kind = packed' reads, as the overlay "
           "shardc:overlays/sft.recipe sets it";
  if (dataset.kind == Kind::Text && std::filesystem::exists(path + ".idx", error))
    return fmt::format("; 'dataset.kind = indexed' reads '{}.idx'", path);
  return "";
}

/// Adds to an error about a missing path the option that names it and, for a relative path, the
/// folder to which it is relative. The recipe shows neither.
Status nameOption(const plan::Plan &plan, const Status &status) {
  if (status.code() != StatusCode::NotFound && status.code() != StatusCode::Io)
    return status;
  const plan::Job::Dataset &dataset = plan.job.dataset;
  for (auto [option, paths] : {std::pair("dataset.blend", &dataset.blend),
                               {"dataset.data_path", &dataset.dataPath},
                               {"dataset.train_data_path", &dataset.trainDataPath},
                               {"dataset.valid_data_path", &dataset.validDataPath},
                               {"dataset.test_data_path", &dataset.testDataPath}})
    for (const std::string &path : *paths) {
      bool isNamed = status.message().find("'" + path) != std::string::npos ||
                     status.message().find("'" + data::IndexedDataset::prefixOf(path) + ".") !=
                         std::string::npos;
      if (!isNamed)
        continue;
      std::error_code error;
      std::string folder = std::filesystem::current_path(error).string();
      bool isRelative = !error && std::filesystem::path(path).is_relative();
      return Status(status).withMessage(fmt::format(
          "{}; '{}' names it{}{}", status.message(), option,
          isRelative ? ", relative to '" + folder + "'" : "", otherKind(dataset, path)));
    }
  return status;
}

/// A configuration with one split, for these data.
Result<data::DataConfig> ofSplit(const data::DataConfig &config, Split split,
                                 std::span<const std::string> paths) {
  data::DataConfig one = config;
  auto index = static_cast<size_t>(split);
  one.blend.reset();
  one.blendPerSplit = {};
  ASSIGN_OR_RETURN(one.blendPerSplit[index], data::parseBlend(paths));
  one.samples = {0, 0, 0};
  one.samples[index] = config.samples[index];
  return one;
}

void readDocuments(const plan::Plan &plan, data::DataConfig &config) {
  data::DocumentOptions &documents = config.documents;
  documents.resetPositionIds = plan.job.dataset.resetPositionIds;
  documents.resetAttentionMask = plan.job.dataset.resetAttentionMask;
  documents.byDocument = plan.job.dataset.interDocumentMasking;
  documents.eodMaskLoss = plan.job.dataset.eodMaskLoss;
  documents.endToken = static_cast<int32_t>(plan.job.dataset.eodToken);
}

} // namespace

/// Opens training data first, then each validation set and the test data if they have files of
/// their own. The number of samples follows from the length of the run, so that datasets are
/// repeated for as many epochs as needed.
Result<std::unique_ptr<JobSource>> openJobData(const plan::Plan &plan) {
  data::DataConfig config;
  config.sequenceLength = plan.job.model.seqLength;
  config.vocabSize = plan.job.model.vocabSize;
  config.seed = static_cast<uint32_t>(seedOf(plan));
  config.split = plan.job.dataset.split;
  if (plan.job.preference.loss)
    config.pairs = hasReference(plan) ? data::Pairs::WithReference : data::Pairs::Alone;
  config.dropLastPartialValidationSequence = plan.job.dataset.dropLastPartialValidationSequence;
  config.midLevelDatasetSurplus = plan.job.dataset.midLevelDatasetSurplus;
  using Kind = plan::Job::DatasetKind;
  config.pathKind = plan.job.dataset.kind == Kind::Text      ? data::PathKind::Text
                    : plan.job.dataset.kind == Kind::Indexed ? data::PathKind::Indexed
                    : plan.job.dataset.kind == Kind::Packed  ? data::PathKind::Packed
                                                             : data::PathKind::Auto;
  const plan::Job::Dataset &dataset = plan.job.dataset;
  RETURN_IF_ERROR(data::setBlends({dataset.kind == Kind::Synthetic, dataset.blend, dataset.dataPath,
                                   dataset.trainDataPath, dataset.validDataPath},
                                  config));
  readDocuments(plan, config);

  data::RunLength length;
  length.trainIters = plan.job.train.trainIters;
  length.globalBatch = plan::batchSizesOf(plan.job, /*isEval=*/false).global;
  length.evalInterval = plan.job.validation.evalInterval;
  length.evalIters = plan.job.validation.evalIters;
  length.evalGlobalBatch = plan::batchSizesOf(plan.job, /*isEval=*/true).global;
  length.evaluatesWhole = plan.job.validation.fullValidation;
  config.samples = data::samplesOfRun(length);
  if (plan.job.derived.stepSamples > 0) // steps differ in size
    config.samples[static_cast<size_t>(Split::Train)] = plan.job.train.trainSamples;
  std::vector<data::DataConfig> validSets;
  if (plan.job.validation.multipleValidationSets)
    for (const std::string &path : dataset.validDataPath) {
      ASSIGN_OR_RETURN(data::DataConfig one, ofSplit(config, Split::Valid, {&path, 1}));
      validSets.push_back(std::move(one));
    }
  std::optional<data::DataConfig> test;
  if (!dataset.testDataPath.empty() && evaluates(plan)) {
    ASSIGN_OR_RETURN(test, ofSplit(config, Split::Test, dataset.testDataPath));
  }
  if (!validSets.empty())
    config.samples[static_cast<size_t>(Split::Valid)] = 0;
  config.samples[static_cast<size_t>(Split::Test)] = 0; // only runs with test data need it
  auto opened = JobData::open(plan, config, validSets, test);
  return opened.isOk() ? std::move(opened) : nameOption(plan, opened.status());
}

/// The reference is compared only with weights with which training begins: those of a run that
/// continues have been trained.
Status checkPacks(const plan::Plan &plan, const std::map<std::string, std::string> *weights) {
  const plan::Job::Dataset &dataset = plan.job.dataset;
  if (dataset.kind != plan::Job::DatasetKind::Packed)
    return Status::ok();
  for (const std::vector<std::string> *paths :
       {&dataset.blend, &dataset.dataPath, &dataset.trainDataPath, &dataset.validDataPath,
        &dataset.testDataPath})
    for (const std::string &path : *paths) {
      ASSIGN_OR_RETURN(data::PackFiles files, data::PackFiles::open(path));
      RETURN_IF_ERROR(files.verify());
      if (hasReference(plan) && weights != nullptr)
        RETURN_IF_ERROR(data::checkReference(files, *weights));
    }
  return Status::ok();
}

} // namespace shardc::run
