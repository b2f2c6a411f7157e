#include "compiler/upstream/Shell.h"

#include <algorithm>

#include "compiler/basic/SourceManager.h"
#include "llvm/Support/JSON.h"

namespace shardc::upstream {
namespace {

using llvm::json::Array;
using llvm::json::Object;

/// The JSON output of shell_reader.py: lists that begin with a range in bytes.
class ShellResult {
public:
  ShellResult(BufferId script, const SourceManager &sources) : script_(script), sources_(sources) {}

  /// The text at index `at`; empty if there is none.
  static llvm::StringRef text(const Array &parts, size_t at) {
    return at < parts.size() ? parts[at].getAsString().getValueOr("") : "";
  }
  /// The source range given by the first two numbers; invalid if they are missing.
  SourceRange range(const Array *parts) const {
    llvm::Optional<int64_t> begin, end;
    if (parts != nullptr && parts->size() > 1)
      begin = (*parts)[0].getAsInteger(), end = (*parts)[1].getAsInteger();
    if (!begin || !end)
      return {};
    auto size = static_cast<int64_t>(sources_.text(script_).size());
    int64_t first = std::clamp<int64_t>(*begin, 0, size);
    return sources_.range(script_, first, std::clamp<int64_t>(*end, first, size));
  }

  ShellRun read(const Object &of) const {
    ShellRun run;
    for (const Array &command : listsOf(of.getArray("commands")))
      addCommand(run, command);
    for (const Array &word : listsOf(of.getArray("directives")))
      run.directives.push_back(wordOf(word));
    for (const Array &variable : listsOf(of.getArray("exported"))) {
      const Array *value = list(variable, 1);
      run.exported[text(variable, 0).str()] =
          value == nullptr ? std::nullopt : std::optional(wordOf(*value));
    }
    return run;
  }

private:
  /// The list at index `at`; null if there is none.
  static const Array *list(const Array &parts, size_t at) {
    return at < parts.size() ? parts[at].getAsArray() : nullptr;
  }
  /// The elements of `of` that are lists.
  static std::vector<Array> listsOf(const Array *of) {
    std::vector<Array> lists;
    for (size_t i = 0; of != nullptr && i < of->size(); ++i)
      if (const Array *one = (*of)[i].getAsArray())
        lists.push_back(*one);
    return lists;
  }

  void addCommand(ShellRun &run, const Array &of) const {
    RanCommand command{{}, {}, range(&of)};
    for (const Array &word : listsOf(list(of, 2)))
      command.words.push_back(wordOf(word));
    for (const Array &variable : listsOf(list(of, 3)))
      if (const Array *value = list(variable, 1))
        command.environment.emplace_back(text(variable, 0).str(), wordOf(*value));
    if (!command.words.empty())
      run.commands.push_back(std::move(command));
  }

  RanWord wordOf(const Array &of) const {
    RanWord word{text(of, 2).str(), range(&of), nullptr};
    const Array *why = list(of, 3);
    if (why == nullptr)
      return word;
    auto unknown = std::make_shared<ShellUnknown>();
    unknown->shown = text(*why, 0).str();
    unknown->cause = range(list(*why, 1));
    if (const Array *flags = list(*why, 2))
      for (size_t i = 0; i < flags->size(); ++i)
        unknown->flags.insert(text(*flags, i).str());
    word.unknown = std::move(unknown);
    return word;
  }

  BufferId script_;
  const SourceManager &sources_;
};

} // namespace

std::optional<ShellRun> shellRunOf(BufferId script, llvm::StringRef commands, DiagEngine &diags) {
  ShellResult result(script, diags.sources());
  llvm::Expected<llvm::json::Value> read = llvm::json::parse(commands);
  if (!read)
    llvm::consumeError(read.takeError());
  else if (const Object *of = read->getAsObject())
    return result.read(*of);
  else if (const Array *malformed = read->getAsArray()) {
    diags.report(diag::ImportMalformed, result.range(malformed),
                 (ShellResult::text(*malformed, 2) + "; '--run' runs the script").str());
    return std::nullopt;
  }
  diags.report(diag::ImportMalformed, SourceRange(), "what its reader says is not understood");
  return std::nullopt;
}

} // namespace shardc::upstream
