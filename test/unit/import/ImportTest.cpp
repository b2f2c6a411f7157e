// Tests each table and reader of the importer separately.
#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ReadValue.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

using config::Opt;

TEST(FlagTable, KnowsEveryFlagOfTheOptionTable) {
  for (const config::OptionInfo &option : config::options()) {
    if (option.flag.empty())
      continue;
    EXPECT_EQ(canonicalFlag(option.flag), option.flag) << option.path.str();
    bool isFound = false;
    for (const FlagEffect &effect : findFlag(option.flag))
      isFound |= effect.opt == option.opt && effect.negates == option.flagNegates;
    EXPECT_TRUE(isFound) << option.path.str();
    EXPECT_EQ(findName(NameKind::IdleFlag, option.flag), nullptr) << option.path.str();
  }
}

TEST(FlagTable, OtherNamesLeadToFlags) {
  for (const UpstreamName &row : upstreamNames())
    for (llvm::StringRef other : llvm::split(row.names, ' '))
      if (row.kind == NameKind::FlagAlias) {
        EXPECT_EQ(canonicalFlag(other), row.text);
        EXPECT_FALSE(findFlag(other).empty()) << other.str();
      }
}

TEST(FlagTable, RowsOfPathsNameOptions) {
  for (const UpstreamName &row : upstreamNames())
    for (llvm::StringRef path : llvm::split(row.names, ' '))
      switch (row.kind) {
      case NameKind::OffAtZero:
      case NameKind::CheckpointArg:
      case NameKind::SpecialFlag:
      case NameKind::NeededFlag:
      case NameKind::NeededByFsdp: {
        std::optional<Opt> opt = config::findOption(path);
        EXPECT_TRUE(opt && config::info(*opt).path == path) << path.str();
        break;
      }
      default:
        break;
      }
}

TEST(FlagTable, DefaultsOfTheCommandLineDifferFromTheOptions) {
  struct Row {
    Opt opt;
    const char *value, *settings;
  };
  constexpr Row kRows[] = {
#define CLI_DEFAULT(option, value, settings) {Opt::option, value, settings},
#include "compiler/upstream/UpstreamFlags.def"
  };
  for (const Row &row : kRows) {
    const config::OptionInfo &option = config::info(row.opt);
    config::Value value = config::parseTableValue(row.value, option);
    config::Value silent =
        option.hasDefault() ? config::parseTableValue(option.defaultText, option) : config::Value();
    EXPECT_NE(value, silent) << option.path.str();
  }
}

TEST(FlagTable, AttributesAreFlagsOrTheirReverse) {
  bool given = false;
  EXPECT_EQ(flagOfAttribute("use_megatron_fsdp", given), "--use-megatron-fsdp");
  EXPECT_TRUE(given);
  EXPECT_EQ(flagOfAttribute("check_for_nan_in_loss_and_grad", given),
            "--no-check-for-nan-in-loss-and-grad");
  EXPECT_FALSE(given);
  EXPECT_TRUE(flagOfAttribute("no_such_thing", given).empty());
}

TEST(Pattern, ListsOfPython) {
  EXPECT_EQ(readPattern("([0]*2+[1]*3)"), (std::vector<int64_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(readPattern("[1,0]*2"), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(readPattern("2*([1]+[0])"), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(readPattern("[1] * -1"), std::vector<int64_t>{});
  for (const char *text : {"", "3", "[1", "[1]*[1]", "[1]+1", "[0]*100001", "([1])x"})
    EXPECT_EQ(readPattern(text), std::nullopt) << text;
}

TEST(ReadValue, TakesUpstreamsSpellings) {
  auto read = [](Opt opt, llvm::StringRef text) {
    std::optional<config::Value> value =
        readValue(config::info(opt).type, *makeText(text, SourceRange()));
    return value ? toRecipeText(*value, config::info(opt).type) : std::string("-");
  };
  EXPECT_EQ(read(Opt::ModelActivationFunc, "torch.nn.functional.silu"), "silu");
  EXPECT_EQ(read(Opt::DdpMegatronFsdpMainGradsDtype, "torch.float32"), "fp32");
  EXPECT_EQ(read(Opt::ModelMoeLayerFreq, "[0]*1+[1]*2"), "[0, 1, 1]");
  EXPECT_EQ(read(Opt::ModelWindowSize, "(128,0)"), "[128, 0]");
  EXPECT_EQ(read(Opt::DistDistributedTimeoutMinutes, "30"), "30");
  EXPECT_EQ(read(Opt::ModelNumLayers, "1e1"), "10");
  EXPECT_EQ(read(Opt::ModelNumLayers, "many"), "-");
  EXPECT_EQ(read(Opt::ModelBf16, "maybe"), "-");
}

} // namespace
} // namespace shardc::upstream
