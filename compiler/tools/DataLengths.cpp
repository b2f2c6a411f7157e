#include "compiler/tools/DataLengths.h"

#include <map>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/data/DataSets.h"

namespace shardc::tools {
namespace {

using config::Config;
using config::DatasetKind;
using config::Opt;

/// The items of a list option, which are paths and numbers, as they are written.
std::vector<std::string> itemsOf(const Config &config, Opt opt) {
  std::vector<std::string> items;
  if (config.has(opt))
    for (const config::Value &value : config.getList(opt))
      items.push_back(value.asString() != nullptr
                          ? *value.asString()
                          : config::toRecipeText(value, config::info(opt).type));
  return items;
}

data::DataPaths pathsOf(const Config &config) {
  return {config.is(Opt::DatasetKind, DatasetKind::Synthetic), itemsOf(config, Opt::DatasetBlend),
          itemsOf(config, Opt::DatasetDataPath), itemsOf(config, Opt::DatasetTrainDataPath),
          itemsOf(config, Opt::DatasetValidDataPath)};
}

/// The settings that determine the number of samples.
data::DataConfig dataConfigOf(const Config &config) {
  data::DataConfig out;
  out.sequenceLength = config.getIntOr(Opt::ModelSeqLength, 0);
  out.vocabSize = config.getIntOr(Opt::ModelVocabSize, 0);
  out.split = config.getStringOr(Opt::DatasetSplit, out.split);
  out.dropLastPartialValidationSequence =
      config.isOn(Opt::DatasetDropLastPartialValidationSequence);
  if (config.is(Opt::DatasetKind, DatasetKind::Text))
    out.pathKind = data::PathKind::Text;
  else if (config.is(Opt::DatasetKind, DatasetKind::Indexed))
    out.pathKind = data::PathKind::Indexed;
  else if (config.is(Opt::DatasetKind, DatasetKind::Packed))
    out.pathKind = data::PathKind::Packed;
  return out;
}

std::optional<int64_t> countSamples(const data::DataConfig &data, data::Split split,
                                    std::string &problem) {
  Result<int64_t> samples = data::samplesOfPass(data, split);
  if (samples.isOk())
    return *samples;
  problem = samples.status().message();
  return std::nullopt;
}

config::DataLengths measureLengths(const Config &config, const data::DataPaths &paths) {
  config::DataLengths lengths;
  data::DataConfig data = dataConfigOf(config);
  if (Status status = data::setBlends(paths, data); !status.isOk()) {
    lengths.problem = status.message();
    return lengths;
  }
  if (config.has(Opt::TrainNumEpochs))
    lengths.train = countSamples(data, data::Split::Train, lengths.problem);
  if (config.isOn(Opt::ValidationFullValidation))
    lengths.valid = countSamples(data, data::Split::Valid, lengths.problem);
  return lengths;
}

} // namespace

config::DataMeter makeDataMeter() {
  auto known = std::make_shared<std::map<std::string, config::DataLengths>>();
  return [known](const Config &config) {
    data::DataPaths paths = pathsOf(config);
    data::DataConfig data = dataConfigOf(config);
    std::string key = fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {} {}", paths.isSynthetic, paths.blend, paths.dataPath,
        paths.trainDataPath, paths.validDataPath, data.sequenceLength, data.vocabSize, data.split,
        data.dropLastPartialValidationSequence, static_cast<int>(data.pathKind),
        config.has(Opt::TrainNumEpochs), config.isOn(Opt::ValidationFullValidation));
    auto [at, isNew] = known->try_emplace(key);
    if (isNew)
      at->second = measureLengths(config, paths);
    return at->second;
  };
}

std::optional<std::string> splitThatFits(const Config &config) {
  data::DataConfig data = dataConfigOf(config);
  if (!data::setBlends(pathsOf(config), data).isOk())
    return std::nullopt;
  auto hasSamples = [&](data::Split split) {
    Result<int64_t> samples = data::samplesOfPass(data, split);
    return samples.isOk() && *samples > 0;
  };
  for (const char *split : {"95,5,0", "90,10,0", "80,20,0", "50,50,0", "100,0,0"}) {
    data.split = split;
    if (hasSamples(data::Split::Train) &&
        (data.split == "100,0,0" || hasSamples(data::Split::Valid)))
      return data.split;
  }
  return std::nullopt;
}

} // namespace shardc::tools
