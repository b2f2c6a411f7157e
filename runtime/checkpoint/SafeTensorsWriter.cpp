// Writes one safetensors file, tensor by tensor. Types with larger elements come first.
#include <algorithm>

#include "runtime/base/Json.h"
#include "runtime/base/Utf8.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {
namespace {

/// Counts the bytes that a tensor's source writes, so that a wrong number is found before the file
/// is renamed.
class CountedFile : public ByteSink {
public:
  CountedFile(OutputFile &file, const Observers &observers) : file_(file), observers_(observers) {}
  Status write(const void *data, size_t size) override {
    RETURN_IF_ERROR(observers_.checkInterrupted());
    count += size;
    return file_.write(data, size);
  }
  uint64_t count = 0;

private:
  OutputFile &file_;
  const Observers &observers_;
};

std::string jsonQuoted(const std::string &text) { return toText(nlohmann::json(text)); }

Status writeTensors(OutputFile &file, const std::vector<SafeTensorSource> &tensors,
                    const Observers &observers) {
  for (const SafeTensorSource &tensor : tensors) {
    CountedFile sink(file, observers);
    RETURN_IF_ERROR(tensor.write(sink));
    auto wanted = static_cast<uint64_t>(*tensorBytes(tensor.type, tensor.shape));
    if (sink.count != wanted)
      return makeStatus(StatusCode::Internal, "tensor '{}' came with {} bytes instead of {}",
                        tensor.name, sink.count, wanted);
  }
  return Status::ok();
}

} // namespace

Result<std::string> safeTensorsHeader(std::vector<SafeTensorSource> &tensors,
                                      const std::map<std::string, std::string> &metadata) {
  std::ranges::sort(tensors, [](const SafeTensorSource &a, const SafeTensorSource &b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
  std::string text = "{", separator;
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto &[key, value] : metadata) {
      if (!isUtf8(key) || !isUtf8(value))
        return makeStatus(StatusCode::InvalidInput,
                          "metadata of a safetensors file that are not UTF-8");
      text += separator + jsonQuoted(key) + ":" + jsonQuoted(value);
      separator = ",";
    }
    text += "}";
  }
  uint64_t at = 0;
  const std::string *before = nullptr;
  for (const SafeTensorSource &tensor : tensors) {
    std::optional<int64_t> bytes = tensorBytes(tensor.type, tensor.shape);
    if (!bytes || safetensorsName(tensor.type).empty() || !isUtf8(tensor.name))
      return makeStatus(StatusCode::InvalidInput,
                        "safetensors has no tensor '{}' of type '{}' and shape {}", tensor.name,
                        torchName(tensor.type), shapeText(tensor.shape));
    if (before != nullptr && *before == tensor.name)
      return makeStatus(StatusCode::InvalidInput, "two tensors are named '{}'", tensor.name);
    before = &tensor.name;
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        separator, jsonQuoted(tensor.name), safetensorsName(tensor.type),
                        fmt::join(tensor.shape, ","), at, at + static_cast<uint64_t>(*bytes));
    separator = ",";
    at += static_cast<uint64_t>(*bytes);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + text;
}

Status writeSafeTensors(const std::string &path, std::vector<SafeTensorSource> tensors,
                        const std::map<std::string, std::string> &metadata,
                        const Observers &observers) {
  ASSIGN_OR_RETURN(std::string header, safeTensorsHeader(tensors, metadata));
  uint64_t bytes = header.size();
  for (const SafeTensorSource &tensor : tensors)
    bytes += static_cast<uint64_t>(tensorBytes(tensor.type, tensor.shape).value_or(0));
  return putInPlace(observers, path, [&](const std::string &temporary) -> Status {
    ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(temporary, observers, bytes));
    RETURN_IF_ERROR(file.write(header.data(), header.size()));
    RETURN_IF_ERROR(writeTensors(file, tensors, observers));
    return file.close();
  });
}

Status writeSafeTensorsModel(const std::string &folder, std::vector<SafeTensorSource> tensors,
                             uint64_t shardBytesMax, const Observers &observers) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  RETURN_IF_ERROR(makeFolder(observers, folder));
  std::vector<std::vector<SafeTensorSource>> shards(1);
  uint64_t total = 0, inShard = 0;
  for (SafeTensorSource &tensor : tensors) {
    auto bytes = static_cast<uint64_t>(tensorBytes(tensor.type, tensor.shape).value_or(0));
    if (inShard != 0 && inShard + bytes > shardBytesMax) {
      shards.emplace_back();
      inShard = 0;
    }
    inShard += bytes;
    total += bytes;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() == 1) {
    RETURN_IF_ERROR(
        writeSafeTensors(folder + "/model.safetensors", std::move(shards[0]), metadata, observers));
    return syncFolder(observers, folder);
  }
  nlohmann::json index = {{"metadata", {{"total_size", total}}},
                          {"weight_map", nlohmann::json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const SafeTensorSource &tensor : shards[i])
      index["weight_map"][tensor.name] = name;
    RETURN_IF_ERROR(writeSafeTensors(fmt::format("{}/{}", folder, name), std::move(shards[i]),
                                     metadata, observers));
  }
  RETURN_IF_ERROR(
      replaceFile(observers, folder + "/model.safetensors.index.json", toText(index, 2) + "\n"));
  return syncFolder(observers, folder);
}

} // namespace shardc::checkpoint
