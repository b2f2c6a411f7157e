#include "compiler/upstream/BridgeProgram.h"

#include "compiler/config/Config.h"
#include "compiler/upstream/FlagTable.h"
#include "runtime/base/Json.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

/// The sections and their fields; null for a section without fields that recipes have.
nlohmann::json fieldsOfSections() {
  nlohmann::json sections;
  for (const config::OptionInfo &option : config::options()) {
    auto [section, field] = option.bridge.split('.');
    if (section.empty())
      continue;
    nlohmann::json &fields = *sections.emplace(section.str(), nlohmann::json::array()).first;
    if (!field.empty())
      fields.push_back(field.str());
  }
  for (const config::SectionInfo &section : config::sections())
    sections.emplace(section.name.str(), nullptr);
  for (const auto &[kind, names, text] : upstreamNames())
    if (kind == NameKind::ForeignSection)
      for (llvm::StringRef section : llvm::split(names, ' '))
        sections.emplace(section.str(), nullptr);
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
  nlohmann::json classes;
  for (const auto &[kind, names, section] : upstreamNames())
    for (llvm::StringRef name :
         llvm::split(kind == NameKind::ConfigClass ? names : llvm::StringRef(), ' '))
      classes[name.str()] = section.str();
  std::string text =
      toText(nlohmann::json{{"sections", fieldsOfSections()}, {"classes", std::move(classes)}});
  text.pop_back(); // removes the closing brace to append one more member
  return text + ",\"recipes\":" + pythonProgram("recipes.json") + "}";
}

} // namespace shardc::upstream
