// Opens the data of a run: turns the recipe's settings into one source each for training,
// validation and test.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/Blend.h"
#include "runtime/data/PackFiles.h"
#include "runtime/data/Sample.h"
#include "runtime/data/TextCorpus.h"

namespace shardc::data {

/// The kind of a path in a blend.
enum class PathKind : uint8_t {
  Auto,    ///< an indexed dataset if PATH.idx and PATH.bin exist, else text
  Indexed, ///< the prefix of an indexed dataset
  Text,    ///< a text file, a folder or a pattern
  Packed,  ///< the prefix of packs of rows; see PackFiles.h
};

/// Maximum number of samples of one split of a run.
inline constexpr int64_t kSamplesMax = int64_t{1} << 48;

struct DataConfig {
  int64_t sequenceLength = 0;
  /// Tokens outside [0, vocabSize) are refused.
  int64_t vocabSize = 0;
  uint32_t seed = 1234;

  /// All splits from one blend, divided by `split`. Without this and blendPerSplit: synthetic data.
  std::optional<Blend> blend;
  /// Each split from a blend of its own; excludes `blend`.
  std::array<std::optional<Blend>, kNumSplits> blendPerSplit;
  /// Weights of train, valid and test over the documents of each dataset of `blend`.
  std::string split = "969,30,1";
  PathKind pathKind = PathKind::Auto;
  Pairs pairs = Pairs::None; ///< of packs

  /// Samples that the run takes of each split; 0 opens nothing, unset gives one epoch.
  std::array<std::optional<int64_t>, kNumSplits> samples = {0, 0, 0};

  /// Extra share of samples that each dataset of a weighted blend provides.
  double midLevelDatasetSurplus = 0.005;
  bool dropLastPartialValidationSequence = true;
  /// If unset, text uses the byte tokenizer's end token.
  DocumentOptions documents;
  TextOptions text;
  /// Memory limit for the sample order of one dataset.
  int64_t indexBytesMax = int64_t{32} << 30;
};

struct DataSets {
  /// The source of each Split; null if no samples of it were requested.
  std::array<std::unique_ptr<DataSource>, kNumSplits> sources;

  const DataSource *source(Split split) const { return sources[static_cast<size_t>(split)].get(); }
};

/// Opens all data sets, or returns the error, with its path and split.
Result<DataSets> openDataSets(const DataConfig &config);

/// How a recipe names its data: lists of paths, or of weights and paths in turn, of which some are
/// empty.
struct DataPaths {
  bool isSynthetic = false;
  std::vector<std::string> blend, dataPath; ///< of all splits; the first that is not empty counts
  std::vector<std::string> trainDataPath, validDataPath; ///< of one, if both are empty
};

/// Makes the blends of a configuration of them; none stands for synthetic data.
Status setBlends(const DataPaths &paths, DataConfig &config);

/// How long a run trains and evaluates.
struct RunLength {
  int64_t trainIters = 0, globalBatch = 1;
  int64_t evalInterval = 0, evalIters = 0, evalGlobalBatch = 1;
  bool evaluatesWhole = false; ///< each evaluation takes all validation data
};

/// Samples that a run takes of each split: training steps; validation every `evalInterval` steps
/// and once at the end, of `evalIters` batches each; test once.
std::array<std::optional<int64_t>, kNumSplits> samplesOfRun(const RunLength &length);

/// Number of samples of one pass over the data of a split, whatever the configuration requests.
/// DataRefused if they do not end.
Result<int64_t> samplesOfPass(const DataConfig &config, Split split);

} // namespace shardc::data
