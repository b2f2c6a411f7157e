#include "compiler/tools/CkptJson.h"

#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "runtime/base/Json.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::tools {
using Json = nlohmann::ordered_json;

namespace {

using checkpoint::CheckpointReader;
using checkpoint::CheckpointView;
using checkpoint::Element;
using checkpoint::ObjectValue;
using checkpoint::PlainEntries;
using checkpoint::PlainValue;
using checkpoint::PyGraph;
using checkpoint::PyId;
using checkpoint::TensorMeta;
using checkpoint::TorchDistCheckpoint;

constexpr int64_t kValuesMax = 128; ///< most elements of a tensor that is printed with values

Json jsonOf(const PlainValue &value);

template <typename Items> Json arrayOf(const Items &items) {
  Json array = Json::array();
  for (const PlainValue &item : items)
    array.push_back(jsonOf(item));
  return array;
}

Json objectOf(const PlainEntries &entries) {
  Json object = Json::object();
  for (const auto &[name, value] : entries)
    object[name] = jsonOf(value);
  return object;
}

Json jsonOf(const PlainValue &value) {
  if (const auto *flag = value.as<bool>())
    return *flag;
  if (const auto *integer = value.as<int64_t>())
    return *integer;
  if (const auto *number = value.as<double>())
    return numberJson(*number);
  if (const auto *text = value.as<std::string>())
    return *text;
  if (const auto *type = value.as<Element>())
    return fmt::format("torch.{}", torchName(*type));
  if (const auto *big = value.as<checkpoint::PlainBigInt>())
    return big->decimal;
  if (const auto *tuple = value.as<checkpoint::PlainTuple>())
    return arrayOf(tuple->items);
  if (const auto *items = value.as<checkpoint::PlainItems>())
    return arrayOf(*items);
  if (const auto *entries = value.as<PlainEntries>())
    return objectOf(*entries);
  if (const auto *space = value.as<checkpoint::PlainNamespace>())
    return objectOf(space->entries);
  return nullptr;
}

Json leafJson(const PyGraph &graph, PyId id) {
  Result<PlainValue> value = plainValueOf(graph, id);
  return value.isOk() ? jsonOf(*value) : Json({{"opaque", value.status().message()}});
}

Json valueOf(const CheckpointReader &reader, const std::string &name) {
  Result<ObjectValue> object = reader.readObject(name);
  return object.isOk() ? leafJson(object->graph(), object->root())
                       : Json({{"unreadable", object.status().message()}});
}

/// The elements of a small tensor; null for types without a JSON form.
Json elementsOf(const CheckpointReader &reader, const TensorMeta &tensor) {
  auto count = static_cast<size_t>(*checkpoint::elementCount(tensor.shape));
  auto read = [&](Element type, void *values) {
    return reader.read(tensor.name, checkpoint::Box::whole(tensor.shape), type, values).isOk();
  };
  Json array = Json::array();
  std::vector<double> numbers(count);
  std::vector<int64_t> integers(count);
  std::vector<uint8_t> bytes(count);
  if (isConvertible(tensor.type, Element::F64) && read(Element::F64, numbers.data()))
    for (double number : numbers)
      array.push_back(numberJson(number));
  else if (tensor.type == Element::I64 && read(Element::I64, integers.data()))
    array = integers;
  else if ((tensor.type == Element::U8 || tensor.type == Element::Bool) &&
           read(tensor.type, bytes.data()))
    array = bytes;
  else
    return nullptr;
  return tensor.shape.empty() ? array[0] : array;
}

Json tensorJson(const CheckpointReader &reader, const TensorMeta &tensor) {
  Json chunks = Json::array();
  for (const checkpoint::Chunk &chunk : tensor.chunks)
    chunks.push_back({{"offset", chunk.box.offset},
                      {"shape", chunk.box.shape},
                      {"file", chunk.record.file},
                      {"at", chunk.record.offset},
                      {"bytes", chunk.record.length}});
  Json json = {{"dtype", torchName(tensor.type)},
               {"shape", tensor.shape},
               {"bytes", tensorBytes(tensor.type, tensor.shape).value_or(0)},
               {"chunks", std::move(chunks)}};
  if (checkpoint::elementCount(tensor.shape).value_or(kValuesMax + 1) <= kValuesMax)
    if (Json values = elementsOf(reader, tensor); !values.is_null())
      json["values"] = std::move(values);
  return json;
}

Json filesJson(const CheckpointReader &reader) {
  std::map<std::string, uint64_t> sizes;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(reader.folder(), error), end;
       !error && at != end; at.increment(error))
    if (at->is_regular_file(error))
      sizes[at->path().lexically_relative(reader.folder()).generic_string()] = at->file_size(error);
  return sizes;
}

