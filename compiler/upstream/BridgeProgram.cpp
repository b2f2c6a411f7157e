#include "compiler/upstream/BridgeProgram.h"

#include "compiler/config/Config.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::upstream {
namespace {

/// The sections and their fields; null for a section without fields that recipes have.
llvm::json::Object fieldsOfSections() {
  llvm::json::Object sections;
  for (const config::OptionInfo &option : config::options()) {
    auto [section, field] = option.bridge.split('.');
    if (section.empty())
      continue;
    llvm::json::Value &fields =
        sections.try_emplace(section.str(), llvm::json::Array()).first->second;
    if (!field.empty())
      fields.getAsArray()->push_back(field.str());
  }
  for (const config::SectionInfo &section : config::sections())
    sections.try_emplace(section.name.str(), nullptr);
  for (llvm::StringRef section : BridgeSettings::foreignSections())
    sections.try_emplace(section.str(), nullptr);
  return sections;
}

} // namespace

std::string pythonProgram(llvm::StringRef name) {
#define ASSET(own, text)                                                                           \
  if (name == own)                                                                                 \
    return text;
#include "compiler/upstream/BridgeStandin.inc"
  return {};
}

std::string bridgeTables() {
  llvm::json::Object classes;
  for (const auto &[kind, name, section] : upstreamNames())
    if (kind == NameKind::ConfigClass)
      classes[name] = section;
  llvm::json::Value tables =
      llvm::json::Object{{"sections", fieldsOfSections()}, {"classes", std::move(classes)}};
  std::string text;
  llvm::raw_string_ostream(text) << tables;
  text.pop_back(); // removes the closing brace to append one more member
  return text + ",\"recipes\":" + pythonProgram("bridge_recipes.json") + "}";
}

} // namespace shardc::upstream
