#include "runtime/checkpoint/GroupMap.h"

#include <filesystem>
#include <optional>
#include <set>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/FsdpNames.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {
namespace {

constexpr uint64_t kGroupMapMax = uint64_t{1} << 30;
constexpr std::string_view kWrapper = "module.module.";

std::string replacedAll(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

Status notNumber(const CheckpointReader &reader, const std::string &name) {
  return makeStatus(StatusCode::InvalidInput,
                    "'{}' in '{}' is not an integer, and a map of groups contains nothing else",
                    name, reader.folder());
}

/// A number of the map. It may be saved as an object or as a tensor with one element.
Result<int64_t> numberIn(const CheckpointReader &reader, const std::string &name) {
  if (const TensorMeta *tensor = reader.findTensor(name)) {
    int64_t value = 0;
    if (tensor->type != Element::I64 || elementCount(tensor->shape) != 1)
      return notNumber(reader, name);
    RETURN_IF_ERROR(reader.read(name, Box::whole(tensor->shape), Element::I64, &value));
    return value;
  }
  ASSIGN_OR_RETURN(ObjectValue object, reader.readObject(name));
  std::optional<int64_t> value = object.graph().asInteger(object.root());
  if (!value)
    return notNumber(reader, name);
  return *value;
}

using Numbers = std::vector<std::pair<std::string, int64_t>>;

/// All numbers of a folder, in its order.
Result<Numbers> numbersIn(const std::string &folder) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder));
  std::vector<std::string> names;
  for (const ObjectMeta &object : reader.metadata().objects)
    names.push_back(object.name);
  for (const TensorMeta &tensor : reader.metadata().tensors)
    names.push_back(tensor.name);
  Numbers numbers;
  for (const std::string &name : names) {
    ASSIGN_OR_RETURN(int64_t group, numberIn(reader, name));
    numbers.emplace_back(name, group);
  }
  return numbers;
}

/// A file in the map's folder that is neither part of the map nor the JSON file made from it;
/// nothing if there is none.
std::optional<std::string> strangerIn(const std::string &folder, const Metadata &map) {
  std::set<std::string> known = {".metadata", kIntegrityFile, kGroupMapFile};
  for (const ObjectMeta &object : map.objects)
    known.insert(object.record.file);
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (std::string name = at->path().filename().string(); !known.contains(name))
      return name;
  return std::nullopt;
}

/// Ok if the folder, and the JSON file made from it, may be replaced: it is empty, or an older map
/// and nothing else.
Status checkReplaceable(const std::string &folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error) || std::filesystem::is_empty(folder, error))
    return Status::ok();
  Result<CheckpointReader> reader = CheckpointReader::open(folder);
  bool isMap = reader.isOk() && reader->metadata().tensors.empty();
  if (isMap)
    for (const ObjectMeta &object : reader->metadata().objects)
      isMap = isMap && object.name.starts_with(kWrapper);
  if (!isMap)
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' exists already and is not a map of groups; choose another folder",
                      folder);
  if (std::optional<std::string> stranger = strangerIn(folder, reader->metadata()))
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' contains '{}' as well as a map of groups; move it or choose another "
                      "folder",
                      folder, *stranger);
  return Status::ok();
}

} // namespace

Status writeGroupMapFolder(const std::string &folder, const GroupMap &groups) {
  std::vector<BytesItem> items;
  for (const auto &[name, group] : groups)
    items.push_back(objectItem({std::string(kWrapper) + name}, PlainValue(group)));
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (path.filename().empty())
    path = path.parent_path();
  if (std::string name = path.filename().string(); name.empty() || name == "." || name == "..")
    return makeStatus(StatusCode::InvalidInput,
                      "a group map needs the name of a new folder, found '{}'", folder);
  RETURN_IF_ERROR(checkReplaceable(path.string()));
  std::string root = path.parent_path().empty() ? "." : path.parent_path().string();
  RETURN_IF_ERROR(makeFolders(root));
  return save({root, path.filename().string()}, 0, 1, {}, items);
}

Result<std::string> groupMapJson(const std::string &folder, const std::string &modelPrefix) {
  ASSIGN_OR_RETURN(Numbers numbers, numbersIn(folder));
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto &[name, group] : numbers)
    json[replacedAll(name, "module.module", modelPrefix)] = group;
  return toText(json, 2, /*isAscii=*/true);
}

Result<std::string> groupMapLine(const std::string &folder) {
  ASSIGN_OR_RETURN(Numbers numbers, numbersIn(folder));
  std::string line = "{";
  for (const auto &[name, group] : numbers)
    line += fmt::format("{}{}: {}", line.size() > 1 ? ", " : "",
                        toText(nlohmann::json(name), -1, /*isAscii=*/true), group);
  return line + "}";
}

Status writeGroupMapJson(const std::string &folder) {
  ASSIGN_OR_RETURN(std::string text, groupMapJson(folder));
  RETURN_IF_ERROR(replaceFile({}, fmt::format("{}/{}", folder, kGroupMapFile), text));
  return syncFolder({}, folder);
}

Result<GroupMap> readGroupMapJson(const std::string &path) {
  ASSIGN_OR_RETURN(std::string text, readFile(path, kGroupMapMax));
  nlohmann::json json = parseJson(text);
  if (!json.is_object())
    return makeStatus(StatusCode::InvalidInput, "'{}' is not a JSON object of group numbers", path);
  GroupMap groups;
  for (const auto &[key, value] : json.items()) {
    if (!value.is_number_integer())
      return makeStatus(StatusCode::InvalidInput,
                        "'{}' gives '{}' something other than a group's number", path, key);
    groups[plainName(key)] = value.get<int64_t>();
  }
  return groups;
}

} // namespace shardc::checkpoint
