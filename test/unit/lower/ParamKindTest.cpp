// Kinds of parameters: each parameter has a shape and a name that its kind's row in ParamKinds.def
// has.
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Steps.h"
#include "compiler/lower/Family.h"
#include "compiler/model/ParamKinds.h"

namespace shardc::lower {
namespace {

using model::ParamKindInfo;

bool isOneOf(std::string_view names, std::string_view name) {
  for (size_t begin = 0; begin < names.size();) {
    size_t end = std::min(names.find(' ', begin), names.size());
    if (name.ends_with(names.substr(begin, end - begin)))
      return true;
    begin = end + 1;
  }
  return false;
}

class ParamKinds : public testing::Test {
protected:
  void expectKindsOf(const std::string &path, const std::vector<std::string> &sets = {}) {
    SourceManager sources;
    DiagEngine diags(sources);
    config::LoadOptions options;
    options.path = path;
    options.sets = sets;
    std::optional<config::Config> config = config::loadConfig(sources, diags, options);
    ASSERT_TRUE(config) << path;
    if (!findMissing(*config).empty())
      return;
    const model::Decoder decoder = decoderOf(*config);
    for (const model::Unit &unit : decoder.units())
      for (const model::ParamSpec &param : model::paramsOf(unit)) {
        const ParamKindInfo &kind = model::paramKindInfo(param.kind);
        EXPECT_TRUE(isOneOf(kind.names, param.name)) << path << ": " << kind.word << param.name;
        size_t rank = param.shape.size() - (param.isStacked ? 1 : 0);
        EXPECT_EQ(rank, kind.shape == ParamKindInfo::Vector ? 1u : 2u) << path << param.name;
        seen_.insert(kind.word);
      }
  }

  std::set<std::string_view> seen_;
};

TEST_F(ParamKinds, HaveTheirNamesAndShapesInEachRecipe) {
  namespace fs = std::filesystem;
  for (const auto &entry : fs::recursive_directory_iterator(SHARDC_SOURCE_DIR "/recipes"))
    if (entry.path().extension() == ".recipe" &&
        entry.path().parent_path().filename() != "overlays")
      expectKindsOf(entry.path().string());
  expectKindsOf(SHARDC_SOURCE_DIR "/recipes/finetune/llama31_70b_lora.recipe",
                {"peft.lora_bias=true"});
  for (const ParamKindInfo &kind : model::kParamKinds)
    EXPECT_TRUE(seen_.contains(kind.word)) << "no recipe has a parameter of kind " << kind.word;
}

TEST_F(ParamKinds, MuonTakesMatricesAndNoTables) {
  for (const ParamKindInfo &kind : model::kParamKinds)
    EXPECT_EQ(kind.takesMuon,
              kind.shape == ParamKindInfo::Matrix && kind.rate == ParamKindInfo::Common &&
                  kind.word != std::string_view("mamba_in"))
        << kind.word;
}

} // namespace
} // namespace shardc::lower
