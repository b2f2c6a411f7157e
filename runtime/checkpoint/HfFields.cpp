#include "runtime/checkpoint/HfFields.h"

#include <algorithm>
#include <vector>

#include "runtime/base/EditDistance.h"
#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

// The words of the column of traits, and of that of biases.
constexpr uint8_t Nothing = 0, Padding = HfArchitecture::kPadding,
                  Transposed = HfArchitecture::kTransposed;
constexpr HfBiases Qkv = {.ofQkv = true}, Projection = {.ofProjection = true},
                   Mlp = {.ofMlp = true};

constexpr HfArchitecture kArchitectures[] = {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, traits)                            \
  {HfArch::enumerator, type, name, HfLayout::layout, family, traits},
#include "runtime/checkpoint/HfFields.def"
};

/// The names of the table's first column.
namespace arch {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, traits)                            \
  constexpr HfArchs enumerator = HfArchs{1} << static_cast<unsigned>(HfArch::enumerator);
#include "runtime/checkpoint/HfFields.def"
constexpr HfArchs All = (HfArchs{1} << std::size(kArchitectures)) - 1;
#define HF_SET(name, architectures) constexpr HfArchs name = architectures;
#include "runtime/checkpoint/HfFields.def"

constexpr HfField kFields[] = {
#define HF_COPY(architectures, field, option, type, fallback)                                      \
  {architectures, field, HfUse::Copy, option, {}, HfType::type, fallback},
#define HF_SETS(architectures, field, fallback, what)                                              \
  {architectures, field, HfUse::Sets, what, {}, {}, fallback},
#define HF_BIASES(architectures, field, fallback, parts)                                           \
  {architectures, field, HfUse::Biases, {}, {}, {}, fallback, parts},
#define HF_AGREES(architectures, field, what) {architectures, field, HfUse::Agrees, what},
#define HF_NEEDS(architectures, field, value, what)                                                \
  {architectures, field, HfUse::Needs, value, what},
#define HF_IDLE(architectures, field, why) {architectures, field, HfUse::Idle, why},
#include "runtime/checkpoint/HfFields.def"
};

constexpr HfOption kOptions[] = {
#define HF_OPTION(architectures, option, value) {architectures, option, value},
#include "runtime/checkpoint/HfFields.def"
};

struct Tensors {
  HfArchs archs;
  std::string_view parameter, tensors;
};
constexpr Tensors kTensors[] = {
#define HF_TENSOR(architectures, parameter, tensors) {architectures, parameter, tensors},
#include "runtime/checkpoint/HfFields.def"
};
} // namespace arch

constexpr size_t kShownMax = 60;
constexpr unsigned kFar = 1000;

/// A value in one line, cut off; what is no ASCII is escaped, as a terminal shows it.
std::string shown(const json &value) {
  std::string text = toText(value, /*indent=*/-1, /*isAscii=*/true);
  return text.size() > kShownMax ? text.substr(0, kShownMax) + "..." : text;
}

/// The known name with the fewest edits; empty if even that takes more than `distanceMax`.
std::string_view nearest(std::string_view name, const std::vector<std::string_view> &known,
                         unsigned distanceMax) {
  std::string_view best;
  unsigned least = distanceMax + 1;
  for (std::string_view one : known)
    if (unsigned distance = editDistance(name, one, distanceMax); distance < least) {
      least = distance;
      best = one;
    }
  return best;
}

Status refuseType(const json &type, const std::string &path) {
  std::vector<std::string_view> types;
  std::string list;
  for (const HfArchitecture &one : kArchitectures) {
    types.push_back(one.modelType);
    list += (list.empty() ? "" : ", ") + std::string(one.modelType);
  }
  std::string name = type.is_string() ? type.get<std::string>() : "";
  constexpr size_t kNameMax = 64; // longer ones are no misspelt ones
  std::string_view near = name.size() <= kNameMax ? nearest(name, types, kFar) : "";
  return makeStatus(report::HfArchitectureUnknown, path, shown(type), list,
                    near.empty() ? types.front() : near);
}

class FieldCheck {
public:
  FieldCheck(HfArch arch, const std::string &path, std::string *place)
      : arch_(arch), path_(path), place_(place) {}

