// Opens the data of a run: creates, from the recipe's settings, one source each for training,
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
  Packed,  ///< the prefix of files with packs of rows; see PackFiles.h
};

/// Maximum number of samples of one split of a run.
inline constexpr int64_t kSamplesMax = int64_t{1} << 48;

struct DataConfig {
  int64_t sequenceLength = 0;
  /// Tokens outside [0, vocabSize) are errors.
  int64_t vocabSize = 0;
  uint32_t seed = 1234;

  /// The blend of all splits, which `split` divides. If neither this nor blendPerSplit is set, data
  /// is synthetic.
  std::optional<Blend> blend;
  /// A separate blend for each split; excludes `blend`.
  std::array<std::optional<Blend>, kNumSplits> blendPerSplit;
  /// Weights of train, valid and test over the documents of each dataset of `blend`.
  std::string split = "969,30,1";
  PathKind pathKind = PathKind::Auto;
  Pairs pairs = Pairs::None; ///< which kind of packs the run needs

  /// Number of samples that the run takes of each split. 0: the split is not opened; unset: one
  /// epoch.
  std::array<std::optional<int64_t>, kNumSplits> samples = {0, 0, 0};

  /// Additional share of samples that each dataset of a weighted blend provides.
  double midLevelDatasetSurplus = 0.005;
  bool dropLastPartialValidationSequence = true;
  /// If its end token is unset, text uses the end token of the byte tokenizer.
  DocumentOptions documents;
  TextOptions text;
  /// Memory limit for the sample order of one dataset.
  int64_t indexBytesMax = int64_t{32} << 30;
};

struct DataSets {
  /// The source of each Split; null if no samples of the split were requested.
  std::array<std::unique_ptr<DataSource>, kNumSplits> sources;

  const DataSource *source(Split split) const { return sources[static_cast<size_t>(split)].get(); }
};

/// Opens all datasets. An error names its path and split.
Result<DataSets> openDataSets(const DataConfig &config);

/// The data paths of a recipe: lists of paths, or of alternating weights and paths. Some lists are
/// empty.
struct DataPaths {
  bool isSynthetic = false;
  std::vector<std::string> blend, dataPath; ///< for all splits; the first non-empty list is used
  /// For one split, if both lists above are empty.
  std::vector<std::string> trainDataPath, validDataPath;
};

/// Sets the blends of a configuration from the paths; no blend if the data is synthetic.
Status setBlends(const DataPaths &paths, DataConfig &config);

/// The duration of training and evaluation in a run.
struct RunLength {
  int64_t trainIters = 0, globalBatch = 1;
  int64_t evalInterval = 0, evalIters = 0, evalGlobalBatch = 1;
  bool evaluatesWhole = false; ///< each evaluation takes all validation data
};

/// Returns the number of samples that a run takes of each split: training steps; validation every
/// `evalInterval` steps and once at the end, of `evalIters` batches each; test once.
std::array<std::optional<int64_t>, kNumSplits> samplesOfRun(const RunLength &length);

/// Returns the number of samples of one pass over the data of a split, whatever number the
/// configuration requests. DataRefused if the source has no end.
Result<int64_t> samplesOfPass(const DataConfig &config, Split split);

} // namespace shardc::data
