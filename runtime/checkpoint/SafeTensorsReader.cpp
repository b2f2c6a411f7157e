// Reads safetensors files, and the index of a model with several files.
#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_set>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {
using nlohmann::json;

namespace {

/// Parsing takes about 18 bytes for each byte. The largest models have about 100 KB of header in a
/// file, and 10 MB of index.
constexpr uint64_t kHeaderMax = 16'000'000;
constexpr uint64_t kIndexMax = 64'000'000;
constexpr const char *kIndex = "model.safetensors.index.json", *kSingle = "model.safetensors";

template <typename... Args>
Status safeTensorsError(fmt::format_string<Args...> text, Args &&...args) {
  return makeStatus(report::CheckpointDamaged,
                    "safetensors: " + fmt::format(text, std::forward<Args>(args)...));
}

/// Parses JSON. Refuses a key that occurs twice in one object of the first two levels.
Result<json> parseObject(std::string_view text, const char *what) {
  std::unordered_set<std::string> names[2];
  std::string twice;
  auto watch = [&](int depth, json::parse_event_t event, json &value) {
    if (event == json::parse_event_t::object_start && depth == 1)
      names[1].clear();
    if (event == json::parse_event_t::key && depth <= 2 && depth > 0 &&
        !names[depth - 1].insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  json parsed = parseJson(text, watch);
  if (parsed.is_discarded() || !parsed.is_object())
    return safeTensorsError("{} is not a JSON object", what);
  if (!twice.empty())
    return safeTensorsError("{} has the key '{}' twice", what, twice);
  return parsed;
}

std::optional<int64_t> asExtent(const json &value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62))
    return std::nullopt;
  int64_t number = value.get<int64_t>();
  return number >= 0 ? std::optional(number) : std::nullopt;
}

/// Checks one entry of the header. The size of its data must be exactly that of its dtype and
/// shape, so that no later read can leave the entry.
Result<SafeTensor> readEntry(const std::string &name, const json &entry) {
  if (!entry.is_object())
    return safeTensorsError("entry '{}' is not an object", name);
  auto dtype = entry.find("dtype"), shape = entry.find("shape"),
       offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end())
    return safeTensorsError("entry '{}' has no dtype, shape or data_offsets", name);
  SafeTensor tensor;
  tensor.name = name;
  std::optional<Element> type =
      dtype->is_string() ? elementOfSafetensorsName(dtype->get_ref<const std::string &>())
                         : std::nullopt;
  if (!type)
    return safeTensorsError("entry '{}' has the unknown dtype {}", name,
                            dtype->dump(-1, ' ', false, json::error_handler_t::replace));
  tensor.type = *type;
  if (!shape->is_array() || shape->size() > kDimsMax)
    return safeTensorsError("entry '{}' has no shape of up to {} numbers", name, kDimsMax);
  for (const json &extent : *shape) {
    std::optional<int64_t> value = asExtent(extent);
    if (!value)
      return safeTensorsError("entry '{}' has a shape with something other than sizes", name);
    tensor.shape.push_back(*value);
  }
  bool isPair = offsets->is_array() && offsets->size() == 2 && asExtent((*offsets)[0]) &&
                asExtent((*offsets)[1]);
  if (!isPair)
    return safeTensorsError("entry '{}' has no pair of data_offsets", name);
  tensor.begin = static_cast<uint64_t>(*asExtent((*offsets)[0]));
  tensor.end = static_cast<uint64_t>(*asExtent((*offsets)[1]));
  std::optional<int64_t> bytes = tensorBytes(tensor.type, tensor.shape);
  if (!bytes || tensor.end < tensor.begin ||
      tensor.end - tensor.begin != static_cast<uint64_t>(*bytes))
    return safeTensorsError("entry '{}' of shape {} has its data at [{}, {}), which does not fit",
                            name, shapeText(tensor.shape), tensor.begin, tensor.end);
  return tensor;
}

Status readMetadataEntry(const json &entry, std::map<std::string, std::string> &metadata) {
  if (!entry.is_object())
    return safeTensorsError("'__metadata__' is not an object");
  for (const auto &[key, value] : entry.items()) {
    if (!value.is_string())
      return safeTensorsError("'__metadata__' has something other than a string under '{}'", key);
    metadata[key] = value.get<std::string>();
  }
  return Status::ok();
}

/// Checks that the tensors, sorted by position, cover the data without gaps or overlaps.
Status checkTiling(std::vector<SafeTensor> &tensors, uint64_t dataSize) {
  std::ranges::sort(tensors, {}, [](const SafeTensor &tensor) {
    return std::tie(tensor.begin, tensor.end, tensor.name);
  });
  uint64_t at = 0;
  for (const SafeTensor &tensor : tensors) {
    if (tensor.begin != at)
      return safeTensorsError("tensor '{}' begins at {} where the one before ends at {}",
                              tensor.name, tensor.begin, at);
    at = tensor.end;
  }
  if (at != dataSize)
    return safeTensorsError("the tensors have {} bytes but the file holds {}", at, dataSize);
  return Status::ok();
}

} // namespace

