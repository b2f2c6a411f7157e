// Delegates each sample to one of several sources, as the index says.
#include "runtime/data/BlendedSource.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::data {

/// Checks once that no source has too few samples, so that reading a sample needs no check.
Result<std::unique_ptr<BlendedSource>>
BlendedSource::create(const std::string &name, std::vector<std::unique_ptr<DataSource>> sources,
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

Status BlendedSource::sample(int64_t index, Sample &out) const {
  if (index < 0 || index >= numSamples())
    return makeStatus(report::DataRefused, "{} has {} samples, there is no sample {}", name_,
                      numSamples(), index);
  auto at = static_cast<size_t>(index);
  return sources_[static_cast<size_t>(index_.dataset[at])]->sample(index_.sample[at], out);
}

} // namespace shardc::data
