// A checkpoint folder: the input is a 16-bit length, a `.metadata` of that length, and the bytes of
// the data file. If it opens, all items are read, as `fsdp_dtensor` and as `torch_dist`.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

std::string folderOfProcess() {
  static const std::string folder = fmt::format("/dev/shm/shardc-fuzz-{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::atexit([] { std::filesystem::remove_all(folder); });
  std::FILE *file = std::fopen((folder + "/metadata.json").c_str(), "wb");
  std::fputs(R"({"sharded_backend": "torch_dist"})", file);
  std::fclose(file);
  return folder;
}

void writePlain(const std::string &path, const uint8_t *data, size_t size) {
  std::FILE *file = std::fopen(path.c_str(), "wb");
  std::fwrite(data, 1, size, file);
  std::fclose(file);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const std::string folder = folderOfProcess();
  if (size < 2)
    return 0;
  size_t metadataSize = std::min<size_t>(data[0] | (data[1] << 8), size - 2);
  writePlain(folder + "/.metadata", data + 2, metadataSize);
  writePlain(folder + "/__0_0.distcp", data + 2 + metadataSize, size - 2 - metadataSize);
  Result<TorchDistCheckpoint> dist = TorchDistCheckpoint::open(folder);
  if (dist.isOk())
    dist->paramGroups();
  Result<CheckpointReader> reader = CheckpointReader::open(folder);
  if (!reader.isOk())
    return 0;
  for (const TensorMeta &tensor : reader->metadata().tensors) {
    static_cast<void>(reader->verifyTensor(tensor));
    std::optional<int64_t> bytes = tensorBytes(tensor.type, tensor.shape);
    if (!bytes || *bytes > (1 << 20))
      continue;
    std::string values(static_cast<size_t>(*bytes), '\0');
    static_cast<void>(
        reader->read(tensor.name, Box::whole(tensor.shape), tensor.type, values.data()));
  }
  for (const ObjectMeta &object : reader->metadata().objects)
    static_cast<void>(reader->verifyObject(object));
  static_cast<void>(readRunState(*reader));
  Result<FsdpCheckpoint> fsdp = FsdpCheckpoint::open(std::move(*reader));
  if (fsdp.isOk())
    for (const std::string &name : fsdp->names())
      static_cast<void>(fsdp->groupMeta(name));
  return 0;
}

} // namespace shardc::checkpoint
