// What the server answers besides completion: diagnostics, hover, definitions, code actions,
// formatting; each as the JSON of the protocol.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compiler/lsp/Analysis.h"
#include "compiler/lsp/Completion.h"

namespace shardc::lsp {

nlohmann::json toJson(Position position);
nlohmann::json toJson(Position begin, Position end);
nlohmann::json toJson(const Completion &completion);

/// The document's messages as `Diagnostic[]`. What stands in another file, or nowhere, is shown at
/// the head of the recipe, with the place as related information.
nlohmann::json diagnosticsJson(const Analysis &analysis, const Document &document);

/// Doc, default and effective value of what stands at the place; null where there is nothing.
nlohmann::json hoverJson(const Analysis &analysis, const Document &document, Position at);

/// Where the option at the place was set before: in a base, or earlier; where it is set, if nowhere
/// else. For a base of `extends`, the file. Null where there is nothing.
nlohmann::json definitionJson(const Analysis &analysis, const Document &document, Position at);

/// The fix-its of the messages that touch the range, and one action for all that `--fix` makes.
nlohmann::json codeActionsJson(const Analysis &analysis, const Document &document, Position begin,
                               Position end);

/// The edits that give the document its canonical layout; null if it has syntax errors.
nlohmann::json formattingJson(const Document &document);

} // namespace shardc::lsp
