// Selects the documents and datasets of a run: the split of a dataset's documents into training,
// validation and test, and the blend of several datasets by weight. Rounding and order are those of
// Megatron-Core, so equal weights and sizes select the same samples.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

enum class Split : uint8_t { Train, Valid, Test };
inline constexpr size_t kNumSplits = 3;
inline constexpr std::array<Split, kNumSplits> kSplits = {Split::Train, Split::Valid, Split::Test};

/// Returns "train", "valid" or "test".
std::string_view splitName(Split split);

/// A share of the documents in their order on disk, from `begin` to `end` within 0..1.
struct SplitRange {
  double begin;
  double end;
};

/// The share of each split; no value if its weight is 0.
using SplitShares = std::array<std::optional<SplitRange>, kNumSplits>;

/// Returns the shares for up to three weights with any sum; missing weights are 0. InvalidInput for
/// other counts, negative or infinite weights, and a sum of 0.
Result<SplitShares> makeSplit(std::span<const double> weights);

/// Like makeSplit(), for a text: "969,30,1" or "[0.9, 0.1, 0]".
Result<SplitShares> parseSplit(std::string_view text);

/// Returns the documents [begin, end) of a share of `count` documents. Halves are rounded to even,
/// as by Python's round.
std::pair<int64_t, int64_t> splitDocuments(const SplitRange &range, int64_t count);

/// Datasets with one weight each, or without weights (then their sizes are the weights).
struct Blend {
  std::vector<std::string> paths;
  std::vector<double> weights;
};

/// Maximum number of datasets in a blend, the same as upstream.
inline constexpr size_t kBlendSizeMax = 32766;

/// Parses a blend from a flat list: paths, or alternating weights and paths ("30", "a", "70", "b").
Result<Blend> parseBlend(std::span<const std::string> list);

/// Checks a blend: it has paths, as many weights as paths, and all weights are positive and finite.
Status checkBlend(const Blend &blend);

/// Returns the weights divided by their sum, which is computed in numpy's order.
std::vector<double> normalizeWeights(std::span<const double> weights);

/// Returns the minimum number of samples that a dataset must have for `target` samples of the
/// blend, plus the share `surplus`.
int64_t samplesOfDataset(int64_t target, double weight, double surplus);

/// For each sample of a blend, its dataset and its index in that dataset.
struct BlendIndex {
  std::vector<int16_t> dataset;
  std::vector<uint32_t> sample;
};

/// Returns the index of `size` samples. Each comes from the dataset that is furthest behind its
/// weight.
BlendIndex blendByWeight(std::span<const double> weights, int64_t size);

/// Returns the index of all samples of all datasets, mixed in proportion to the datasets' sizes.
BlendIndex blendAll(std::span<const int64_t> sizes);

} // namespace shardc::data
