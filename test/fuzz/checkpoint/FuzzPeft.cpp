// A folder of PEFT's adapters for a small Llama is imported or refused. What is imported is a
// complete checkpoint; exported and imported again, it has the same tensors.
//
// The input: `adapter_config.json` after its 16-bit length, and `adapter_model.safetensors`.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/Reading.h"
#include "test/fuzz/OwnFolder.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

using fuzz::require;
using fuzz::writePlain;

/// Has the model in its folder `base`.
struct ModelFolder : fuzz::OwnFolder {
  ModelFolder() : OwnFolder("peft") {
    fs::create_directories(path + "/base");
    writePlain(path + "/base/config.json",
               R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4, )"
               R"("num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 4, )"
               R"("vocab_size": 8, "tie_word_embeddings": false})");
  }
};

const std::string &folderOfProcess() {
  static const ModelFolder own;
  return own.path;
}

/// The parts with adapters by layer and name, as the targets of a recipe would select them.
using Parts = std::map<std::pair<int64_t, std::string>, PeftParts>;

PeftOptions optionsOf(Parts &parts) {
  PeftOptions options;
  options.configFolder = folderOfProcess() + "/base";
  options.emit = [](const Report &) {};
  options.names = [&parts](const HfConfig &, const std::vector<HfParam> &,
                           const std::vector<PeftLinear> &linears, const std::vector<std::string> &,
                           PeftSettings &) {
    parts.clear();
    for (const PeftLinear &linear : linears) {
      PeftParts own{linear.modules.size() == 1, 0, {}};
      for (size_t i = 0; i < linear.modules.size(); ++i) {
        own.alphas.push_back(linear.modules[i].alpha);
        own.kept |= linear.modules[i].slice >= 0 ? uint64_t{1} << i : 0;
      }
      parts[{linear.layer, linear.stem}] = own;
    }
  };
  options.partsOf = [&parts](const PeftSettings &, const HfConfig &, const std::string &stem,
                             int64_t layer) {
    return parts.at({layer, stem});
  };
  return options;
}

void requireSame(const std::string &first, const std::string &second) {
  Result<CheckpointReader> before = CheckpointReader::open(first, Verify::Whole),
                           after = CheckpointReader::open(second, Verify::Whole);
  require(before.isOk() && after.isOk());
  require(before->metadata().tensors.size() == after->metadata().tensors.size());
  for (const TensorMeta &tensor : before->metadata().tensors) {
    const TensorMeta *other = after->findTensor(tensor.name);
    require(other != nullptr && other->shape == tensor.shape);
    std::string values(static_cast<size_t>(*tensorBytes(tensor.type, tensor.shape)), '\0'),
        others = values;
    const Box whole = Box::whole(tensor.shape);
    require(before->read(tensor.name, whole, tensor.type, values.data()).isOk());
    require(after->read(tensor.name, whole, tensor.type, others.data()).isOk());
    require(values == others);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string &folder = folderOfProcess();
  std::string_view bytes(reinterpret_cast<const char *>(data), size);
  if (size < 2)
    return 0;
  const size_t length = data[0] | static_cast<size_t>(data[1]) << 8;
  bytes.remove_prefix(2);
  const std::string in = folder + "/in", again = folder + "/again";
  for (const std::string &path : {in, again, folder + "/out", folder + "/out2"})
    fs::remove_all(path);
  fs::create_directories(in);
  writePlain(in + "/adapter_config.json", bytes.substr(0, length));
  writePlain(in + "/adapter_model.safetensors", bytes.substr(std::min(length, bytes.size())));
  Parts parts;
  PeftSettings settings, others;
  const PeftOptions options = optionsOf(parts);
  const SaveTarget out{folder + "/out", "iter_0000000"}, out2{folder + "/out2", "iter_0000000"};
  Status status = importPeft(in, out, options, settings);
  if (!status.isOk()) {
    require(!status.report().text.empty());
    return 0;
  }
  const std::string first = folder + "/out/iter_0000000";
  require(exportPeft(first, again, options).isOk());
  require(importPeft(again, out2, options, others).isOk());
  require(settings.rank == others.rank && settings.alpha == others.alpha);
  requireSame(first, folder + "/out2/iter_0000000");
  return 0;
}

} // namespace shardc::checkpoint
