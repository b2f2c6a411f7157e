// Prints a Config as a recipe, for --print-after: with canonical names, and sections in the order
// of their table.
#include "compiler/basic/Format.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/Steps.h"

namespace shardc::config {

namespace {

/// Whether a field of mixed_precision is overridden: the option to which it is copied has another
/// value, which was written or adjusted. Printing both would be contradictory.
bool isOverridden(const Config &config, Opt opt) {
  return llvm::any_of(copiedFields(), [&](CopiedField copy) {
    return opt == copy.field && config.has(opt) && config.has(copy.option) &&
           config[opt].value != config[copy.option].value;
  });
}

bool isShown(const Config &config, Opt opt, bool everything) {
  Origin origin = config[opt].from.origin;
  if (!config.has(opt)) // `none` in a recipe hides a family's value, so it is printed
    return config.isWritten(opt) && !config[opt].isPoisoned;
  if (isOverridden(config, opt))
    return false;
  // If `none` removed a family's value, so that the table's default applies, that default is
  // printed.
  bool isCleared = origin == Origin::Default && !config[opt].history.empty();
  return (everything && hasEffect(config, info(opt))) || origin != Origin::Default || isCleared;
}

/// The word after a section's name, if its kind must be printed and can be written there.
std::string kindWord(const Config &config, const SectionInfo &section, bool everything) {
  if (!section.kind || !isShown(config, *section.kind, everything) || !config.has(*section.kind))
    return {};
  std::string text = toRecipeText(config, *section.kind);
  bool isWord = text != "none" && text.front() != '"';
  return isWord ? text : std::string();
}

std::string printSection(const Config &config, const SectionInfo &section, bool everything) {
  std::string kind = kindWord(config, section, everything);
  std::string body;
  for (const OptionInfo &option : options()) {
    bool isKind = section.kind == option.opt;
    if (option.section != section.section || !isShown(config, option.opt, everything) ||
        (isKind && (!kind.empty() || option.name == option.path)))
      continue;
    body += fmt::format("    {} = {}\n", option.name, toRecipeText(config, option.opt));
  }
  if (section.section == Section::Env)
    for (const EnvVariable &variable : config.env())
      body += fmt::format("    {} = {}\n", variable.name,
                          toRecipeText(variable.setting.value, {ValueType::String}));
  if (body.empty() && kind.empty())
    return {};
  return fmt::format("  {}{}{} {{\n{}  }}\n", section.name, kind.empty() ? "" : " ", kind, body);
}

} // namespace

std::string printRecipe(const Config &config, bool everything) {
  std::string out = fmt::format("recipe {} {{\n", config.name().empty() ? "recipe" : config.name());
  for (const SectionInfo &section : sections())
    out += printSection(config, section, everything);
  return out + "}\n";
}

} // namespace shardc::config
