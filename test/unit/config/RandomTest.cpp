// Random recipes over all options: nothing crashes, every error has a location or says what is
// missing, and printed recipes read back equal.
#include <random>

#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

/// Random values from a seed: mostly values that the option accepts.
class Draw {
public:
  explicit Draw(unsigned seed) : random_(seed) {}

  size_t below(size_t bound) { return random_() % bound; }

  std::string value(const OptionInfo &option) {
    if (below(25) == 0)
      return "none";
    if (below(40) == 0)
      return below(2) ? "\"x\"" : "-1"; // a value of another type, or out of range
    return byType(option.type);
  }

private:
  std::string byType(const OptionType &type) {
    const char *ints[] = {"1", "1", "2",  "2",     "3",
                          "4", "8", "64", "1_000", "9_223_372_036_854_775_807"};
    const char *floats[] = {"0.0", "0.1", "0.5", "1.0", "2.5", "1e-5", "1e30"};
    switch (type.type) {
    case ValueType::Bool:
      return below(2) ? "true" : "false";
    case ValueType::Int:
      return ints[below(std::size(ints))];
    case ValueType::Float:
      return floats[below(std::size(floats))];
    case ValueType::String:
      return below(2) ? "\"1\"" : "\"a b\"";
    case ValueType::Size:
      return below(2) ? "80GiB" : "1";
    case ValueType::Duration:
      return below(2) ? "90s" : "5";
    case ValueType::Enum:
      return enumerator(type.enumKind);
    case ValueType::IntList:
      return "[1, 2, " + std::string(ints[below(std::size(ints))]) + "]";
    case ValueType::FloatList:
      return "[0.5]";
    case ValueType::StringList:
      return "[\"a\", \"b\"]";
    case ValueType::EnumList:
      return "[" + enumerator(type.enumKind) + "]";
    case ValueType::Blend:
      return below(2) ? "[0.5, \"a\", 0.5, \"b\"]" : "[\"a\"]";
    }
    return "1";
  }

  std::string enumerator(EnumKind kind) {
    llvm::ArrayRef<llvm::StringRef> spellings = enumSpellings(kind);
    return "\"" + spellings[below(spellings.size())].str() + "\"";
  }

  std::mt19937 random_;
};

std::string randomBody(Draw &draw) {
  std::string body;
  size_t count = 1 + draw.below(30);
  for (size_t i = 0; i < count; ++i) {
    const OptionInfo &option = options()[draw.below(options().size())];
    body += option.path.str() + " = " + draw.value(option) + "\n";
  }
  // Switches that many rules depend on are drawn more often than others.
  for (const char *line : {"dist.use_megatron_fsdp = true\n", "mixed_precision = bf16_mixed\n",
                           "ddp.megatron_fsdp_version = 2\n", "dist.use_torch_fsdp2 = true\n",
                           "cluster { gpu = h100 }\n", "model.num_moe_experts = 4\n"})
    if (draw.below(4) == 0)
      body += line;
  return body;
}

/// Whether the option is copied to another option. It is left out if that option has another value.
bool isField(Opt opt) {
  return llvm::any_of(copiedFields(), [&](CopiedField copy) { return copy.field == opt; });
}

TEST(Random, RecipesNeverCrashAndReadBack) {
  unsigned accepted = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Draw draw(seed);
    std::string body = randomBody(draw);
    auto loaded = loadBody(body);
    ASSERT_TRUE(loaded->config.has_value());
    for (const Diagnostic &message : loaded->messages)
      EXPECT_EQ(message.text.find('{'), std::string::npos) << message.text;
    if (loaded->diags.hasErrors())
      continue;
    ++accepted;
    std::string text = printRecipe(*loaded->config);
    auto again = loadText(text);
    for (const OptionInfo &option : options())
      EXPECT_TRUE((*loaded->config)[option.opt].value == (*again->config)[option.opt].value ||
                  (isField(option.opt) && !again->config->has(option.opt)))
          << option.path.str() << " of\n"
          << body << "\nprinted as\n"
          << text;
  }
  EXPECT_GT(accepted, 25u);
}

bool isNumber(const OptionInfo &option) {
  return option.type.type == ValueType::Int || option.type.type == ValueType::Size ||
         option.type.type == ValueType::Duration;
}

/// Sets each numeric option to the extremes of 64 bits, and to values whose product with a small
/// number overflows, while another option is large as well.
TEST(Random, NumbersBeyondAllSizes) {
  const char *kLarge[] = {"9_223_372_036_854_775_807", "4_611_686_018_427_387_904", "4_294_967_296",
                          "1_000_000_000"};
  std::mt19937 random(11);
  std::vector<const OptionInfo *> numbers;
  for (const OptionInfo &option : options())
    if (isNumber(option))
      numbers.push_back(&option);
  for (const OptionInfo *option : numbers)
    for (const char *value : kLarge)
      for (const char *context : {"", "model.pipeline_model_parallel_size = 2\n",
                                  "model.num_moe_experts = 4\nmodel.context_parallel_size = 2\n"}) {
        const OptionInfo &other = *numbers[random() % numbers.size()];
        std::string body = context;
        body += "model.num_layers = 8\n" + option->path.str() + " = " + value + "\n";
        body += other.path.str() + " = " + (random() % 2 ? kLarge[random() % 4] : "4") + "\n";
        ASSERT_TRUE(loadBody(body)->config.has_value()) << body;
      }
}

TEST(Random, EveryOptionAlone) {
  Draw draw(7);
  for (const OptionInfo &option : options())
    for (unsigned i = 0; i < 4; ++i)
      for (const char *context : {"", "dist.use_megatron_fsdp = true\n"}) {
        auto loaded = loadBody(context + option.path.str() + " = " + draw.value(option));
        ASSERT_TRUE(loaded->config.has_value());
      }
}

} // namespace
} // namespace shardc::config::test
