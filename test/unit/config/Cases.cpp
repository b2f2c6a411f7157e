#include "test/unit/config/Cases.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::config::test {

namespace {

struct Collector : DiagConsumer {
  explicit Collector(std::vector<Diagnostic> &messages) : messages(messages) {}
  void handle(const Diagnostic &diagnostic) override { messages.push_back(diagnostic); }
  std::vector<Diagnostic> &messages;
};

std::unique_ptr<Loaded> load(const std::function<std::optional<BufferId>(SourceManager &)> &open,
                             const LoadOptions &options) {
  auto loaded = std::make_unique<Loaded>();
  Collector collector(loaded->messages);
  loaded->diags.setErrorLimit(0);
  loaded->diags.addConsumer(collector);
  if (std::optional<BufferId> buffer = open(loaded->sources)) {
    auto keep = [&](Step, const Config &config) { loaded->config = config; };
    loadConfig(loaded->sources, loaded->diags, *buffer, options, keep);
  }
  loaded->diags.finish();
  return loaded;
}

std::vector<std::string> filesBelow(const std::string &folder) {
  std::vector<std::string> files;
  for (const auto &entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".recipe")
      files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

} // namespace

std::vector<std::string> Loaded::ids(Severity severity) const {
  std::vector<std::string> ids;
  for (const Diagnostic &message : messages)
    if (message.severity == severity)
      ids.push_back(message.id);
  return ids;
}

const Diagnostic *Loaded::find(llvm::StringRef id) const {
  for (const Diagnostic &message : messages)
    if (message.id == id)
      return &message;
  return nullptr;
}

bool Loaded::has(llvm::StringRef id) const { return find(id) != nullptr; }

std::unique_ptr<Loaded> loadText(const std::string &text, const LoadOptions &options) {
  return load([&](SourceManager &sources) { return sources.addBuffer("test.recipe", text); },
              options);
}

std::unique_ptr<Loaded> loadBody(const std::string &body, const LoadOptions &options) {
  return loadText("recipe r {\n" + body + "\n}\n", options);
}

std::unique_ptr<Loaded> loadFile(const std::string &path, const LoadOptions &options) {
  return load(
      [&](SourceManager &sources) -> std::optional<BufferId> {
        Result<BufferId> buffer = sources.loadFile(path);
        return buffer.isOk() ? std::optional(*buffer) : std::nullopt;
      },
      options);
}

std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (const std::string &path : filesBelow(SHARDC_SOURCE_DIR "/test/config")) {
    if (path.find("/Inputs/") != std::string::npos)
      continue;
    Result<std::string> text = readFile(path, kRecipeBytesMax);
    if (!text.isOk())
      continue;
    for (InputPart &part : splitInput(*text))
      cases.push_back({std::filesystem::path(path).filename().string(), std::move(part)});
  }
  return cases;
}

std::vector<std::string> allRecipes() {
  std::vector<std::string> recipes = filesBelow(SHARDC_SOURCE_DIR "/recipes");
  std::erase_if(recipes, [](const std::string &path) {
    return path.find("/overlays/") != std::string::npos;
  });
  return recipes;
}

std::string makeFolder(const std::string &name) {
  static const shardc::test::TempFolder place;
  std::string folder = place / name;
  std::filesystem::create_directories(folder);
  return folder;
}

void writeText(const std::string &path, const std::string &text) {
  std::ofstream(path, std::ios::binary) << text;
}

} // namespace shardc::config::test
