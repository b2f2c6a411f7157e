#include "compiler/upstream/BridgeProgram.h"

#include <map>

#include "compiler/basic/Format.h"
#include "compiler/config/Config.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"

namespace shardc::upstream {
namespace {

/// Names and their values, which are JSON.
using Members = std::map<std::string, std::string>;

std::string objectOf(const Members &members) {
  std::string text;
  for (const auto &[name, value] : members)
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, value);
  return "{" + text + "}";
}

/// The sections and their fields; null for a section without fields that recipes have.
Members fieldsOfSections() {
  Members sections;
  for (const config::OptionInfo &option : config::options()) {
    auto [section, field] = option.bridge.split('.');
    std::string &fields = sections[section.str()];
    if (!field.empty())
      fields += fmt::format("{}\"{}\"", fields.empty() ? "" : ",", field.str());
  }
  sections.erase("");
  for (auto &[section, fields] : sections)
    fields = "[" + fields + "]";
  for (const config::SectionInfo &section : config::sections())
    sections.try_emplace(section.name.str(), "null");
  for (llvm::StringRef section : BridgeSettings::foreignSections())
    sections.try_emplace(section.str(), "null");
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
  Members classes;
  for (const auto &[kind, name, section] : upstreamNames())
    if (kind == NameKind::ConfigClass)
      classes[name.str()] = "\"" + section.str() + "\"";
  return objectOf({{"sections", objectOf(fieldsOfSections())},
                   {"classes", objectOf(classes)},
                   {"recipes", pythonProgram("bridge_recipes.json")}});
}

} // namespace shardc::upstream
