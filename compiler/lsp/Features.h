// The language features except completion: diagnostics, hover, definitions, code actions and
// formatting. Each function returns the JSON that the protocol prescribes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compiler/lsp/Analysis.h"
#include "compiler/lsp/Completion.h"

namespace shardc::lsp {

nlohmann::json toJson(Position position);
nlohmann::json toJson(Position begin, Position end);
nlohmann::json toJson(const Completion &completion);

/// The document's errors and warnings as `Diagnostic[]`; remarks are in hover and actions. If a
/// message has no location in this document, it is shown at the word `recipe`; a location in
/// another file becomes related information.
nlohmann::json diagnosticsJson(const Analysis &analysis, const Document &document);

/// Documentation, default and effective value of the option at `at`; null if there is no option.
nlohmann::json hoverJson(const Analysis &analysis, const Document &document, Position at);

/// The place that `at` refers to. For an option: where a base or an earlier line sets it, otherwise
/// where it is set. For a base in `extends`: the start of its file. For a constant: its `let`. Null
/// in all other cases.
nlohmann::json definitionJson(const Analysis &analysis, const Document &document, Position at);

/// The places of the constant at `at`, or those that set the option, in this file and its bases;
/// empty if there is neither.
nlohmann::json referencesJson(const Analysis &analysis, const Document &document, Position at);

/// Range of the constant at `at`, and the edits that rename it in this document; null if there is
/// none, or if `name` cannot be its name.
nlohmann::json renameRangeJson(const Document &document, Position at);
nlohmann::json renameJson(const Document &document, Position at, const std::string &name);

/// Sections with their options, and constants.
nlohmann::json symbolsJson(const Document &document);

/// The bases in `extends`, with their files.
nlohmann::json linksJson(const Document &document);

/// The fix-its of all messages that overlap the range, and one action for all edits of `check
/// --fix`.
nlohmann::json codeActionsJson(const Analysis &analysis, const Document &document, Position begin,
                               Position end);

/// The edits that give the document its canonical layout; null if it has syntax errors.
nlohmann::json formattingJson(const Document &document);

} // namespace shardc::lsp