  /// Names of the table begin with `prefix`, those of the file with `own`.
  Status check(const json &object, const std::string &prefix, const std::string &own) {
    for (const auto &[key, value] : object.items())
      RETURN_IF_ERROR(checkField(prefix + key, own + key, value));
    return Status::ok();
  }

private:
  Status checkField(const std::string &name, const std::string &own, const json &value) {
    if (value.is_null())
      return Status::ok();
    const HfField *row = findHfField(arch_, name == "rope_parameters" ? "rope_scaling" : name);
    if (row == nullptr)
      return unknown(name, own);
    if (row->use == HfUse::Needs && value != parseJson(row->text)) {
      setPlace(own);
      return makeStatus(report::HfSettingRefused, path_, own, shown(value),
                        fmt::format("{} ({})", row->text, row->what));
    }
    // Of an object for layers of one kind, too.
    bool isRope = name == "rope_parameters" || name.starts_with("rope_scaling");
    if (value.is_object() && (isRope || name == "quantization_config"))
      return check(value, isRope ? "rope_scaling." : name + ".", own + ".");
    return Status::ok();
  }

  void setPlace(const std::string &own) {
    if (place_ != nullptr)
      *place_ = own;
  }

  Status unknown(const std::string &name, const std::string &own) {
    std::vector<std::string_view> known;
    for (const HfField &row : arch::kFields)
      if (row.isOf(arch_))
        known.push_back(row.name);
    constexpr size_t kNameMax = 128;
    std::string_view near = name.size() <= kNameMax
                                ? nearest(name, known, misspeltDistanceMax(name.size()))
                                : std::string_view();
    setPlace(own);
    std::string hint = near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
    std::string quoted = shown(json(own));
    return makeStatus(report::HfFieldUnknown, path_, quoted.substr(1, quoted.size() - 2),
                      infoOf(arch_).modelType, hint);
  }

  HfArch arch_;
  const std::string &path_;
  std::string *place_;
};

} // namespace

std::span<const HfArchitecture> hfArchitectures() { return kArchitectures; }

const HfArchitecture &infoOf(HfArch arch) { return kArchitectures[static_cast<size_t>(arch)]; }

const HfArchitecture *findHfArchitecture(std::string_view modelType) {
  const auto *found = std::ranges::find(kArchitectures, modelType, &HfArchitecture::modelType);
  return found == std::end(kArchitectures) ? nullptr : found;
}

std::span<const HfField> hfFields() { return arch::kFields; }

const HfField *findHfField(HfArch arch, std::string_view name) {
  const auto *found = std::ranges::find_if(
      arch::kFields, [&](const HfField &row) { return row.isOf(arch) && row.name == name; });
  return found == std::end(arch::kFields) ? nullptr : found;
}

const HfField *findHfCopy(HfArch arch, std::string_view option) {
  const auto *found = std::ranges::find_if(arch::kFields, [&](const HfField &row) {
    return row.isOf(arch) && row.use == HfUse::Copy && row.text == option;
  });
  return found == std::end(arch::kFields) ? nullptr : found;
}

bool readsHfField(HfArch arch, std::string_view name) {
  const HfField *row = findHfField(arch, name);
  return row != nullptr && (row->use == HfUse::Sets || row->use == HfUse::Copy);
}

json hfFallback(HfArch arch, std::string_view name) {
  const HfField *row = findHfField(arch, name);
  return row != nullptr && !row->fallback.empty() ? parseJson(row->fallback) : json();
}

int64_t hfWholeFallback(HfArch arch, std::string_view name, int64_t otherwise) {
  json value = hfFallback(arch, name);
  return value.is_number_integer() ? value.get<int64_t>() : otherwise;
}

std::span<const HfOption> hfOptions() { return arch::kOptions; }

json hfOption(HfArch arch, std::string_view option) {
  const auto *found = std::ranges::find_if(
      arch::kOptions, [&](const HfOption &row) { return row.isOf(arch) && row.option == option; });
  return found != std::end(arch::kOptions) ? parseJson(found->value) : json();
}

std::vector<std::string_view> hfTensors(HfArch arch, std::string_view parameter) {
  const auto *found = std::ranges::find_if(arch::kTensors, [&](const arch::Tensors &row) {
    return has(row.archs, arch) && row.parameter == parameter;
  });
  std::vector<std::string_view> names;
  std::string_view rest = found != std::end(arch::kTensors) ? found->tensors : std::string_view();
  while (!rest.empty()) {
    size_t end = std::min(rest.find(", "), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

Status checkHfFields(const json &file, const std::string &path, std::string *place) {
  auto type = file.find("model_type");
  const HfArchitecture *known = type != file.end() && type->is_string()
                                    ? findHfArchitecture(type->get_ref<const std::string &>())
                                    : nullptr;
  if (known == nullptr) {
    if (place != nullptr)
      *place = "model_type";
    return refuseType(type != file.end() ? *type : json(), path);
  }
  return FieldCheck(known->arch, path, place).check(file, "", "");
}

} // namespace shardc::checkpoint
