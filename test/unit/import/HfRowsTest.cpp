// The rows of HfFields.def: options that they name exist, their values are JSON, and no
// architecture has two rows for one field, or lacks tensors of its layers.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Options.h"
#include "runtime/checkpoint/HfFields.h"

namespace shardc::checkpoint {
namespace {

bool isJson(std::string_view text) { return !parseJson(text).is_discarded(); }

bool isOption(std::string_view name) {
  std::string path = "model." + std::string(name);
  return config::findOption({path.data(), path.size()}).has_value();
}

TEST(HfRows, NameOptionsThatExist) {
  // Arguments of Megatron without an option (HfArguments.h).
  const std::set<std::string_view> kMegatrons = {"add_position_embedding"};
  for (const HfField &row : hfFields())
    if (row.use == HfUse::Copy) {
      EXPECT_TRUE(isOption(row.text)) << row.name << " is " << row.text;
    }
  for (const HfOption &row : hfOptions())
    EXPECT_TRUE(isOption(row.option) || kMegatrons.contains(row.option)) << row.option;
}

TEST(HfRows, HaveValuesThatAreJson) {
  for (const HfField &row : hfFields()) {
    EXPECT_TRUE(row.fallback.empty() || isJson(row.fallback)) << row.name << ' ' << row.fallback;
    EXPECT_TRUE(row.use != HfUse::Needs || isJson(row.text)) << row.name << ' ' << row.text;
  }
  for (const HfOption &row : hfOptions())
    EXPECT_TRUE(isJson(row.value)) << row.option << ' ' << row.value;
}

TEST(HfRows, AreOneForEachFieldOfAnArchitecture) {
  for (const HfArchitecture &one : hfArchitectures()) {
    std::map<std::string_view, int> rows;
    for (const HfField &row : hfFields())
      rows[row.name] += row.isOf(one.arch);
    for (const auto &[field, count] : rows)
      EXPECT_LE(count, 1) << field << " of " << one.modelType;
  }
}

/// A row after rows for all of its architectures would have no effect.
TEST(HfRows, OfOptionsHoldForSomeArchitecture) {
  std::map<std::string_view, HfArchs> taken;
  for (const HfOption &row : hfOptions()) {
    EXPECT_NE(row.archs & ~taken[row.option], 0u) << row.option << ' ' << row.value;
    taken[row.option] |= row.archs;
  }
}

TEST(HfRows, HaveTheTensorsOfLayers) {
  for (const HfArchitecture &one : hfArchitectures()) {
    SCOPED_TRACE(one.modelType);
    auto count = [&](const char *parameter) { return hfTensors(one.arch, parameter).size(); };
    EXPECT_NE(hfTensors(one.arch, "layer").at(0).find('*'), std::string_view::npos);
    for (const char *parameter :
         {"embedding.word_embeddings", "output_layer", "layer.self_attention.linear_proj"})
      EXPECT_EQ(count(parameter), 1u) << parameter;
    EXPECT_EQ(count("decoder.final_layernorm") + count("decoder.final_norm"), 1u);
    bool hasExperts = one.layout != HfLayout::Dense;
    for (const char *parameter :
         {"layer.pre_mlp_layernorm", "layer.mlp.router", "layer.mlp.experts.linear_fc2"})
      EXPECT_EQ(count(parameter), hasExperts ? 1u : 0u) << parameter;
    if (one.layout == HfLayout::Deepseek) {
      EXPECT_EQ(count("layer.self_attention.linear_kv_up_proj"), 1u);
      continue;
    }
    size_t qkv = count("layer.self_attention.linear_qkv"), up = count("layer.mlp.linear_fc1");
    EXPECT_TRUE(qkv == 1 || qkv == 3) << qkv;
    EXPECT_TRUE(up == 1 || (up == 2 && hfOption(one.arch, "gated_linear_unit") == true)) << up;
    EXPECT_EQ(count("layer.mlp.linear_fc2"), 1u);
  }
}

TEST(HfRows, SayWhereFilesAreSilent) {
  for (const HfArchitecture &one : hfArchitectures())
    for (const HfField &row :
         hfFields()) // code reads the values of these fields even if a file lacks them
      if (row.isOf(one.arch) && (row.name == "rope_theta" || row.name == "hidden_act" ||
                                 row.name == "query_pre_attn_scalar")) {
        EXPECT_TRUE(row.use != HfUse::Sets || !row.fallback.empty()) << row.name;
      }
}

} // namespace
} // namespace shardc::checkpoint
