#include "compiler/upstream/Shell.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "compiler/basic/SourceManager.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/Import.h"
#include "compiler/upstream/Yaml.h"
#include "runtime/base/RecipeVariables.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Regex.h"

namespace shardc::upstream {
namespace {

const Tree kNothing;

/// Whether words name a training: by a flag that only a training has, or by the program's name.
bool nameTraining(const std::vector<RanWord> &words) {
  return llvm::any_of(words, [](const RanWord &word) {
    llvm::StringRef text = word.text;
    return findName(NameKind::TrainingFlag, canonicalFlag(text.split('=').first)) != nullptr ||
           (text.endswith(".py") && text.substr(text.rfind('/') + 1).contains("train"));
  });
}

/// The element at an index, or the value of a key; nothing if there is none.
const Tree &elementOf(const Tree &list, size_t index) {
  return index < list.items.size() ? *list.items[index] : kNothing;
}
const Tree &valueOf(const Tree &map, llvm::StringRef key) {
  const Tree *value = map.find(key);
  return value == nullptr ? kNothing : *value;
}

/// The JSON output of shell_reader.py: lists that begin with a range in bytes.
class ShellResult {
public:
  ShellResult(BufferId script, const SourceManager &sources) : script_(script), sources_(sources) {}

  /// The source range given by the first two numbers; invalid if they are missing.
  SourceRange range(const Tree &list) const {
    const Tree &begin = elementOf(list, 0), &end = elementOf(list, 1);
    if (begin.kind != Tree::Kind::Int || end.kind != Tree::Kind::Int)
      return {};
    auto size = static_cast<int64_t>(sources_.text(script_).size());
    int64_t first = std::clamp<int64_t>(begin.integer, 0, size);
    return sources_.range(script_, first, std::clamp<int64_t>(end.integer, first, size));
  }

  ShellRun read(const Tree &of) const {
    ShellRun run;
    run.text = sources_.text(script_).str();
    for (const TreePtr &command : valueOf(of, "commands").items)
      addCommand(run, *command);
    for (const TreePtr &word : valueOf(of, "directives").items)
      run.directives.push_back(wordOf(*word));
    run.exported = exportsOf(valueOf(of, "exported"));
    hideSecrets(run);
    return run;
  }

  /// Names the files that the script sources and that were not given: what they set is unknown.
  void reportLacking(const Tree &of, DiagEngine &diags) const {
    for (const TreePtr &file : valueOf(of, "lacking").items)
      diags.report(diag::ImportRunLacks, range(*file), sources_.name(script_),
                   elementOf(*file, 2).text);
  }

private:
  /// Replaces values of secrets in the words of commands by asterisks.
  static void hideSecrets(ShellRun &run) {
    const std::vector<std::string> others = secretsIn(run.text); // also those not exported
    for (RanCommand &command : run.commands) {
      std::vector<std::pair<std::string, std::string>> known;
      for (const auto &[name, value] : command.environment)
        if (value)
          known.emplace_back(name, value->text);
      for (const RanWord &word : command.words)
        if (auto [name, value] = llvm::StringRef(word.text).split('='); isSecret(name, value))
          known.emplace_back(name, value);
      for (RanWord &word : command.words)
        word.text = withoutValues(withoutSecretsOf(known, std::move(word.text)), others);
    }
  }

  Exports exportsOf(const Tree &of) const {
    Exports exports;
    for (const TreePtr &variable : of.items)
      exports[elementOf(*variable, 0).text] = variable->items.size() > 1
                                                  ? std::optional(wordOf(elementOf(*variable, 1)))
                                                  : std::nullopt;
    return exports;
  }

  void addCommand(ShellRun &run, const Tree &of) const {
    RanCommand command{{}, {}, range(of)};
    for (const TreePtr &word : elementOf(of, 2).items)
      command.words.push_back(wordOf(*word));
    command.environment = exportsOf(elementOf(of, 3));
    if (!command.words.empty())
      run.commands.push_back(std::move(command));
  }

  RanWord wordOf(const Tree &of) const {
    RanWord word{elementOf(of, 2).text, range(of), nullptr};
    const Tree &why = elementOf(of, 3);
    if (why.items.empty())
      return word;
    auto unknown = std::make_shared<ShellUnknown>();
    unknown->shown = elementOf(why, 0).text;
    unknown->cause = range(elementOf(why, 1));
    for (const TreePtr &flag : elementOf(why, 2).items)
      unknown->flags.insert(flag->text);
    word.unknown = std::move(unknown);
    return word;
  }

