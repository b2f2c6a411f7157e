// A folder of Hugging Face or PEFT: each file is refused or read, the tokenizer is found, and the
// model or the adapters are imported. What is imported is exported again, and can be read.
//
// The input is text: a line `=== NAME` begins a file. Of a .safetensors file only the header is
// given, and the target adds the length before it and zeros behind it. Names beyond a plain file
// name are left out.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "test/fuzz/OwnFolder.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

using fuzz::require;

constexpr int64_t kSizeMax = 1 << 12; ///< larger sizes take long without testing anything new
constexpr size_t kZerosMax = 1 << 16;

const std::string &folderOfProcess() {
  static const fuzz::OwnFolder own("folders");
  return own.path;
}

/// The bytes that the header's tensors take, or a few if it says nothing plausible.
size_t bytesOf(const std::string &header) {
  size_t bytes = 16;
  const nlohmann::json json = parseJson(header);
  if (json.is_object())
    for (const nlohmann::json &tensor : json)
      if (tensor.is_object() && tensor.contains("data_offsets") &&
          tensor["data_offsets"].is_array() && tensor["data_offsets"].size() == 2 &&
          tensor["data_offsets"][1].is_number_unsigned())
        bytes = std::max(bytes, tensor["data_offsets"][1].get<size_t>());
  return std::min(bytes, kZerosMax);
}

void writeFile(const std::string &in, std::string_view name, std::string text) {
  if (name.empty() || name.find('/') != name.npos || name.find('\0') != name.npos ||
      name.size() > 100 || name.starts_with('.'))
    return;
  if (name.ends_with(".safetensors")) {
    uint64_t length = text.size();
    std::string zeros(bytesOf(text), '\0');
    text = std::string(reinterpret_cast<const char *>(&length), sizeof length) + text + zeros;
  }
  fuzz::writePlain(fmt::format("{}/{}", in, name), text);
}

void writeAll(const std::string &in, std::string_view input) {
  constexpr std::string_view kBegin = "=== ";
  while (!input.empty()) {
    size_t end = std::min(input.find(fmt::format("\n{}", kBegin)), input.size());
    std::string_view part = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    size_t line = std::min(part.find('\n'), part.size());
    if (part.starts_with(kBegin) && line > kBegin.size())
      writeFile(in, part.substr(kBegin.size(), line - kBegin.size()),
                std::string(part.substr(std::min(line + 1, part.size()))));
  }
}

bool isSmall(const std::string &in) {
  Result<std::string> text = UntrustedFolder::readIn(in, "config.json", kHfConfigBytesMax);
  Result<HfConfig> config = text.isOk() ? parseHfConfig(*text, "config.json") : text.status();
  return config.isOk() &&
         std::max({config->layers, config->mtpLayers, config->experts, config->groups}) < 64 &&
         std::max({config->hidden, config->vocab, config->ffn, config->expertFfn, config->sharedFfn,
                   config->heads * config->headDim}) < kSizeMax;
}

/// Reads all values, as a run does that starts from the folder.
void readWeights(const HfWeights &weights) {
  for (const std::string &name : weights.names())
    if (std::optional<Shape> shape = weights.shapeOf(name, ParamPart::Weight)) {
      std::optional<int64_t> bytes = tensorBytes(Element::F32, *shape);
      if (!bytes || *bytes > (1 << 20))
        continue;
      std::string values(static_cast<size_t>(*bytes), '\0');
      Status status = weights.read(name, Box::whole(*shape), Element::F32, values.data());
      require(status.isOk() || !status.message().empty());
    }
}

void importAll(const std::string &in, const std::string &out) {
  HfImportOptions options;
  options.vocabDivisor = 1;
  Result<std::unique_ptr<HfWeights>> weights = HfWeights::open(in);
  if (weights.isOk())
    readWeights(**weights);
  Status imported = importHf(in, {out, "model"}, options);
  require(imported.isOk() || !imported.message().empty());
  if (imported.isOk() && exportHf(out + "/model", "", out + "/hf").isOk())
    require(HfWeights::open(out + "/hf").isOk());
  PeftSettings settings;
  PeftOptions peft;
  peft.configFolder = in;
  peft.names = [](const auto &...) {};
  Status adapters = importPeft(in, {out, "adapters"}, peft, settings);
  require(adapters.isOk() || !adapters.message().empty());
  require(adapters.isOk() == fs::exists(out + "/adapters"));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string in = folderOfProcess() + "/in", out = folderOfProcess() + "/out";
  fs::remove_all(folderOfProcess());
  fs::create_directories(in);
  writeAll(in, {reinterpret_cast<const char *>(data), size});
  Result<std::vector<HfModelFile>> files = hfFilesIn(in);
  require(files.isOk());
  untie(*files);
  Result<tokenize::TokenizerFiles> tokenizer = tokenize::findTokenizer(in);
  require(!tokenizer.isOk() || !tokenizer->sha256.empty());
  static_cast<void>(tokenize::endsOfTexts(in, 1));
  if (isSmall(in))
    importAll(in, out);
  return 0;
}

} // namespace shardc::checkpoint
