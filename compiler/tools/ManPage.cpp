// Manual pages with the classic man macros, which every formatter supports.
#include <fmt/format.h>

#include "compiler/tools/CommandHelp.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::tools {
namespace {

/// Escapes text for roff: no line begins with a control character, and `-` stays an ASCII hyphen.
std::string roff(llvm::StringRef text) {
  std::string out;
  for (char c : text) {
    if (out.empty() && (c == '.' || c == '\''))
      out += "\\&";
    out += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
  }
  return out;
}

std::string entryText(const HelpEntry &entry) {
  std::string names;
  for (const std::string &name : entry.names)
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
  bool isPositional = entry.names.front().front() != '-';
  if (!entry.isFlag() && !isPositional)
    names += fmt::format(" \\fI{}\\fR", roff(entry.value));
  std::string text = entry.text;
  if (!entry.choices.empty()) {
    text += text.empty() ? "one of" : "; one of";
    for (const std::string &choice : entry.choices)
      text += (&choice == &entry.choices.front() ? " " : ", ") + choice;
  }
  return fmt::format(".TP\n{}\n{}\n", names, roff(text));
}

std::string entries(const HelpPage &page) {
  std::string out;
  for (const HelpEntry &entry : page.positionals)
    out += entryText(entry);
  for (const HelpEntry &entry : page.options)
    out += entryText(entry);
  return out;
}

void addCommands(const HelpPage &page, std::string &out) {
  for (const HelpPage &child : page.children) {
    out += fmt::format(".SS {}\n{}.\n.PP\n.B {}\n",
                       roff(child.usage.substr(0, child.usage.find(" ["))), roff(child.summary),
                       roff(child.usage));
    out += entries(child);
    addCommands(child, out);
  }
}

} // namespace

std::string manPage(const HelpPage &page, const std::string &version) {
  const std::string &name = page.words.front();
  std::string out =
      fmt::format(".TH {} 1 \"\" \"shardc {}\" \"shardc\"\n.SH NAME\n{} \\- {}\n"
                  ".SH SYNOPSIS\n.B {}\n",
                  roff(name), roff(version), roff(name), roff(page.summary), roff(page.usage));
  out += ".SH OPTIONS\n" + entries(page);
  if (!page.children.empty()) {
    out += ".SH COMMANDS\n";
    addCommands(page, out);
  }
  out += ".SH \"EXIT STATUS\"\n.TP\n.B 0\nsuccess\n.TP\n.B 1\nthe input has errors, which are "
         "printed\n.TP\n.B 2\nthe command line is wrong\n.TP\n.B 3\nthe run failed\n";
  if (name == "shardc")
    out +=
        ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nif it is set and not empty, messages have no colour "
        "unless \\fB\\-\\-color\\fR asks for it\n.TP\n.B SHARDC_PAGER\\fR, \\fBPAGER\nthe program "
        "that shows long output on a terminal; \\fBless\\fR without them, none if empty or "
        "\\fBcat\\fR\n";
  return out;
}

} // namespace shardc::tools
