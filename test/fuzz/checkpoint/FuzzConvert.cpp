// A checkpoint folder is resharded, converted both ways and exported. Each result must be a
// complete checkpoint, and the resharded one must have the same items as the input.
//
// The input: a byte of choices (kDist ...), `.metadata` and `common.pt`, each after its 16-bit
// length, and the data file.
#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/HfConvert.h"
#include "test/fuzz/OwnFolder.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

using fuzz::require;
using fuzz::writePlain;

enum Choice : uint8_t {
  kDist = 1,          ///< `metadata.json` says torch_dist
  kHasCommonFile = 2, ///< there is a `common.pt`
  kSwiglu = 4,
  kWeightsOnly = 8, ///< a conversion leaves the optimizer out
  kTwoRanks = 16,   ///< the result is resharded for two ranks
  kUnchecked = 32,  ///< the archives have no checksums
};

constexpr int64_t kTensorBytesMax = 1 << 20; ///< a few bytes of metadata can ask for much more

/// Has the model in its folder `hub`.
struct ModelFolder : fuzz::OwnFolder {
  ModelFolder() : OwnFolder("convert") {
    fs::create_directories(path + "/hub");
    writePlain(path + "/hub/config.json",
               R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4, )"
               R"("num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 4, )"
               R"("vocab_size": 8})");
  }
};

const std::string &folderOfProcess() {
  static const ModelFolder own;
  return own.path;
}

/// Removes and returns the first `size` bytes, or all if there are fewer.
std::string_view take(std::string_view &bytes, size_t size) {
  std::string_view part = bytes.substr(0, size);
  bytes.remove_prefix(part.size());
  return part;
}

size_t takeLength(std::string_view &bytes) {
  std::string_view raw = take(bytes, 2);
  return raw.size() < 2 ? 0
                        : static_cast<uint8_t>(raw[0]) |
                              (static_cast<size_t>(static_cast<uint8_t>(raw[1])) << 8);
}

/// The archives as torch writes them without checksums. Then readers see changed values, which
/// checksums would refuse.
std::string withoutChecksums(std::string_view archives) {
  constexpr std::string_view kEntry("PK\1\2");
  constexpr size_t kChecksumAt = 16;
  std::string text(archives);
  for (size_t at = text.find(kEntry); at != std::string::npos; at = text.find(kEntry, at + 1))
    if (at + kChecksumAt + sizeof(uint32_t) <= text.size())
      text.replace(at + kChecksumAt, sizeof(uint32_t), sizeof(uint32_t), '\0');
  return text;
}

bool isSmall(const Metadata &metadata) {
  int64_t all = 0;
  for (const TensorMeta &tensor : metadata.tensors) {
    std::optional<int64_t> bytes = tensorBytes(tensor.type, tensor.shape);
    if (!bytes || *bytes > kTensorBytesMax || (all += *bytes) > 8 * kTensorBytesMax)
      return false;
  }
  return true;
}

std::string valuesOf(const CheckpointReader &reader, const TensorMeta &tensor) {
  std::string values(static_cast<size_t>(*tensorBytes(tensor.type, tensor.shape)), '\0');
  Status status = reader.read(tensor.name, Box::whole(tensor.shape), tensor.type, values.data());
  require(status.isOk());
  return values;
}

void requireWhole(const std::string &folder) {
  Result<CheckpointReader> reader = CheckpointReader::open(folder, Verify::Whole);
  require(reader.isOk());
  for (const TensorMeta &tensor : reader->metadata().tensors)
    require(reader->verifyTensor(tensor).isOk());
  for (const ObjectMeta &object : reader->metadata().objects)
    require(reader->verifyObject(object).isOk());
  require(reader->verifyFiles().isOk());
}

void requireSame(const std::string &in, const std::string &out) {
  requireWhole(out);
  Result<CheckpointReader> before = CheckpointReader::open(in), after = CheckpointReader::open(out);
  require(before.isOk() && after.isOk());
  require(before->metadata().tensors.size() == after->metadata().tensors.size());
  require(before->metadata().objects.size() == after->metadata().objects.size());
  for (const TensorMeta &tensor : before->metadata().tensors) {
    const TensorMeta *other = after->findTensor(tensor.name);
    require(other != nullptr && other->shape == tensor.shape && other->type == tensor.type);
    require(valuesOf(*before, tensor) == valuesOf(*after, *other));
  }
  for (const ObjectMeta &object : before->metadata().objects)
    require(after->findObject(object.name) != nullptr);
}

void convertAll(const std::string &in, const std::string &out, uint8_t choices) {
  ReshardOptions resharding;
  resharding.ranks = (choices & kTwoRanks) != 0 ? 2 : 1;
  if (reshard(in, {out, "resharded"}, resharding).isOk())
    requireSame(in, out + "/resharded");
  ConvertOptions toFsdp;
  toFsdp.isSwiglu = (choices & kSwiglu) != 0;
  toFsdp.weightsOnly = (choices & kWeightsOnly) != 0;
  std::string fsdp = in;
  if (convertTorchDistToFsdp(in, {out, "fsdp"}, toFsdp).isOk()) {
    requireWhole(out + "/fsdp");
    fsdp = out + "/fsdp";
  }
  ConvertBackOptions toDist;
  toDist.weightsOnly = toFsdp.weightsOnly;
  if (convertFsdpToTorchDist(fsdp, {out, "dist"}, toDist).isOk())
    requireWhole(out + "/dist");
  static_cast<void>(exportHf(fsdp, folderOfProcess() + "/hub", out + "/hf"));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string &folder = folderOfProcess();
  std::string_view bytes(reinterpret_cast<const char *>(data), size);
  if (bytes.empty())
    return 0;
  auto choices = static_cast<uint8_t>(take(bytes, 1)[0]);
  size_t metadataSize = takeLength(bytes), commonSize = takeLength(bytes);
  std::string in = folder + "/in", out = folder + "/out";
  fs::remove_all(in);
  fs::remove_all(out);
  fs::create_directories(in);
  writePlain(in + "/.metadata", take(bytes, metadataSize));
  std::string common(take(bytes, commonSize)), records(bytes);
  if ((choices & kUnchecked) != 0) {
    common = withoutChecksums(common);
    records = withoutChecksums(records);
  }
  if ((choices & kHasCommonFile) != 0)
    writePlain(in + "/common.pt", common);
  if ((choices & kDist) != 0)
    writePlain(in + "/metadata.json", R"({"sharded_backend": "torch_dist"})");
  writePlain(in + "/__0_0.distcp", records);
  Result<CheckpointReader> reader = CheckpointReader::open(in);
  if (reader.isOk() && isSmall(reader->metadata()))
    convertAll(in, out, choices);
  return 0;
}

} // namespace shardc::checkpoint