  BufferId script_;
  const SourceManager &sources_;
};

} // namespace

bool isFlag(llvm::StringRef word) {
  return word.startswith("--") && word.size() > 2 && llvm::isAlpha(word[2]);
}

std::vector<RanWord> cleanWords(const std::vector<RanWord> &words) {
  std::vector<RanWord> clean;
  for (const RanWord &word : words) {
    llvm::SmallVector<llvm::StringRef> parts;
    llvm::StringRef text = word.text;
    size_t end = text.find_first_of("= \t\n"); // after `=`, blanks belong to the value
    if (!isFlag(text) || end == text.npos || text[end] == '=')
      parts.push_back(text);
    else if (word.unknown == nullptr)
      llvm::SplitString(text, parts, " \t\n");
    else // an unknown value may contain blanks
      parts = {text.substr(0, end), text.substr(end).ltrim()};
    for (llvm::StringRef part : parts) {
      bool isQuoted = part.size() > 1 && part.front() == part.back() &&
                      (part.front() == '\'' || part.front() == '"');
      part = isQuoted ? part.drop_front().drop_back() : part;
      bool isFlagAlone = parts.size() > 1 && isFlag(part) && !part.contains('=');
      clean.push_back({part.str(), word.range, isFlagAlone ? nullptr : word.unknown});
    }
  }
  return clean;
}

std::string withoutSecretsOf(const std::vector<std::pair<std::string, std::string>> &variables,
                             std::string text) {
  std::vector<std::string> values;
  for (const auto &[name, value] : variables)
    if (isSecret(name, value))
      values.push_back(value);
  return withoutValues(std::move(text), values);
}

std::string emptyVariable(const ShellRun &run, llvm::StringRef flag) {
  llvm::SmallVector<llvm::StringRef, 3> found;
  llvm::Regex use("(^|[^a-zA-Z_-])" + flag.str() + "(=|[ \t]+)[\"']?\\$[{]?([A-Za-z_0-9]+)");
  if (!use.match(run.text, &found))
    return {};
  const std::string name = found[3].str();
  return " ($" + name + " is empty)" +
         (run.hasRun ? ": give the script's arguments after '--', or '--var " + name + "=VALUE'"
                     : "");
}

bool isKnownFlag(llvm::StringRef word) {
  llvm::StringRef name = word.split('=').first;
  return isFlag(name) && (!findFlag(name).empty() || findName(NameKind::IdleFlag, name) != nullptr);
}

bool hasFlag(const std::vector<RanWord> &words) {
  return llvm::any_of(words, [](const RanWord &word) { return isKnownFlag(word.text); });
}

bool startsTraining(const RanCommand &command) {
  std::vector<RanWord> words = cleanWords(command.words);
  return (hasFlag(words) && nameTraining(words)) ||
         llvm::any_of(words, [](const RanWord &word) { return isOverride(word.text); });
}

std::string whyNoLaunch(const ShellRun &run) {
  for (const ForeignForm &form : kForeignForms)
    for (const RanCommand &command : run.commands)
      for (const RanWord &word : command.words)
        if (isOneOf(form.words, llvm::sys::path::filename(word.text)))
          return fmt::format("; '{}' is for {}, whose configuration files 'shardc import {} FILE' "
                             "reads",
                             word.text, form.program, form.name);
  return run.hasRun ? "" : " that its text shows; '--run' runs it";
}

std::optional<ShellRun> shellRunOf(BufferId script, llvm::StringRef commands, DiagEngine &diags) {
  ShellResult result(script, diags.sources());
  TreePtr read = readYaml(commands.str());
  if (read != nullptr && read->kind == Tree::Kind::Map) {
    result.reportLacking(*read, diags);
    return result.read(*read);
  }
  if (read != nullptr && read->kind == Tree::Kind::List)
    diags.report(diag::ImportMalformed, result.range(*read),
                 elementOf(*read, 2).text + "; '--run' runs the script");
  else
    diags.report(diag::ImportMalformed, SourceRange(), "what its reader says is not understood");
  return std::nullopt;
}

} // namespace shardc::upstream
