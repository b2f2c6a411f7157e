// Writes a small copy as the text of a recipe.
#include "compiler/basic/Format.h"
#include "compiler/basic/Numbers.h"
#include "compiler/parse/Format.h"
#include "compiler/shrink/Shrink.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::shrink {
namespace {

using config::Config;
using config::Opt;
using config::Origin;

/// The comment with the old value; a list of more than four items is replaced by its length.
std::string wasOf(const Config &original, Opt option) {
  if (const config::Value::List *list = original[option].value.asList(); list && list->size() > 4)
    return fmt::format("was a list of {}", list->size());
  return original.has(option) ? "was " + toRecipeText(original, option) : "was not set";
}

const Change *findChange(const SmallCopy &copy, Opt option) {
  auto at = llvm::find_if(copy.changes, [&](const Change &c) { return c.option == option; });
  return at == copy.changes.end() ? nullptr : &*at;
}

/// A section with the changed options and those from the command line; empty if there are none.
std::string sectionText(const Config &original, const SmallCopy &copy,
                        const config::SectionInfo &section) {
  std::string kind, body;
  for (const config::OptionInfo &info : config::options()) {
    if (info.section != section.section)
      continue;
    const Change *change = findChange(copy, info.opt);
    bool isSet = original[info.opt].from.origin == Origin::CommandLine;
    if (!change && !isSet)
      continue;
    std::string value =
        change ? toRecipeText(change->value, info.type) : toRecipeText(original, info.opt);
    if (info.name == info.path) // set by the word after the section's name
      kind = " " + value;
    else
      body += fmt::format("{} = {}{}\n", info.name, value,
                          change ? " // " + wasOf(original, info.opt) : "");
  }
  if (section.section == config::Section::Env)
    for (const config::EnvVariable &variable : original.env())
      if (variable.setting.from.origin == Origin::CommandLine)
        body += fmt::format("{} = {}\n", variable.name,
                            toRecipeText(variable.setting.value, {config::ValueType::String}));
  return body.empty() && kind.empty() ? ""
                                      : fmt::format("{}{} {{\n{}}}\n", section.name, kind, body);
}

/// All options of the copy, with comments that contain the old values.
std::string wholeBody(const Config &original, const SmallCopy &copy) {
  std::string printed = config::printRecipe(copy.config), out;
  llvm::SmallVector<llvm::StringRef, 0> lines;
  llvm::StringRef(printed).split(lines, '\n');
  llvm::StringRef section;
  for (llvm::StringRef line :
       llvm::ArrayRef<llvm::StringRef>(lines).drop_front()) { // skips the recipe's head
    if (line.startswith("  ") && !line.startswith("   ") && line.endswith("{"))
      section = line.trim().split(' ').first;
    out += line;
    llvm::StringRef name = line.trim().split(' ').first;
    for (const Change &change : copy.changes) {
      const config::OptionInfo &info = config::info(change.option);
      if (line.startswith("    ") && info.name == name && info.path.split('.').first == section)
        out += " // " + wasOf(original, change.option);
    }
    out += "\n";
  }
  return out;
}

std::string canonical(const std::string &text) {
  SourceManager sources;
  DiagEngine diags(sources);
  std::optional<std::string> formatted =
      formatRecipe(sources.addBuffer("<small copy>", text), diags);
  return formatted.value_or(text);
}

} // namespace

std::string textOf(const Config &original, const SmallCopy &copy, const TextOptions &options) {
  std::string head =
      fmt::format("// A small copy of {} for {} of its {} ranks, written by 'shardc shrink'.\n",
                  original.name(), formatNumber(static_cast<double>(copy.layout.ranks())),
                  formatNumber(static_cast<double>(original.derived().worldSize)));
  if (std::string axes = describeAxes(original, copy.layout); !axes.empty())
    head += fmt::format("// Parallelism: {}.\n", axes);
  std::string bases;
  for (const std::string &base : options.bases)
    bases += (bases.empty() ? " extends " : ", ") +
             toRecipeText(config::Value::ofString(base), {config::ValueType::String});
  head += fmt::format("recipe {}{} {{\n", options.name, bases);
  if (options.bases.empty())
    return canonical(head + wholeBody(original, copy));
  for (const config::SectionInfo &section : config::sections())
    head += sectionText(original, copy, section);
  return canonical(head + "}\n");
}

} // namespace shardc::shrink