Result<SafeTensorsHeader> readSafeTensorsHeader(std::span<const uint8_t> file) {
  constexpr std::string_view kPointer = "version https://git-lfs";
  uint64_t length = 0;
  if (std::ranges::equal(file.first(std::min(file.size(), kPointer.size())), kPointer))
    return safeTensorsError("it is a pointer of Git LFS, not the weights; 'git lfs pull' in its "
                            "folder fetches them");
  if (file.size() < 8)
    return safeTensorsError("{} bytes are too few for a file", file.size());
  std::memcpy(&length, file.data(), 8);
  if (length > kHeaderMax || length > file.size() - 8)
    return safeTensorsError("its header has {} bytes; the limit is {}, and the file has {}", length,
                            kHeaderMax, file.size() - 8);
  std::string_view text(reinterpret_cast<const char *>(file.data()) + 8,
                        static_cast<size_t>(length));
  ASSIGN_OR_RETURN(json parsed, parseObject(text, "its header"));
  SafeTensorsHeader header;
  header.dataAt = 8 + length;
  for (const auto &[name, entry] : parsed.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(readMetadataEntry(entry, header.metadata));
      continue;
    }
    ASSIGN_OR_RETURN(SafeTensor tensor, readEntry(name, entry));
    header.tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(checkTiling(header.tensors, file.size() - header.dataAt));
  return header;
}

Result<SafeTensorsFile> SafeTensorsFile::open(const UntrustedFolder &folder,
                                              const std::string &name) {
  SafeTensorsFile file;
  ASSIGN_OR_RETURN(file.map_, folder.map(name));
  Result<SafeTensorsHeader> header = readSafeTensorsHeader(file.map_.bytes());
  if (!header.isOk())
    return Status(header.status()).withContext(fmt::format("'{}'", file.map_.path()));
  file.header_ = std::move(*header);
  for (size_t i = 0; i < file.header_.tensors.size(); ++i)
    file.indexOf_.emplace(file.header_.tensors[i].name, i);
  return file;
}

const SafeTensor *SafeTensorsFile::find(std::string_view name) const {
  auto found = indexOf_.find(name);
  return found != indexOf_.end() ? &header_.tensors[found->second] : nullptr;
}

std::span<const uint8_t> SafeTensorsFile::bytes(const SafeTensor &tensor) const {
  return map_.bytes().subspan(header_.dataAt + tensor.begin, tensor.end - tensor.begin);
}

Status SafeTensorsModel::readAll(const UntrustedFolder &folder, const std::set<std::string> &names,
                                 const json &places) {
  for (const std::string &name : names) {
    ASSIGN_OR_RETURN(SafeTensorsFile file, SafeTensorsFile::open(folder, name));
    for (const SafeTensor &tensor : file.header().tensors) {
      if (fileOf_.contains(tensor.name) && !places.contains(tensor.name))
        return safeTensorsError("tensor '{}' is in two files, one of them '{}/{}'", tensor.name,
                                folder.path(), name);
      if (!fileOf_.contains(tensor.name) || places[tensor.name] == name)
        fileOf_[tensor.name] = files_.size();
    }
    files_.push_back(std::make_unique<SafeTensorsFile>(std::move(file)));
  }
  return Status::ok();
}

Status SafeTensorsModel::readIndex(const UntrustedFolder &folder) {
  const std::string indexPath = folder.path() + "/" + kIndex;
  ASSIGN_OR_RETURN(std::string text, folder.read(kIndex, kIndexMax));
  ASSIGN_OR_RETURN(json index, parseObject(text, "the index"));
  auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    return safeTensorsError("'{}' has no weight_map", indexPath);
  std::set<std::string> files;
  for (const auto &[name, file] : map->items()) {
    if (!file.is_string() || !isPlainFileName(file.get_ref<const std::string &>()))
      return safeTensorsError("'{}' places '{}' in something other than a file of its folder",
                              indexPath, name);
    files.insert(file.get<std::string>());
  }
  return readAll(folder, files, *map);
}

Result<SafeTensorsModel> SafeTensorsModel::open(const std::string &folder) {
  SafeTensorsModel model;
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(folder));
  const bool hasSingle = in.has(kSingle), hasIndex = in.has(kIndex);
  model.hasUnreadIndex_ = hasSingle && hasIndex;
  if (hasIndex && !hasSingle) {
    RETURN_IF_ERROR(model.readIndex(in));
    return model;
  }
  std::set<std::string> names;
  bool isPickled = false;
  ASSIGN_OR_RETURN(std::vector<UntrustedFolder::Entry> entries, in.list());
  for (const auto &[name, isFolder] : entries) {
    isPickled |= name.starts_with("pytorch_model") && name.ends_with(".bin");
    bool isPart = name.starts_with("model-") && name.ends_with(".safetensors") &&
                  name.find("-of-") != std::string::npos;
    if (hasSingle ? name == kSingle : isPart)
      names.insert(name);
  }
  if (names.empty())
    return makeStatus(report::CheckpointNotFound,
                      "'{}' contains no model.safetensors and no parts of one{}", folder,
                      isPickled ? ", but pytorch_model.bin; load it with transformers and save it "
                                  "('save_pretrained')"
                                : "");
  RETURN_IF_ERROR(model.readAll(in, names, json::object()));
  return model;
}

const SafeTensor *SafeTensorsModel::find(std::string_view name) const {
  auto found = fileOf_.find(name);
  return found != fileOf_.end() ? files_[found->second]->find(name) : nullptr;
}

std::span<const uint8_t> SafeTensorsModel::bytes(std::string_view name) const {
  auto found = fileOf_.find(name);
  return files_[found->second]->bytes(*files_[found->second]->find(name));
}

void SafeTensorsModel::drop() const {
  for (const auto &file : files_)
    dropMapped(file->mapped());
}

} // namespace shardc::checkpoint
