// Shared by the tests of compiler/config: loading a recipe from text, and the cases of the lit
// files of test/config, so that they run here as well as through the tool.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Steps.h"
#include "compiler/diag/VerifyConsumer.h"

namespace shardc::config::test {

/// A recipe on its way through the four steps, with all messages about it.
struct Loaded {
  SourceManager sources;
  DiagEngine diags{sources};
  std::vector<Diagnostic> messages; ///< in the order in which they are flushed: sorted by place
  std::optional<Config> config;     ///< after the last step, even if there were errors

  /// `id` of every message of this severity, in order.
  std::vector<std::string> ids(Severity severity) const;
  bool has(llvm::StringRef id) const;
  const Diagnostic *find(llvm::StringRef id) const;
};

/// Loads the body of a recipe: `body` is put between `recipe r {` and `}`.
std::unique_ptr<Loaded> loadBody(const std::string &body, const LoadOptions &options = {});
/// Loads a whole recipe text.
std::unique_ptr<Loaded> loadText(const std::string &text, const LoadOptions &options = {});
/// Loads a file.
std::unique_ptr<Loaded> loadFile(const std::string &path, const LoadOptions &options = {});

/// One case of a lit file.
struct Case {
  std::string file; ///< name only
  InputPart part;
};

/// All cases of test/config, in the order of file names.
std::vector<Case> allCases();

/// All recipes of the repository, without overlays, which are laid over one that has a model.
std::vector<std::string> allRecipes();

/// A new folder under the test's temporary directory.
std::string makeFolder(const std::string &name);
void writeText(const std::string &path, const std::string &text);

} // namespace shardc::config::test
