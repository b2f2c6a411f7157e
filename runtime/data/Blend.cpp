// Compiled without contraction into fused multiply-adds: the errors that are compared below must be
// rounded as they are upstream.
#include "runtime/data/Blend.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/ParseNumber.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

bool parseNumber(std::string_view text, double &value) {
  return shardc::parseNumber(text, value) && std::isfinite(value);
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// numpy.sum of doubles: in order below eight elements, with eight partial sums up to 128 elements,
/// otherwise the sums of both halves.
double numpySum(std::span<const double> x) {
  if (x.size() < 8) {
    double sum = 0.0;
    for (double value : x)
      sum += value;
    return sum;
  }
  if (x.size() > 128) {
    size_t half = x.size() / 2;
    half -= half % 8;
    return numpySum(x.first(half)) + numpySum(x.subspan(half));
  }
  double r[8];
  std::copy_n(x.begin(), 8, r);
  size_t i = 8;
  for (; i + 8 <= x.size(); i += 8)
    for (size_t lane = 0; lane < 8; ++lane)
      r[lane] += x[i + lane];
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < x.size(); ++i)
    sum += x[i];
  return sum;
}

} // namespace

std::string_view splitName(Split split) {
  switch (split) {
  case Split::Train:
    return "train";
  case Split::Valid:
    return "valid";
  case Split::Test:
    return "test";
  }
  return "unknown";
}

/// Fills missing weights with 0 and normalizes with numpy's order of summation: Megatron-Core does,
/// and a difference in the last bit could move a document to another split.
Result<SplitShares> makeSplit(std::span<const double> weights) {
  if (weights.empty() || weights.size() > kNumSplits)
    return makeStatus(report::DataRefused,
                      "a split has {} weights; the limit is {} (train, valid, test)",
                      weights.size(), kNumSplits);
  std::array<double, kNumSplits> shares = {};
  std::copy(weights.begin(), weights.end(), shares.begin());
  for (double weight : shares)
    if (!(weight >= 0.0) || !std::isfinite(weight))
      return makeStatus(report::DataRefused, "{} is not a weight of a split", weight);
  double sum = numpySum(shares);
  if (!(sum > 0.0) || !std::isfinite(sum))
    return makeStatus(report::DataRefused, "the weights of a split add up to {}", sum);
  SplitShares result;
  double begin = 0.0;
  for (size_t i = 0; i < kNumSplits; ++i) {
    double end = begin + shares[i] / sum;
    if (end > begin)
      result[i] = SplitRange{begin, end};
    begin = end;
  }
  return result;
}

Result<SplitShares> parseSplit(std::string_view text) {
  std::string_view inner = trim(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']')
    inner = inner.substr(1, inner.size() - 2);
  std::vector<double> weights;
  while (weights.size() <= kNumSplits) {
    size_t comma = inner.find(',');
    std::string_view item = trim(inner.substr(0, comma));
    double weight = 0;
    if (!parseNumber(item, weight))
      return makeStatus(
          report::DataRefused,
          "'{}' is not a number in the split '{}'; expected up to three weights, as in "
          "'969,30,1'",
          item, text);
    weights.push_back(weight);
    if (comma == std::string_view::npos)
      break;
    inner.remove_prefix(comma + 1);
  }
  return makeSplit(weights);
}

std::pair<int64_t, int64_t> splitDocuments(const SplitRange &range, int64_t count) {
  auto documents = [count](double share) {
    auto rounded = static_cast<int64_t>(std::nearbyint(share * static_cast<double>(count)));
    return std::clamp<int64_t>(rounded, 0, count);
  };
  return {documents(range.begin), documents(range.end)};
}

