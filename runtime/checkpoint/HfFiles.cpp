#include "runtime/checkpoint/HfFiles.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"

namespace shardc::checkpoint {
namespace {

constexpr const char *kTemplates = "additional_chat_templates";

/// Whether a file belongs to the model besides its weights. Indices of weights and adapters are
/// left out, and README.md, which describes published weights.
bool isModelFile(const std::string &name) {
  if (name.find('/') != std::string::npos)
    return name.starts_with(kTemplates) && name.ends_with(".jinja");
  if (name.ends_with(".json"))
    return !name.ends_with(".index.json") && name.find("safetensors") == std::string::npos &&
           !name.starts_with("adapter_");
  constexpr std::string_view kBegins[] = {"tokenizer",     "merges",       "vocab",
                                          "chat_template", "added_tokens", "special_tokens",
                                          "LICENSE",       "NOTICE",       "USE_POLICY"};
  constexpr std::string_view kEnds[] = {".model", ".tiktoken", ".spm", ".jinja",
                                        ".vocab", ".bpe",      ".py"};
  auto begins = [&](std::string_view word) { return name.starts_with(word); };
  auto ends = [&](std::string_view word) { return name.ends_with(word); };
  return std::ranges::any_of(kBegins, begins) || std::ranges::any_of(kEnds, ends);
}

/// The names of such files in a folder, sorted.
Result<std::vector<std::string>> namesIn(const UntrustedFolder &folder) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, folder.listBelow(/*levels=*/0));
  if (folder.has(kTemplates)) {
    ASSIGN_OR_RETURN(std::vector<std::string> more, folder.listBelow(/*levels=*/0, kTemplates));
    names.insert(names.end(), more.begin(), more.end());
  }
  std::erase_if(names, [](const std::string &name) { return !isModelFile(name); });
  std::ranges::sort(names);
  return names;
}

} // namespace

Result<std::vector<HfModelFile>> hfFilesIn(const std::string &folder) {
  constexpr uint64_t kBytesMax = 256 << 20;
  std::vector<HfModelFile> files;
  ASSIGN_OR_RETURN(UntrustedFolder opened, UntrustedFolder::open(folder));
  ASSIGN_OR_RETURN(std::vector<std::string> names, namesIn(opened));
  for (const std::string &name : names) {
    ASSIGN_OR_RETURN(std::string contents, opened.read(name, kBytesMax));
    files.push_back({name, std::move(contents)});
  }
  return files;
}

Result<std::vector<HfModelFile>> hfFilesOf(const CheckpointReader &checkpoint) {
  std::vector<HfModelFile> files;
  if (!checkpoint.files().has(kHfFolder))
    return files;
  ASSIGN_OR_RETURN(UntrustedFolder kept, checkpoint.files().folder(kHfFolder));
  ASSIGN_OR_RETURN(std::vector<std::string> names, namesIn(kept));
  for (const std::string &name : names) {
    ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file,
                     checkpoint.openFile(fmt::format("{}/{}", kHfFolder, name)));
    std::span<const uint8_t> bytes = file->bytes();
    files.push_back({name, {reinterpret_cast<const char *>(bytes.data()), bytes.size()}});
  }
  return files;
}

Status refuseAdapter(const std::string &folder) {
  for (const char *name : {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"})
    if (std::error_code error; std::filesystem::exists(folder + "/" + name, error))
      return makeStatus(report::HfAdapter, folder, name);
  return Status::ok();
}

void untie(std::span<HfModelFile> files) {
  constexpr const char *kTied = "tie_word_embeddings";
  auto file = std::ranges::find(files, "config.json", &HfModelFile::name);
  if (file == files.end())
    return;
  nlohmann::json config = parsePythonJson(file->contents);
  if (!config.is_object())
    return;
  config[kTied] = false; // if the model has several parts, the library reads the outermost field
  file->contents = toText(config, 2) + "\n";
}

Status addHfFiles(std::span<const HfModelFile> files, const SaveTarget &out) {
  for (const HfModelFile &file : files)
    RETURN_IF_ERROR(addFile(out, fmt::format("{}/{}", kHfFolder, file.name), file.contents));
  return Status::ok();
}

} // namespace shardc::checkpoint
