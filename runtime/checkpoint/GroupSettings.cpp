#include "runtime/checkpoint/GroupSettings.h"

#include <algorithm>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/FsdpNames.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kAll = "optimizer.param_to_group_meta";
constexpr size_t kWholePath = 3; ///< segments: `optimizer`, `param_to_group_meta`, the parameter

void takeEntries(const std::string &key, PlainEntries entries, GroupFields &fields) {
  for (auto &[field, value] : entries)
    fields[field] = {key, std::move(value)};
}

/// Names of the parameters to which tensors of the checkpoint belong, including joined names of
/// gated layers.
std::set<std::string, std::less<>> parametersIn(const Metadata &metadata) {
  std::set<std::string, std::less<>> names;
  for (const TensorMeta &tensor : metadata.tensors) {
    std::optional<ParamKey> key = parseTensorKey(tensor.name);
    if (!key)
      continue;
    std::string joined =
        key->name.substr(0, key->name.size() - std::min<size_t>(2, key->name.size()));
    if (key->name == splitNames(joined)[0] && isGateable(joined))
      names.insert(std::move(joined));
    names.insert(std::move(key->name));
  }
  return names;
}

/// Reads one object that has the settings of all parameters.
Status takeAll(const CheckpointReader &reader, GroupSettings &settings) {
  const std::string key(kAll);
  ASSIGN_OR_RETURN(PlainEntries params, readDictionary(reader, key));
  for (auto &[name, value] : params) {
    const auto *entries = value.as<PlainEntries>();
    if (entries == nullptr)
      return makeStatus(report::CheckpointDamaged,
                        "'{}' in '{}': the settings of '{}' are {}, not a dictionary", key,
                        reader.folder(), name, textOf(value));
    takeEntries(key, *entries, settings[plainName(name)]);
  }
  return Status::ok();
}

} // namespace

bool holdsGroupSettings(std::string_view key) {
  return key == kAll || parseGroupMetaKey(key).has_value();
}

Result<PlainValue> readPlainObject(const CheckpointReader &reader, std::string_view name) {
  ASSIGN_OR_RETURN(ObjectValue object, reader.readObject(name));
  Result<PlainValue> value = plainValueOf(object.graph(), object.root(), &object.archive);
  if (!value.isOk())
    return reader.withPlace(value.status(), *reader.findObject(name));
  return value;
}

Result<PlainEntries> readDictionary(const CheckpointReader &reader, const std::string &name) {
  ASSIGN_OR_RETURN(PlainValue value, readPlainObject(reader, name));
  const auto *entries = value.as<PlainEntries>();
  if (entries == nullptr)
    return makeStatus(report::CheckpointDamaged, "'{}' in '{}' is {}, not a dictionary", name,
                      reader.folder(), textOf(value));
  return *entries;
}

Result<std::optional<PlainValue>> readGroupField(const CheckpointReader &reader,
                                                 const GroupField &field) {
  if (field.value)
    return field.value;
  ASSIGN_OR_RETURN(ObjectValue object, reader.readObject(field.key));
  Result<PlainValue> value = plainValueOf(object.graph(), object.root(), &object.archive);
  return value.isOk() ? std::optional(std::move(*value)) : std::nullopt;
}

Result<GroupSettings> findGroupSettings(const CheckpointReader &reader) {
  GroupSettings settings;
  std::set<std::string, std::less<>> parameters = parametersIn(reader.metadata());
  for (const ObjectMeta &object : reader.metadata().objects) {
    if (object.name == kAll)
      RETURN_IF_ERROR(takeAll(reader, settings));
    std::optional<GroupMetaKey> key = parseGroupMetaKey(object.name);
    if (!key)
      continue;
    // `<parameter>` and `<parameter>.<field>` look alike. They are told apart by the names of
    // parameters, or, if a parameter's tensors have other names, by the path.
    std::string whole = plainName(std::string_view(object.name).substr(kAll.size() + 1));
    auto path = reader.metadata().paths.find(object.name);
    bool isWhole = parameters.contains(whole) ||
                   (path != reader.metadata().paths.end() && path->second.size() == kWholePath);
    if (!isWhole) {
      settings[key->name][key->field] = {object.name, std::nullopt};
      continue;
    }
    ASSIGN_OR_RETURN(PlainEntries entries, readDictionary(reader, object.name));
    takeEntries(object.name, std::move(entries), settings[whole]);
  }
  return settings;
}

} // namespace shardc::checkpoint
