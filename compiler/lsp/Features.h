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

/// The document's messages as `Diagnostic[]`. If a message has no location in this document, it is
/// shown at the word `recipe`; a location in another file becomes related information.
nlohmann::json diagnosticsJson(const Analysis &analysis, const Document &document);

/// Documentation, default and effective value of the option at `at`; null if there is no option.
nlohmann::json hoverJson(const Analysis &analysis, const Document &document, Position at);

/// The place that `at` refers to. For an option: where a base or an earlier line sets it, otherwise
/// where it is set. For a base in `extends`: the start of its file. Null in all other cases.
nlohmann::json definitionJson(const Analysis &analysis, const Document &document, Position at);

/// The fix-its of all messages that overlap the range, and one action for all edits of `check
/// --fix`.
nlohmann::json codeActionsJson(const Analysis &analysis, const Document &document, Position begin,
                               Position end);

/// The edits that give the document its canonical layout; null if it has syntax errors.
nlohmann::json formattingJson(const Document &document);

} // namespace shardc::lsp
