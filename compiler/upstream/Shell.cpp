#include "compiler/upstream/Shell.h"

#include "compiler/upstream/ReaderResult.h"

namespace shardc::upstream {
namespace {

using llvm::json::Array;
using llvm::json::Object;

class ShellResult : ReaderResult {
public:
  using ReaderResult::ReaderResult;

  ShellRun read(const Object &of) const {
    ShellRun run;
    for (const Array &command : listsOf(of.getArray("commands")))
      addCommand(run, command);
    for (const Array &word : listsOf(of.getArray("directives")))
      run.directives.push_back(wordOf(word));
    for (const Array &variable : listsOf(of.getArray("exported"))) {
      const Array *value = list(variable, 1);
      run.exported[text(variable, 0).str()] = {value == nullptr ? std::nullopt
                                                                : std::optional(wordOf(*value)),
                                               range(list(variable, 2))};
    }
    return run;
  }

private:
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
};

} // namespace

std::optional<ShellRun> shellRunOf(BufferId script, llvm::StringRef commands, DiagEngine &diags) {
  llvm::Expected<llvm::json::Value> read = llvm::json::parse(commands);
  if (!read)
    llvm::consumeError(read.takeError());
  else if (const Object *of = read->getAsObject())
    return ShellResult(script, diags.sources()).read(*of);
  else if (const Array *malformed = read->getAsArray()) {
    diags.report(diag::ImportMalformed, ReaderResult(script, diags.sources()).range(malformed),
                 (ReaderResult::text(*malformed, 2) + "; '--run' runs the script").str());
    return std::nullopt;
  }
  diags.report(diag::ImportMalformed, SourceRange(), "what its reader says is not understood");
  return std::nullopt;
}

} // namespace shardc::upstream
