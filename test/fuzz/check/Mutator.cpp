// Mutations that libFuzzer rarely finds: inserts a line that sets an option to a value, of its type
// or of another, before the recipe's last brace. Every second mutation is one of these.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "compiler/config/Options.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t sizeMax);

namespace shardc {
namespace {

using Random = std::minstd_rand;

const char *pick(Random &random, llvm::ArrayRef<const char *> values) {
  return values[random() % values.size()];
}

std::string valueOf(Random &random, const config::OptionType &type) {
  static constexpr const char *kInts[] = {"0",
                                          "1",
                                          "2",
                                          "3",
                                          "4",
                                          "8",
                                          "16",
                                          "127",
                                          "4096",
                                          "65_536",
                                          "2_147_483_648",
                                          "4_503_599_627_370_497",
                                          "9_223_372_036_854_775_807",
                                          "-1"};
  static constexpr const char *kFloats[] = {"0.0", "1.0", "0.5", "-1.0", "1e-300", "1e300", "3e-4"};
  static constexpr const char *kOthers[] = {
      "none",   "true", "false", "\"\"",     "\"docs\"",    "[]",
      "[1, 0]", "1GiB", "30min", "0.9, 0.1", "(0.9, 0.95)", "[0.5, \"docs\", 0.5, \"docs\"]"};
  if (random() % 8 == 0)
    return pick(random, kOthers);
  switch (type.type) {
  case config::ValueType::Bool:
    return random() % 2 ? "true" : "false";
  case config::ValueType::Float:
    return pick(random, kFloats);
  case config::ValueType::Enum: {
    llvm::ArrayRef<llvm::StringRef> spellings = config::enumSpellings(type.enumKind);
    return spellings[random() % spellings.size()].str();
  }
  case config::ValueType::EnumList: {
    llvm::ArrayRef<llvm::StringRef> spellings = config::enumSpellings(type.enumKind);
    return "[" + spellings[random() % spellings.size()].str() + "]";
  }
  case config::ValueType::Int:
  case config::ValueType::Size:
  case config::ValueType::Duration:
    return pick(random, kInts);
  case config::ValueType::IntList:
    return std::string("[") + pick(random, kInts) + ", " + pick(random, kInts) + "]";
  default:
    return pick(random, kOthers);
  }
}

} // namespace
} // namespace shardc

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t sizeMax,
                                          unsigned seed) {
  using namespace shardc;
  Random random(seed);
  std::string text(reinterpret_cast<const char *>(data), size);
  size_t brace = text.rfind('}');
  if (random() % 2 || brace == std::string::npos)
    return LLVMFuzzerMutate(data, size, sizeMax);
  const config::OptionInfo &option = config::options()[random() % config::kNumOptions];
  text.insert(brace, "\n  " + option.path.str() + " = " + valueOf(random, option.type) + "\n");
  if (text.size() > sizeMax)
    return LLVMFuzzerMutate(data, size, sizeMax);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
