// The server's features except completion: diagnostics, hover, definitions, code actions,
// formatting; each as the JSON of the protocol.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compiler/lsp/Analysis.h"
#include "compiler/lsp/Completion.h"

namespace shardc::lsp {

nlohmann::json toJson(Position position);
nlohmann::json toJson(Position begin, Position end);
nlohmann::json toJson(const Completion &completion);

/// The document's messages as `Diagnostic[]`. A message for another file, or without a location, is
/// shown at the head of the recipe, with its location as related information.
nlohmann::json diagnosticsJson(const Analysis &analysis, const Document &document);

/// Documentation, default and effective value of the option at the position; null if there is none.
nlohmann::json hoverJson(const Analysis &analysis, const Document &document, Position at);

/// The earlier definition of the option at the position: in a base, or earlier in the file;
/// otherwise where it is set. For a base of `extends`, the file. Null if there is none.
nlohmann::json definitionJson(const Analysis &analysis, const Document &document, Position at);

/// The fix-its of the messages that touch the range, and one action for all edits of `--fix`.
nlohmann::json codeActionsJson(const Analysis &analysis, const Document &document, Position begin,
                               Position end);

/// The edits that give the document its canonical layout; null if it has syntax errors.
nlohmann::json formattingJson(const Document &document);

} // namespace shardc::lsp
