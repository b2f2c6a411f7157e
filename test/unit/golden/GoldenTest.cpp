#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Json.h"
#include "runtime/base/Philox.h"
#include "runtime/data/DataSets.h"
#include "runtime/data/GptSource.h"
#include "runtime/tokenize/BuildIndexed.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::data {
namespace {

std::string goldenPath(const std::string &name) { return SHARDC_GOLDEN "/" + name; }

std::string contentsOf(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json goldenJson(const std::string &name) {
  return nlohmann::json::parse(contentsOf(goldenPath(name)));
}

/// The tokens of a sample, and the token that follows them.
std::vector<int32_t> textOf(const DataSource &source, int64_t index) {
  auto length = static_cast<size_t>(source.sequenceLength());
  std::vector<int32_t> tokens(length), labels(length);
  std::vector<float> mask(length);
  Sample sample;
  sample.tokens = tokens;
  sample.labels = labels;
  sample.lossMask = mask;
  Status status = source.sample(index, sample);
  EXPECT_TRUE(status.isOk()) << status.message();
  tokens.push_back(labels.back());
  return tokens;
}

/// The data of a golden run of 20 steps of 8 samples, as its recipe describes them.
DataSets openGolden(const nlohmann::json &order) {
  DataConfig config;
  config.sequenceLength = order["sequence_length"];
  config.vocabSize = 257;
  config.seed = order["seed"];
  config.blend = Blend{{goldenPath("data/tokens")}, {}};
  config.split = "100,0,0";
  config.samples = samplesOfRun({.trainIters = 20, .globalBatch = 8});
  config.documents.endToken = 256;
  Result<DataSets> sets = openDataSets(config);
  EXPECT_TRUE(sets.isOk()) << sets.status().message();
  return sets.isOk() ? std::move(*sets) : DataSets();
}

TEST(Golden, SamplesComeInTheOrderOfTheGoldenRuns) {
  for (const nlohmann::json &order : goldenJson("data/order.json")) {
    DataSets sets = openGolden(order);
    const DataSource *train = sets.source(Split::Train);
    ASSERT_NE(train, nullptr);
    std::string bytes;
    for (int64_t i = 0; i < order["num_samples"]; ++i) {
      std::vector<int32_t> text = textOf(*train, i);
      if (i < static_cast<int64_t>(order["first_samples"].size())) {
        EXPECT_EQ(text, order["first_samples"][static_cast<size_t>(i)]) << i;
      }
      bytes.append(reinterpret_cast<const char *>(text.data()), text.size() * sizeof(int32_t));
    }
    EXPECT_EQ(fmt::format("{:016x}", hashName(bytes)), order["fnv1a_of_all_samples_int32"]);
  }
}

TEST(Golden, IndicesAreThoseOfTheGoldenRuns) {
  for (const nlohmann::json &order : goldenJson("data/order.json")) {
    DataSets sets = openGolden(order);
    const auto *train = dynamic_cast<const GptSource *>(sets.source(Split::Train));
    ASSERT_NE(train, nullptr);
    const GptIndex &index = train->index();
    EXPECT_EQ(index.numEpochs(), order["epochs"]);
    EXPECT_EQ(index.separateFinalEpoch(), order["separate_last_epoch"]);
    EXPECT_EQ(nlohmann::json(std::vector(index.documents().begin(), index.documents().end())),
              order["document_index"]);
    EXPECT_EQ(nlohmann::json(std::vector(index.shuffle().begin(), index.shuffle().end())),
              order["shuffle_index"]);
    nlohmann::json positions;
    for (GptIndex::TokenPosition position : index.positions())
      positions.push_back({position.document, position.offset});
    EXPECT_EQ(positions, order["sample_index"]);
  }
}

TEST(Golden, TextBuildsTheSameDataset) {
  shardc::test::TempFolder folder;
  std::string prefix = folder / "tokens";
  Result<tokenize::BuildSummary> built =
      tokenize::buildIndexed(std::vector{goldenPath("data/documents.jsonl")}, prefix, {});
  ASSERT_TRUE(built.isOk()) << built.status().message();
  for (const char *suffix : {".bin", ".idx"})
    EXPECT_EQ(contentsOf(prefix + suffix), contentsOf(goldenPath("data/tokens") + suffix))
        << suffix;
}

struct InitialCase {
  const char *name;
  int layers;
  double std; ///< of weights whose product is not added to the residual stream
};

/// Standard deviation of a parameter's initial values.
double initialStd(const std::string &name, const InitialCase &model) {
  bool residual = name.ends_with("linear_proj.weight") || name.ends_with("linear_fc2.weight");
  return residual ? model.std / std::sqrt(2.0 * model.layers) : model.std;
}

TEST(Golden, InitialValuesAreThoseOfTheGoldenRuns) {
  constexpr InitialCase kCases[] = {{"gpt2", 2, 0.02}, {"llama", 3, 0.02}, {"llama_tied", 2, 0.06}};
  for (const InitialCase &model : kCases) {
    nlohmann::json values = goldenJson(fmt::format("values/{}.json", model.name));
    for (const auto &[parameter, expected] : values["initial_parameters"].items()) {
      if (expected["shape"].size() == 1)
        continue;
      uint64_t key = streamKey(/*seed=*/1234, parameter);
      double std = initialStd(parameter, model), squares = 0;
      int64_t count = int64_t{expected["shape"][0]} * int64_t{expected["shape"][1]};
      for (int64_t i = 0; i < count; ++i) {
        double value = std * normalAt(key, static_cast<uint64_t>(i));
        squares += value * value;
        if (i < 4) {
          EXPECT_FLOAT_EQ(static_cast<float>(value), expected["first"][static_cast<size_t>(i)]);
        }
      }
      EXPECT_NEAR(std::sqrt(squares), expected["norm"], 1e-6 * std::sqrt(squares)) << parameter;
    }
  }
}

} // namespace
} // namespace shardc::data
