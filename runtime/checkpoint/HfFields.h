// Access to the rows of HfFields.def: the known Hugging Face architectures, the meaning of each
// field of their `config.json`, and the names of their tensors. HfModel derives shapes from it, and
// HfArguments options.
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
  Dense,    ///< grouped attention and a feed-forward layer
  Moe,      ///< experts in place of some feed-forward layers
  Stacked,  ///< like Moe, with the tensors of all experts stacked and transposed
  Deepseek, ///< latent attention; experts after some dense layers
  GptOss,   ///< stacked, transposed experts with biases; rows of gate and up alternate
};

/// An architecture; one enumerator per row.
enum class HfArch : uint8_t {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed) enumerator,
#include "runtime/checkpoint/HfFields.def"
};

/// The HF_ARCHITECTURE row of an architecture.
struct HfArchitecture {
  HfArch arch = HfArch::Llama;
  std::string_view modelType; ///< `model_type` in config.json
  std::string_view className; ///< its class in transformers, as in `architectures`
  HfLayout layout = HfLayout::Dense;
  std::string_view recipeFamily; ///< the word after `model` in a recipe
  bool isTransposed = false;     ///< linear layers store [in, out]
};

/// All rows, and the row of one architecture.
std::span<const HfArchitecture> hfArchitectures();
const HfArchitecture &infoOf(HfArch arch);

/// Another model type of an architecture.
struct HfText {
  std::string_view modelType;
  HfArch arch = HfArch::Llama;
  std::string_view defaults;  ///< JSON object: values of fields that a file leaves out
  std::string_view constants; ///< JSON object: values of fields that the library does not read
};
std::span<const HfText> hfTexts();

/// A model of several parts, one of which is a text model.
struct HfOuter {
  std::string_view modelType, className;
  std::string_view textType; ///< type of the text model if the file does not set it
  std::string_view tied;     ///< default of `tie_word_embeddings` in the outer model, as JSON
};
std::span<const HfOuter> hfOuters();

/// The architecture that computes what a type that is not imported does from the same fields;
/// nothing if none is known to.
std::optional<HfArch> hfAlike(std::string_view modelType);

/// What a field means for an import.
enum class HfUse : uint8_t {
  Copy,   ///< corresponds to one option, in both directions
  Sets,   ///< code interprets it
  Biases, ///< says whether some linear layers have biases
  Agrees, ///< must agree with other fields, since the library does not read it
  Needs,  ///< only one value is supported
  Idle,   ///< changes nothing that a run computes
};
/// The JSON type of a field's value: a whole number, any number, true or false.
enum class HfType : uint8_t { Whole, Number, Flag };

/// Which linear layers have biases.
struct HfBiases {
  bool ofQkv = false, ofProjection = false, ofMlp = false;

  friend constexpr HfBiases operator|(HfBiases a, HfBiases b) {
    return {a.ofQkv || b.ofQkv, a.ofProjection || b.ofProjection, a.ofMlp || b.ofMlp};
  }
};

/// A set of architectures: bit n stands for HfArch n.
using HfArchs = uint64_t;
constexpr bool has(HfArchs archs, HfArch arch) {
  return (archs >> static_cast<unsigned>(arch) & 1) != 0;
}

constexpr unsigned kNumHfArchs = 0
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed) +1
#include "runtime/checkpoint/HfFields.def"
    ;
constexpr HfArchs kAllHfArchs = (HfArchs{1} << kNumHfArchs) - 1;

/// One field of `config.json`, for the architectures that have it.
struct HfField {
  HfArchs archs = 0;
  std::string_view name; ///< in a nested object: the object's name, a dot and the field's name
  HfUse use = HfUse::Idle;
  std::string_view text;      ///< Copy: the option's last segment; Needs: the value; else a reason
  std::string_view what = {}; ///< for Needs: the meaning of the value
  HfType type = HfType::Whole;
  std::string_view fallback = {}; ///< default as JSON; empty: follows from other fields
  HfBiases parts = {};            ///< only for Biases

  bool isOf(HfArch arch) const { return has(archs, arch); }
};

/// The value of an option if no field sets it.
struct HfOption {
  HfArchs archs = 0;
  std::string_view option, value; ///< last segment of the option; value as JSON

  bool isOf(HfArch arch) const { return has(archs, arch); }
};

std::span<const HfField> hfFields();
/// The row of a field of this architecture; null if there is none.
const HfField *findHfField(HfArch arch, std::string_view name);
/// The value that the library uses instead of this value of the field.
nlohmann::json hfMeaning(HfArch arch, std::string_view name, const nlohmann::json &value);
/// Whether the library's code reads the field although it has no row.
bool libraryReadsHfField(HfArch arch, std::string_view name);
/// The first row of a field that corresponds to the option; null if there is none.
const HfField *findHfCopy(HfArch arch, std::string_view option);
/// Whether the architecture has the field, and the field affects options.
bool readsHfField(HfArch arch, std::string_view name);
/// The library's default for a missing field; null if it follows from other fields.
nlohmann::json hfFallback(HfArch arch, std::string_view name);
/// The library's default for a missing integer field; `otherwise` if the default follows from other
/// fields.
int64_t hfWholeFallback(HfArch arch, std::string_view name, int64_t otherwise = 0);

std::span<const HfOption> hfOptions();
/// The value in the first row of an option that names the architecture; null if there is none.
nlohmann::json hfOption(HfArch arch, std::string_view option);

/// The name that published files have for a tensor, whose name in transformers' memory may differ.
std::string storedHfName(HfArch arch, std::string name);
/// The other way round: the name in transformers 5's model of a tensor of a file.
std::string loadedHfName(HfArch arch, std::string name);
/// Names of a parameter's tensors, as in the table; empty if the architecture lacks it.
std::vector<std::string_view> hfTensors(HfArch arch, std::string_view parameter);

} // namespace shardc::checkpoint
