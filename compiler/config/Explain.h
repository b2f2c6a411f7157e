// Texts of `shardc explain`: the value of an option with its origin and reason; the meaning of a
// rule or a diagnostic. The first line of an option's text is `path = value`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"

namespace shardc::config {

/// Explains one option of a configuration: value, provenance, earlier values, rules, doc and
/// upstream's names. `path` may be an alias. Empty if the option does not exist.
std::string explainOption(const Config &config, const SourceManager &sources, llvm::StringRef path);

/// Explains an option without a configuration: type, default, doc, names. Empty if unknown.
std::string explainOption(llvm::StringRef path);

/// Lists every option of a section with value and origin, one per line. For an empty name, lists
/// all options that are not at their default.
std::string explainAll(const Config &config, const SourceManager &sources, llvm::StringRef section);

/// Explains a rule: what it does, why, its text and upstream's texts. Empty if unknown.
std::string explainRule(llvm::StringRef id);

/// Explains each rule whose text, or an older text of upstream, contains `words`, ignoring case.
/// Helps users who search for upstream's messages. Empty if no rule matches.
std::string explainText(llvm::StringRef words);

/// A message's text without its arguments, as pages print it: `...` replaces each argument, `(s)`
/// an optional plural ending, and `(a|b)` a choice of words.
std::string readableText(std::string_view text);

/// Explains a message of the compiler or of the runtime by its id. Empty if unknown.
std::string explainDiagnostic(llvm::StringRef id);

/// The names that explain knows (option paths, rule and diagnostic ids), for suggestions and
/// completion.
std::vector<llvm::StringRef> explainableNames();

/// The origin of a value in words: `recipes/a.recipe:3:5`, `default`, `rule 'world-size', because
/// ...`.
std::string describeOrigin(const Config &config, const SourceManager &sources, Opt opt);

/// The tables of docs/options.md: how many options have each status, the options of each status,
/// families, and other names.
std::vector<std::string> optionReference();
/// The tables of docs/rules.md: the rules of each kind, deviations, and what has no rule.
std::vector<std::string> ruleReference();

} // namespace shardc::config
