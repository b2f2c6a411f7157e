// The number of parameters, computed from the configuration. It must equal the plan's number if a
// plan can be compiled, and otherwise the number that the models' authors publish.
#include <filesystem>

#include <gtest/gtest.h>

#include "compiler/config/Steps.h"
#include "compiler/lower/Family.h"
#include "compiler/lower/Lower.h"

namespace shardc::lower {
namespace {

std::optional<config::Config> load(SourceManager &sources, const std::string &path) {
  DiagEngine diags(sources);
  config::LoadOptions options;
  options.path = path;
  return config::loadConfig(sources, diags, options);
}

TEST(ParamCount, IsThatOfThePlan) {
  unsigned numCompared = 0;
  namespace fs = std::filesystem;
  for (const auto &entry : fs::recursive_directory_iterator(SHARDC_SOURCE_DIR "/recipes")) {
    bool isOverlay = entry.path().parent_path().filename() == "overlays"; // need another model
    if (entry.path().extension() != ".recipe" || isOverlay)
      continue;
    SourceManager sources;
    std::optional<config::Config> config = load(sources, entry.path().string());
    ASSERT_TRUE(config) << entry.path();
    if (!findMissing(*config).empty())
      continue;
    int64_t total = 0;
    for (const plan::Param &param : lower(*config, sources).params)
      total += plan::numbersOf(param.wholeType()).numel();
    EXPECT_EQ(countParameters(*config), total) << entry.path();
    ++numCompared;
  }
  EXPECT_GT(numCompared, 30u);
}

/// Billions of parameters, from the models' cards and reports. Our models have a padded vocabulary,
/// and gpt-oss' routers have biases that Megatron's lack.
struct ReportedCount {
  const char *recipe;
  double billions;
};

constexpr ReportedCount kReportedCounts[] = {
    {"mixtral/mixtral_8x7b", 46.70},
    {"mixtral/mixtral_8x22b", 140.6},
    {"qwen3_moe/qwen3_30b_a3b", 30.53},
    {"qwen3_moe/qwen3_235b_a22b", 235.1},
    {"gpt_oss/gpt_oss_20b", 20.91},
    {"gpt_oss/gpt_oss_120b", 116.8},
    {"deepseek/deepseek_v2", 235.7},
    {"deepseek/moonlight_16b_a3b", 15.96},
    {"qwen3/qwen3_8b", 8.19},
    {"qwen3/qwen3_32b", 32.76},
    {"nemotron/nemotron4_15b", 15.6},
    {"phi/phi4", 14.66},
    {"phi/phi4_mini", 3.836},
    {"glm4/glm4_9b", 9.40},
    {"glm4/glm4_32b", 32.57},
    {"olmo2/olmo2_7b", 7.299},
    {"olmo2/olmo2_13b", 13.72},
    {"gemma2/gemma2_2b", 2.614},
    {"gemma2/gemma2_9b", 9.242},
    {"gemma2/gemma2_27b", 27.23},
    {"gemma3/gemma3_1b", 1.000},
    {"gemma3/gemma3_4b", 3.880},
    {"gemma3/gemma3_12b", 11.77},
    {"gemma3/gemma3_27b", 27.01},
    // Their files contain embeddings and head twice: again for the multi-token prediction layer.
    {"glm45/glm45_355b_a32b", 358.0 - 1.55},
    {"glm45/glm45_air_106b_a12b", 110.0 - 1.24},
    {"llama4/llama4_scout_109b_a17b", 107.77},
    {"llama4/llama4_maverick_400b_a17b", 400.7},
    {"qwen2_moe/qwen15_moe_a2_7b", 14.32},
    {"qwen2_moe/qwen2_57b_a14b", 57.41},
    {"starcoder2/starcoder2_3b", 3.030},
    {"starcoder2/starcoder2_7b", 7.174},
    {"starcoder2/starcoder2_15b", 15.96},
    {"smollm3/smollm3_3b", 3.075},
    {"olmo3/olmo3_7b", 7.298011136},
    {"olmo3/olmo3_32b", 32.233522176},
    {"olmoe/olmoe_1b_7b", 6.919161856},
    {"stablelm/stablelm_3b", 2.795443200},
    {"stablelm/stablelm2_1_6b", 1.644515328},
    {"dots1/dots1_142b_a14b", 142.774373888},
    {"glm47/glm47_flash_30b_a3b", 29.943390976 + 0.637}, // with the multi-token prediction layer
    {"mistral4/mistral_small4_119b", 118.972826624},
    {"minimax/minimax_m2_230b_a10b", 228.689748992},
    {"granite/granite33_2b", 2.533539840},
    {"granite/granite33_8b", 8.170864640},
    {"granite/granite31_1b_a400m", 1.334628352},
    {"granite/granite31_3b_a800m", 3.298793472},
    {"hunyuan/hunyuan_7b", 7.504568320},
    {"hunyuan/hunyuan_1_8b", 1.791080448},
    {"exaone4/exaone4_1_2b", 1.279391488},
    {"exaone4/exaone4_32b", 32.003216384},
    {"qwen3_next/qwen3_next_80b_a3b", 79.674391296},
    {"nemotron_h/nemotronh_8b", 8.100852736},
    {"nemotron_h/nemotron_3_nano", 31.577937344},
    {"granite4/granite_4_h_micro", 3.191396096},
    {"granite4/granite_4_h_tiny", 6.939037248},
    {"bamba/bamba_9b", 9.780235392},
    {"lfm2/lfm2_350m", 0.354483968},
    {"lfm2/lfm2_700m", 0.742489344},
    {"lfm2/lfm2_1_2b", 1.170340608},
    {"llama3/llama31_405b", 405.9},
    {"qwen25/qwen25_0_5b", 0.494},
    {"qwen25/qwen25_1_5b", 1.544},
    {"qwen25/qwen25_3b", 3.086},
    {"qwen25/qwen25_14b", 14.77},
    {"qwen25/qwen25_32b", 32.76},
    {"qwen3/qwen3_0_6b", 0.596},
    {"qwen3/qwen3_1_7b", 1.721},
    {"qwen3/qwen3_4b", 4.022},
    {"qwen3/qwen3_14b", 14.77},
    {"llama2/llama2_13b", 13.02},
    {"llama2/llama_33b", 32.53},
    {"llama3/llama32_1b", 1.236},
    {"llama3/llama32_3b", 3.213},
    {"mistral/mistral_nemo_12b", 12.25},
    {"mistral/mistral_small_24b", 23.57},
    {"olmo2/olmo2_1b", 1.485},
    {"olmo2/olmo2_32b", 32.23},
    {"deepseek/deepseek_v3", 671.0 + 11.6}, // with the multi-token prediction layer
};

TEST(ParamCount, IsThatOfTheModelsReports) {
  for (const ReportedCount &row : kReportedCounts) {
    SourceManager sources;
    std::string path = std::string(SHARDC_SOURCE_DIR "/recipes/") + row.recipe + ".recipe";
    std::optional<config::Config> config = load(sources, path);
    ASSERT_TRUE(config) << row.recipe;
    double billions = static_cast<double>(countParameters(*config)) * 1e-9;
    EXPECT_NEAR(billions, row.billions, 0.005 * row.billions) << row.recipe;
  }
}

} // namespace
} // namespace shardc::lower
