// The rows of HfFields.def: which architectures of Hugging Face are known, what each field of their
// `config.json` means here, and how their tensors are named. Reads no shapes and makes no options:
// HfModel and HfArguments do.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// How the tensors of a model's layers are laid out.
enum class HfLayout : uint8_t {
  Dense,    ///< attention with groups and a feed-forward layer
  Moe,      ///< experts in place of some feed-forward layers
  Stacked,  ///< the same with transposed tensors of all experts
  Deepseek, ///< latent attention, experts after some dense layers
  GptOss,   ///< transposed tensors of all experts with biases, whose gate and up rows take turns
};

/// An architecture, by the number of its row.
enum class HfArch : uint8_t {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed) enumerator,
#include "runtime/checkpoint/HfFields.def"
};

struct HfArchitecture {
  HfArch arch = HfArch::Llama;
  std::string_view modelType; ///< `model_type` in config.json
  std::string_view className; ///< the class of transformers, as in `architectures`
  HfLayout layout = HfLayout::Dense;
  std::string_view recipeFamily; ///< the word after `model` in a recipe
  bool isTransposed = false;     ///< linear layers store [in, out]
};

std::span<const HfArchitecture> hfArchitectures();
const HfArchitecture &infoOf(HfArch arch);

/// Another model type of an architecture.
struct HfText {
  std::string_view modelType;
  HfArch arch = HfArch::Llama;
  std::string_view defaults;  ///< a JSON object, of fields on which a file is silent
  std::string_view constants; ///< the same, of fields that the library does not read
};
std::span<const HfText> hfTexts();

/// A model of several parts, one of which is a text model.
struct HfOuter {
  std::string_view modelType, className;
  std::string_view textType; ///< the type of the text model where the file does not say it
  std::string_view tied;     ///< the default of `tie_word_embeddings` outside, as JSON
};
std::span<const HfOuter> hfOuters();

enum class HfUse : uint8_t {
  Copy,   ///< it is an option, both ways
  Sets,   ///< code reads it
  Biases, ///< whether some linear layers have biases
  Agrees, ///< must say what others say, since the library does not read it
  Needs,  ///< one value alone is taken
  Idle,   ///< changes nothing that a run computes
};
enum class HfType : uint8_t { Whole, Number, Flag };

/// Linear layers with biases.
struct HfBiases {
  bool ofQkv = false, ofProjection = false, ofMlp = false;

  friend constexpr HfBiases operator|(HfBiases a, HfBiases b) {
    return {a.ofQkv || b.ofQkv, a.ofProjection || b.ofProjection, a.ofMlp || b.ofMlp};
  }
};

/// Bit n: HfArch n.
using HfArchs = uint64_t;
constexpr bool has(HfArchs archs, HfArch arch) {
  return (archs >> static_cast<unsigned>(arch) & 1) != 0;
}

constexpr unsigned kNumHfArchs = 0
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed) +1
#include "runtime/checkpoint/HfFields.def"
    ;
constexpr HfArchs kAllHfArchs = (HfArchs{1} << kNumHfArchs) - 1;

struct HfField {
  HfArchs archs = 0;
  std::string_view name; ///< with the name of its object and a dot before it
  HfUse use = HfUse::Idle;
  std::string_view text;      ///< of Copy the option's last name, of Needs the value, of others why
  std::string_view what = {}; ///< of Needs
  HfType type = HfType::Whole;
  std::string_view fallback = {}; ///< as JSON, where the file is silent; empty: follows from others
  HfBiases parts = {};            ///< of Biases

  bool isOf(HfArch arch) const { return has(archs, arch); }
};

/// An option that architectures have where no field says it.
struct HfOption {
  HfArchs archs = 0;
  std::string_view option, value; ///< its last name, and its value as JSON

  bool isOf(HfArch arch) const { return has(archs, arch); }
};

std::span<const HfField> hfFields();
/// The row of a field of this architecture; null if it has no such field.
const HfField *findHfField(HfArch arch, std::string_view name);
/// The value that the library takes for a value of this field.
nlohmann::json hfMeaning(HfArch arch, std::string_view name, const nlohmann::json &value);
/// Whether the library's code reads a field that has no row.
bool libraryReadsHfField(HfArch arch, std::string_view name);
/// The first row of a field that is this option; null without one.
const HfField *findHfCopy(HfArch arch, std::string_view option);
/// Whether code reads the field, or an option is it.
bool readsHfField(HfArch arch, std::string_view name);
/// The library's default for a field that the file lacks; null if it follows from other fields.
nlohmann::json hfFallback(HfArch arch, std::string_view name);
/// The same for an integer; `otherwise` if it follows from other fields.
int64_t hfWholeFallback(HfArch arch, std::string_view name, int64_t otherwise = 0);

std::span<const HfOption> hfOptions();
/// The value of the first row of an option that names the architecture; null without one.
nlohmann::json hfOption(HfArch arch, std::string_view option);

/// The names of a parameter's tensors in the table; empty if the architecture lacks it.
std::vector<std::string_view> hfTensors(HfArch arch, std::string_view parameter);

} // namespace shardc::checkpoint
