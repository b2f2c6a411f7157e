// The sections of docs/commands.md, from the programs' help.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/basic/Markdown.h"
#include "compiler/tools/CommandHelp.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::tools {
namespace {

std::string commandRow(const HelpEntry &entry) {
  std::string name = llvm::join(entry.names, ", ");
  if (!entry.isFlag() && name.front() == '-')
    name += " " + entry.value;
  std::string text = entry.text;
  if (llvm::is_contained(entry.choices, "null")) // the choices depend on the build
    text += "; `shardc-run --version` lists those that were built";
  else if (!entry.choices.empty())
    text += (text.empty() ? "one of " : "; one of ") + llvm::join(entry.choices, ", ");
  return fmt::format("| `{}` | {} |\n", name, cell(text));
}

std::string commandSection(const HelpPage &page, int level) {
  std::string out = fmt::format("\n{} {}\n\n{}\n\n    {}\n", std::string(level, '#'),
                                llvm::join(page.words, " "), cell(page.summary), page.usage);
  std::string rows;
  for (const HelpEntry &entry : page.positionals)
    rows += commandRow(entry);
  for (const HelpEntry &entry : page.options)
    if (entry.names.front() != "-h")
      rows += commandRow(entry);
  if (!rows.empty())
    out += "\n| argument | meaning |\n|---|---|\n" + rows;
  for (const HelpPage &child : page.children)
    out += commandSection(child, std::min(level + 1, 4));
  return out;
}

} // namespace

std::string commandReference(const std::vector<HelpPage> &programs) {
  std::string out;
  for (const HelpPage &program : programs)
    out += commandSection(program, 2);
  return out;
}

} // namespace shardc::tools
