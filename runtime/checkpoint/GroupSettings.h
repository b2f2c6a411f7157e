// Finds the optimizer settings of each parameter in an fsdp_dtensor checkpoint. Since torch 2.4,
// every field is a separate object. Before, a dictionary without tensors was saved as one object,
// which has the settings of one parameter or of all.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// One setting: an object of the checkpoint, or an entry of a larger object.
struct GroupField {
  std::string key;                 ///< key of the object that contains it
  std::optional<PlainValue> value; ///< set if it is an entry
};
using GroupFields = std::map<std::string, GroupField>;
/// The settings of each parameter, by plain name.
using GroupSettings = std::map<std::string, GroupFields, std::less<>>;

/// Finds all settings. Only larger objects are read now. InvalidInput, with the object's name, if
/// one of these is not a dictionary of plain values.
Result<GroupSettings> findGroupSettings(const CheckpointReader &reader);
/// Whether an object with this key contains such settings.
bool holdsGroupSettings(std::string_view key);
/// The value of a setting; nothing if it is not plain. Fails like readObject.
Result<std::optional<PlainValue>> readGroupField(const CheckpointReader &reader,
                                                 const GroupField &field);

/// The value of an object with plain contents. Fails like readObject and plainValueOf.
Result<PlainValue> readPlainObject(const CheckpointReader &reader, std::string_view name);
/// The entries of an object that is a dictionary, as torch before 2.4 saved dictionaries without
/// tensors.
Result<PlainEntries> readDictionary(const CheckpointReader &reader, const std::string &name);

} // namespace shardc::checkpoint