std::vector<InspectedGroup> fsdpGroups(const CheckpointReader &reader) {
  std::vector<InspectedGroup> groups;
  Result<checkpoint::GroupSettings> saved = findGroupSettings(reader);
  if (!saved.isOk()) // another format: read from its view
    return groups;
  std::map<std::map<std::string, std::string>, size_t> known;
  for (const auto &[name, settings] : *saved) {
    std::map<std::string, std::string> fields;
    for (const auto &[field, place] : settings)
      fields[field] = place.value ? textOf(*place.value) : objectText(reader, place.key);
    auto [found, isNew] = known.emplace(fields, groups.size());
    if (isNew)
      groups.push_back({{fields.begin(), fields.end()}, {}});
    groups[found->second].params.push_back(name);
  }
  return groups;
}

std::vector<InspectedGroup> distGroups(const TorchDistCheckpoint &dist) {
  std::vector<InspectedGroup> groups;
  for (const auto &fields : dist.paramGroups()) {
    InspectedGroup &group = groups.emplace_back();
    for (const auto &[field, value] : fields)
      group.settings.emplace_back(field, leafText(dist.commonGraph(), value));
  }
  return groups;
}

Json groupsJson(const CheckpointView &view) {
  Json array = Json::array();
  for (const InspectedGroup &group : groupsOf(view)) {
    Json settings = Json::object();
    for (const auto &[field, value] : group.settings)
      settings[field] = value;
    array.push_back({{"settings", std::move(settings)}, {"parameters", group.params}});
  }
  return array;
}

} // namespace

Json numberJson(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

std::vector<InspectedGroup> groupsOf(const CheckpointView &view) {
  return view.torchDist() != nullptr ? distGroups(*view.torchDist()) : fsdpGroups(view.reader());
}

std::string leafText(const PyGraph &graph, PyId id) {
  Result<PlainValue> value = plainValueOf(graph, id);
  return value.isOk() ? textOf(*value) : fmt::format("<{}>", value.status().message());
}

std::string objectText(const CheckpointReader &reader, const std::string &name) {
  Result<ObjectValue> object = reader.readObject(name);
  return object.isOk() ? leafText(object->graph(), object->root())
                       : fmt::format("<{}>", object.status().message());
}

std::string inspectionJson(const CheckpointView &view, int64_t iteration) {
  const CheckpointReader &reader = view.reader();
  const checkpoint::Metadata &metadata = reader.metadata();
  Json json = {{"folder", reader.folder()},
               {"format", formatName(view.format())},
               {"iteration", iteration},
               {"version", metadata.version ? Json(*metadata.version) : Json()},
               {"has_checksums", reader.hasIntegrity()},
               {"tensors", Json::object()},
               {"objects", Json::object()}};
  for (const TensorMeta &tensor : metadata.tensors)
    json["tensors"][tensor.name] = tensorJson(reader, tensor);
  for (const checkpoint::ObjectMeta &object : metadata.objects)
    json["objects"][object.name] = valueOf(reader, object.name);
  if (const TorchDistCheckpoint *dist = view.torchDist())
    for (const checkpoint::CommonLeaf &leaf : dist->common())
      json["common"][checkpoint::nameOfPath(leaf.path)] = leafJson(dist->commonGraph(), leaf.value);
  for (const auto &[name, shape] : metadata.originalShapes)
    json["original_shapes"][name] = shape;
  json["groups"] = groupsJson(view);
  json["files"] = filesJson(reader);
  json["warnings"] = Json::array();
  for (const Report &warning : metadata.warnings)
    json["warnings"].push_back(warning.text);
  return toText(json, 2, /*isAscii=*/true);
}

} // namespace shardc::tools
