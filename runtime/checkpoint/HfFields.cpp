#include "runtime/checkpoint/HfFields.h"

#include <algorithm>

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

// Names that the tables of architectures and of biases use in their last columns.
constexpr bool Straight = false, Transposed = true;
constexpr HfBiases Qkv = {.ofQkv = true}, Projection = {.ofProjection = true},
                   Mlp = {.ofMlp = true};

constexpr HfArchitecture kArchitectures[] = {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed)                      \
  {HfArch::enumerator, type, name, HfLayout::layout, family, isTransposed},
#include "runtime/checkpoint/HfFields.def"
};

constexpr HfText kTexts[] = {
#define HF_TEXT(type, enumerator, defaults, constants)                                             \
  {type, HfArch::enumerator, defaults, constants},
#include "runtime/checkpoint/HfFields.def"
};

constexpr HfOuter kOuters[] = {
#define HF_OUTER(type, name, textType, tied) {type, name, textType, tied},
#include "runtime/checkpoint/HfFields.def"
};

/// Names that the tables use in their first column.
namespace arch {
#define HF_ARCHITECTURE(enumerator, type, name, layout, family, isTransposed)                      \
  constexpr HfArchs enumerator = HfArchs{1} << static_cast<unsigned>(HfArch::enumerator);
#include "runtime/checkpoint/HfFields.def"
constexpr HfArchs All = kAllHfArchs;
#define HF_SET(name, architectures) constexpr HfArchs name = architectures;
#include "runtime/checkpoint/HfFields.def"

constexpr HfField kFieldRows[] = {
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

struct Means {
  HfArchs archs;
  std::string_view field, value, other;
};
constexpr Means kMeans[] = {
#define HF_MEANS(architectures, field, value, other) {architectures, field, value, other},
#include "runtime/checkpoint/HfFields.def"
};

struct Reads {
  HfArchs archs;
  std::string_view names; ///< separated by blanks
};
constexpr Reads kReads[] = {
#define HF_READ(architectures, fields) {architectures, fields},
#include "runtime/checkpoint/HfFields.def"
};

constexpr HfOption kOptions[] = {
#define HF_OPTION(architectures, option, value) {architectures, option, value},
#include "runtime/checkpoint/HfFields.def"
};

struct Renamed {
  HfArchs archs;
  std::string_view from, to;
};
constexpr Renamed kRenamed[] = {
#define HF_RENAMED(architectures, from, to) {architectures, from, to},
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

std::string renamed(HfArch arch, std::string name, std::string_view Renamed::*from,
                    std::string_view Renamed::*to) {
  for (const Renamed &row : kRenamed)
    if (size_t at = name.find(row.*from); has(row.archs, arch) && at != std::string::npos)
      name.replace(at, (row.*from).size(), row.*to);
  return name;
}
} // namespace arch

/// Calls `visit` for each of the names, between which there is a separator.
void forEachName(std::string_view names, std::string_view separator, auto visit) {
  while (!names.empty()) {
    size_t end = std::min(names.find(separator), names.size());
    visit(names.substr(0, end));
    names.remove_prefix(std::min(end + separator.size(), names.size()));
  }
}

/// A row for each of the names that the rows have.
template <typename Row>
std::vector<Row> divided(std::span<const Row> rows, std::string_view Row::*name) {
  std::vector<Row> all;
  for (const Row &row : rows)
    forEachName(row.*name, " ", [&](std::string_view each) {
      all.push_back(row);
      all.back().*name = each;
    });
  return all;
}

const std::vector<HfField> &allFields() {
  static const auto kAll = divided<HfField>(arch::kFieldRows, &HfField::name);
  return kAll;
}

/// The first field for which `fits`; null if there is none.
const HfField *findField(auto fits) {
  auto found = std::ranges::find_if(allFields(), fits);
  return found == allFields().end() ? nullptr : &*found;
}

} // namespace

std::span<const HfArchitecture> hfArchitectures() { return kArchitectures; }

const HfArchitecture &infoOf(HfArch arch) { return kArchitectures[static_cast<size_t>(arch)]; }

std::span<const HfText> hfTexts() { return kTexts; }

std::span<const HfOuter> hfOuters() { return kOuters; }

std::optional<HfArch> hfAlike(std::string_view modelType) {
#define HF_ALIKE(type, enumerator)                                                                 \
  if (modelType == type)                                                                           \
    return HfArch::enumerator;
#include "runtime/checkpoint/HfFields.def"
  return std::nullopt;
}

std::span<const HfField> hfFields() { return allFields(); }

const HfField *findHfField(HfArch arch, std::string_view name) {
  return findField([&](const HfField &row) { return row.isOf(arch) && row.name == name; });
}

json hfMeaning(HfArch arch, std::string_view name, const json &value) {
  for (const arch::Means &row : arch::kMeans)
    if (has(row.archs, arch) && row.field == name && parseJson(row.value) == value)
      return parseJson(row.other);
  return value;
}

bool libraryReadsHfField(HfArch arch, std::string_view name) {
  return std::ranges::any_of(arch::kReads, [&](const arch::Reads &row) {
    bool isRead = false;
    if (has(row.archs, arch))
      forEachName(row.names, " ", [&](std::string_view each) { isRead |= each == name; });
    return isRead;
  });
}

const HfField *findHfCopy(HfArch arch, std::string_view option) {
  return findField([&](const HfField &row) {
    return row.isOf(arch) && row.use == HfUse::Copy && row.text == option;
  });
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

std::span<const HfOption> hfOptions() {
  static const auto kAll = divided<HfOption>(arch::kOptions, &HfOption::option);
  return kAll;
}

json hfOption(HfArch arch, std::string_view option) {
  const std::span<const HfOption> rows = hfOptions();
  auto found = std::ranges::find_if(
      rows, [&](const HfOption &row) { return row.isOf(arch) && row.option == option; });
  return found != rows.end() ? parseJson(found->value) : json();
}

std::string storedHfName(HfArch arch, std::string name) {
  return arch::renamed(arch, std::move(name), &arch::Renamed::from, &arch::Renamed::to);
}

std::string loadedHfName(HfArch arch, std::string name) {
  return arch::renamed(arch, std::move(name), &arch::Renamed::to, &arch::Renamed::from);
}

std::vector<std::string_view> hfTensors(HfArch arch, std::string_view parameter) {
  const auto *found = std::ranges::find_if(arch::kTensors, [&](const arch::Tensors &row) {
    return has(row.archs, arch) && row.parameter == parameter;
  });
  std::vector<std::string_view> names;
  if (found != std::end(arch::kTensors))
    forEachName(found->tensors, ", ", [&](std::string_view each) { names.push_back(each); });
  return names;
}

} // namespace shardc::checkpoint
