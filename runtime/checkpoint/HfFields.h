// The rows of HfFields.def: which architectures of Hugging Face are known, and what each field of
// their `config.json` means here. Reads no shapes and makes no options: HfModel and HfArguments do.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// How a model's tensors are named and laid out.
enum class HfFamily : uint8_t {
  Dense,    ///< attention with groups and a feed-forward layer
  Moe,      ///< experts in place of some feed-forward layers
  Deepseek, ///< latent attention, experts after some dense layers
  GptOss,   ///< sinks of attention, biases, experts in stacked and transposed tensors
  Gpt2,
};

enum class HfArch : uint8_t {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, silence) enumerator,
#include "runtime/checkpoint/HfFields.def"
};

struct HfArchitecture {
  HfArch arch = HfArch::Llama;
  std::string_view modelType; ///< `model_type` in config.json
  std::string_view className; ///< the class of transformers, as in `architectures`
  HfFamily family = HfFamily::Dense;
  std::string_view recipeFamily; ///< the word after `model` in a recipe
  uint8_t silence = 0;           ///< what the library takes where the file is silent

  static constexpr uint8_t kTied = 1;    ///< the output layer has the embeddings' weights
  static constexpr uint8_t kPadding = 2; ///< some token's embedding is not trained
  bool isTiedBySilence() const { return (silence & kTied) != 0; }
  bool padsBySilence() const { return (silence & kPadding) != 0; }
};

std::span<const HfArchitecture> hfArchitectures();
const HfArchitecture &infoOf(HfArch arch);
/// Null where the type is not known.
const HfArchitecture *findHfArchitecture(std::string_view modelType);

enum class HfUse : uint8_t {
  Copy,  ///< it is an option, both ways
  Sets,  ///< code reads it
  Needs, ///< one value alone is taken
  Idle,  ///< changes nothing that a run computes
};
enum class HfType : uint8_t { Whole, Number, Flag };

struct HfField {
  uint32_t archs = 0;    ///< bit n: HfArch n has the field
  std::string_view name; ///< with the name of its object and a dot before it
  HfUse use = HfUse::Idle;
  std::string_view text;      ///< of Copy the option's last name, of Needs the value, of others why
  std::string_view what = {}; ///< of Needs
  HfType type = HfType::Whole;
  std::string_view fallback = {}; ///< of Copy: where the file is silent; empty: follows from others

  bool isOf(HfArch arch) const { return (archs >> static_cast<unsigned>(arch) & 1) != 0; }
};

std::span<const HfField> hfFields();
/// The row of a field of this architecture; null where it has none.
const HfField *findHfField(HfArch arch, std::string_view name);
/// What the library takes for a whole number that the file does not have; 0 where it follows from
/// others.
int64_t hfFallback(HfArch arch, std::string_view name);

/// Refuses what `config.json` has and the table does not: HfArchitectureUnknown for the model type,
/// HfFieldUnknown for a field, HfSettingRefused for a value that is not the one that is needed.
/// `path` is where messages say that the text is from; `place` receives the dotted name of the
/// field, if not null. Fields that are null say nothing.
Status checkHfFields(const nlohmann::json &file, const std::string &path, std::string *place);

} // namespace shardc::checkpoint