/// A list such as `30 a 70 b` has weights at its even positions; a list of paths only has none. The
/// list is weighted if any even position is a number.
Result<Blend> parseBlend(std::span<const std::string> list) {
  Blend blend;
  size_t numWeights = 0;
  double weight = 0;
  if (list.size() % 2 == 0)
    for (size_t i = 0; i < list.size(); i += 2)
      numWeights += parseNumber(trim(list[i]), weight) ? 1 : 0;
  bool weighted = numWeights > 0;
  for (size_t i = 0; i < list.size(); ++i) {
    bool weightHere = weighted && i % 2 == 0;
    if (weightHere && !parseNumber(trim(list[i]), weight))
      return makeStatus(report::DataRefused, "the blend has '{}' instead of the weight of '{}'",
                        list[i], list[i + 1]);
    if (weightHere)
      blend.weights.push_back(weight);
    else
      blend.paths.emplace_back(trim(list[i]));
  }
  RETURN_IF_ERROR(checkBlend(blend));
  return blend;
}

Status checkBlend(const Blend &blend) {
  if (blend.paths.empty())
    return makeStatus(report::DataRefused, "the blend names no dataset");
  if (blend.paths.size() > kBlendSizeMax)
    return makeStatus(report::DataRefused, "the blend names {} datasets; the limit is {}",
                      blend.paths.size(), kBlendSizeMax);
  for (const std::string &path : blend.paths)
    if (path.empty())
      return makeStatus(report::DataRefused, "the blend names a dataset with an empty path");
  if (blend.weights.empty())
    return Status::ok();
  if (blend.weights.size() != blend.paths.size())
    return makeStatus(report::DataRefused, "the blend has {} datasets but {} weights",
                      blend.paths.size(), blend.weights.size());
  for (size_t i = 0; i < blend.weights.size(); ++i)
    if (!(blend.weights[i] > 0.0) || !std::isfinite(blend.weights[i]))
      return makeStatus(
          report::DataRefused,
          "the blend gives '{}' the weight {}; leave it out or give it a positive one",
          blend.paths[i], blend.weights[i]);
  return Status::ok();
}

std::vector<double> normalizeWeights(std::span<const double> weights) {
  double sum = numpySum(weights);
  std::vector<double> result(weights.begin(), weights.end());
  for (double &weight : result)
    weight /= sum;
  return result;
}

int64_t samplesOfDataset(int64_t target, double weight, double surplus) {
  double share = std::ceil(static_cast<double>(target) * weight);
  return static_cast<int64_t>(std::ceil(share * (1.0 + surplus)));
}

namespace {

/// A greedy choice: at each position, takes the next sample of the dataset that is furthest behind
/// its share. The comparison is of doubles, in Megatron-Core's order, and the first of equal errors
/// wins. With `sizes`, a dataset whose samples are all taken is no longer considered.
BlendIndex blend(std::span<const double> weights, int64_t size, std::span<const int64_t> sizes) {
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(size));
  index.sample.reserve(static_cast<size_t>(size));
  std::vector<uint32_t> taken(weights.size(), 0);
  for (int64_t i = 0; i < size; ++i) {
    double position = std::max(static_cast<double>(i), 1.0);
    size_t furthest = weights.size();
    double errorMax = 0;
    for (size_t dataset = 0; dataset < weights.size(); ++dataset) {
      if (!sizes.empty() && taken[dataset] == sizes[dataset])
        continue;
      double error = weights[dataset] * position - static_cast<double>(taken[dataset]);
      if (furthest == weights.size() || error > errorMax) {
        errorMax = error;
        furthest = dataset;
      }
    }
    index.dataset.push_back(static_cast<int16_t>(furthest));
    index.sample.push_back(taken[furthest]++);
  }
  return index;
}

} // namespace

BlendIndex blendByWeight(std::span<const double> weights, int64_t size) {
  return blend(weights, size, {});
}

BlendIndex blendAll(std::span<const int64_t> sizes) {
  int64_t total = 0;
  for (int64_t size : sizes)
    total += size;
  std::vector<double> weights;
  for (int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return blend(weights, total, sizes);
}

} // namespace shardc::data
