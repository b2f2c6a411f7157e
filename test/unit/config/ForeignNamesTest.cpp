#include <regex>

#include <gtest/gtest.h>

#include "compiler/config/ForeignNames.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config::test {
namespace {

/// Arguments of another program, with blanks between.
struct Arguments {
  const char *program, *package, *names;
};

constexpr Arguments kArguments[] = {
#define ARGUMENTS(program, package, names) {program, package, names},
#include "test/unit/config/ForeignArguments.inc"
};

/// Words that mean something in a section of their program only, and its sections.
constexpr llvm::StringLiteral kWordsOfSections =
    " backend columns comm description enable enabled end eps experimental field folder format "
    "fraction freq group "
    "host implementation interval job length linear mode modules mpu name offload parallelism "
    "params passes path "
    "pipeline pipeline_stage port process_group ratio recipe role shards skip start strict "
    "tensor_parallel tokens "
    "type ";

bool isOurs(llvm::StringRef name) {
  for (const OptionInfo &option : options())
    if (option.name == name)
      return true;
  return findSection(name) || findForeignSection(name) ||
         kWordsOfSections.contains((" " + name + " ").str());
}

// Names that a configuration of another program may have are ours too, have a counterpart, or are
// said to have none.
TEST(ForeignNames, EachArgumentOfOtherProgramsIsAnswered) {
  size_t numNames = 0;
  for (const Arguments &each : kArguments)
    for (llvm::StringRef name : llvm::split(each.names, ' ')) {
      numNames += !name.empty();
      EXPECT_TRUE(name.empty() || isOurs(name) || findForeignName(name))
          << each.package << ": " << name.str();
    }
  EXPECT_GT(numNames, 1000u);
}

// A name with a star answers for names of the other program only: not for a misspelt one of ours.
TEST(ForeignNames, StarsStandForNoNameOfOurs) {
  size_t numStars = 0;
  for (const ForeignName &foreign : foreignNames())
    if (llvm::StringRef begin = foreign.name; begin.consume_back("*")) {
      ++numStars;
      EXPECT_GE(begin.size(), 4u) << foreign.name
                                  << " may be a slip of the pen for `kv_channels` and the like";
      for (const OptionInfo &option : options())
        EXPECT_FALSE(option.name.startswith(begin))
            << foreign.name << " covers " << option.path.str();
    }
  EXPECT_GT(numStars, 20u);
  const ForeignName *found = findForeignName("vllm_mode");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(describeForeignName(*found), "'vllm_*' are TRL's names; " + found->advice);
}

TEST(ForeignNames, AdviceNamesOptionsThatAre) {
  static const std::regex kOption("'([a-z0-9_]+\\.[a-zA-Z0-9_]+)( = [^']*)?'");
  size_t numOptions = 0;
  for (const ForeignName &foreign : foreignNames())
    for (std::sregex_iterator at(foreign.advice.begin(), foreign.advice.end(), kOption), end;
         at != end; ++at) {
      ++numOptions;
      EXPECT_TRUE(findOption((*at)[1].str()) || findAlias((*at)[1].str()))
          << foreign.name << ": " << foreign.advice;
    }
  EXPECT_GT(numOptions, 100u);
}

// A path answers before its last part does.
TEST(ForeignNames, PathsComeBeforeNames) {
  ASSERT_NE(findForeignName("debug.seed"), nullptr);
  EXPECT_EQ(findForeignName("debug.seed")->option, Opt::RngSeed);
  ASSERT_NE(findForeignName("model.num_hidden_layers"), nullptr);
  EXPECT_EQ(findForeignName("model.num_hidden_layers")->option, Opt::ModelNumLayers);
}

} // namespace
} // namespace shardc::config::test
