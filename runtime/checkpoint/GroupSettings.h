// Where an fsdp_dtensor checkpoint keeps the optimizer's settings of each parameter. Since torch
// 2.4 every field is a separate object. Before, a dictionary without tensors was one object, which
// contains the settings of a parameter, or of all of them.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// One setting: an object of the checkpoint, or an entry of a larger one.
struct GroupField {
  std::string key;                 ///< the object that holds it
  std::optional<PlainValue> value; ///< if it is an entry
};
using GroupFields = std::map<std::string, GroupField>;
/// Plain name of a parameter -> its settings.
using GroupSettings = std::map<std::string, GroupFields, std::less<>>;

/// All settings; only larger objects are read now. InvalidInput with the object's name if one of
/// those is not a dictionary of plain values.
Result<GroupSettings> findGroupSettings(const CheckpointReader &reader);
/// Whether an object of the checkpoint holds such settings.
bool holdsGroupSettings(std::string_view key);
/// The value of a setting, none if it is not plain; errors of readObject.
Result<std::optional<PlainValue>> readGroupField(const CheckpointReader &reader,
                                                 const GroupField &field);

/// The value of an object whose contents are plain; errors of readObject and plainValueOf.
Result<PlainValue> readPlainObject(const CheckpointReader &reader, std::string_view name);
/// The entries of an object that is a dictionary, as torch before 2.4 saved those without tensors.
Result<PlainEntries> readDictionary(const CheckpointReader &reader, const std::string &name);

} // namespace shardc::checkpoint
