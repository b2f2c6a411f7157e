#include "compiler/tools/CommandHelp.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::tools {
namespace {

/// The column at which the text of an entry begins. If its head is wider, the text is on the next
/// line.
constexpr size_t kTextColumn = 30;

std::string join(const std::vector<std::string> &words) {
  std::string out;
  for (const std::string &word : words)
    out += (out.empty() ? "" : " ") + word;
  return out;
}

/// Removes choices `:{a,b,c}` from the end of `word`, and returns them.
std::vector<std::string> takeChoices(llvm::StringRef &word) {
  std::vector<std::string> choices;
  size_t open = word.rfind(":{");
  if (open == llvm::StringRef::npos || !word.endswith("}"))
    return choices;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  word.slice(open + 2, word.size() - 1).split(parts, ',');
  for (llvm::StringRef part : parts)
    choices.push_back(part.str());
  word = word.take_front(open);
  return choices;
}

/// Parses `-o,--output TEXT:{a,b} REQUIRED`: names, type and choices. Words about the use are
/// ignored.
HelpEntry parseEntry(llvm::StringRef head, llvm::StringRef text) {
  HelpEntry entry;
  entry.text = text.str();
  auto [names, rest] = head.split(' ');
  llvm::SmallVector<llvm::StringRef, 2> parts;
  names.split(parts, ',');
  for (llvm::StringRef name : parts) // a flag may have a default value in braces
    entry.names.push_back(name.split('{').first.str());
  llvm::StringRef type = rest.split(' ').first;
  entry.choices = takeChoices(type);
  bool isPositional = !names.startswith("-");
  if (!type.empty() && type != "REQUIRED" && type != "Excludes:" && type != "Needs:")
    entry.value = type.split(':').first.str();
  else if (isPositional)
    entry.value = "TEXT";
  return entry;
}

/// The head and the text of the entry that begins at `line`. The text of a wide head is on the next
/// line.
std::pair<llvm::StringRef, llvm::StringRef> splitEntry(llvm::ArrayRef<llvm::StringRef> lines,
                                                       size_t line) {
  llvm::StringRef whole = lines[line].drop_front(2);
  if (whole.size() + 2 > kTextColumn && whole[kTextColumn - 3] == ' ' &&
      whole[kTextColumn - 2] != ' ')
    return {whole.take_front(kTextColumn - 2).rtrim(), whole.drop_front(kTextColumn - 2)};
  bool isBelow = line + 1 < lines.size() && lines[line + 1].startswith(std::string(8, ' '));
  return {whole.rtrim(), isBelow ? lines[line + 1].ltrim() : llvm::StringRef()};
}

/// The output of a program with --help.
Result<std::string> helpText(const std::string &program, const std::vector<std::string> &words) {
  std::string command = "'" + program + "'";
  for (size_t i = 1; i < words.size(); ++i)
    command += " " + words[i];
  std::unique_ptr<std::FILE, int (*)(std::FILE *)> pipe(::popen((command + " --help").c_str(), "r"),
                                                        ::pclose);
  if (!pipe)
    return makeStatus(StatusCode::Unavailable, "cannot run {}", command);
  std::string text;
  char buffer[4096];
  while (size_t bytes = std::fread(buffer, 1, sizeof buffer, pipe.get()))
    text.append(buffer, bytes);
  int status = ::pclose(pipe.release());
  if (status != 0)
    return makeStatus(StatusCode::Unavailable, "'{} --help' ended with status {}", command, status);
  return text;
}

Result<HelpPage> readPage(const std::string &program, std::vector<std::string> words) {
  ASSIGN_OR_RETURN(std::string text, helpText(program, words));
  ASSIGN_OR_RETURN(HelpPage page, parseHelp(std::move(words), text));
  for (HelpPage &child : page.children) {
    std::string summary = child.summary;
    ASSIGN_OR_RETURN(child, readPage(program, child.words));
    child.summary = summary;
  }
  return page;
}

} // namespace

/// Parses CLI11's help: a summary, a usage line, and parts whose entries are indented by two blanks
/// and continue on lines indented further.
Result<HelpPage> parseHelp(std::vector<std::string> words, const std::string &text) {
  HelpPage page;
  page.words = std::move(words);
  llvm::SmallVector<llvm::StringRef, 64> lines;
  llvm::StringRef(text).split(lines, '\n');
  llvm::StringRef part;
  for (size_t i = 0; i < lines.size(); ++i) {
    llvm::StringRef line = lines[i];
    if (line.consume_front("Usage: "))
      page.usage = line.str();
    else if (page.usage.empty() && !line.empty())
      page.summary = line.str();
    else if (!line.startswith(" "))
      part = line;
    bool isEntry = line.startswith("  ") && !line.startswith("   ");
    if (!isEntry)
      continue;
    auto [head, about] = splitEntry(lines, i);
    if (part == "Positionals:")
      page.positionals.push_back(parseEntry(head, about));
    else if (part == "Options:")
      page.options.push_back(parseEntry(head, about));
    else if (part == "Subcommands:") {
      HelpPage child;
      child.words = page.words;
      child.words.push_back(head.str());
      child.summary = about.str();
      page.children.push_back(std::move(child));
    }
  }
  if (page.usage.empty() || page.options.empty())
    return makeStatus(StatusCode::InvalidInput, "the help of '{}' is of a form that is not known",
                      join(page.words));
  return page;
}

Result<HelpPage> readHelp(const std::string &program) {
  return readPage(program, {std::filesystem::path(program).filename().string()});
}

} // namespace shardc::tools
