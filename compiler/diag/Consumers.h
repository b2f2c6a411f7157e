// Where messages go: to people as text, to machines as JSON or SARIF.
#pragma once

#include <memory>
#include <string>

#include "compiler/diag/Engine.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {

/// When to colour: always, never, or if the stream is a terminal.
enum class ColorMode : uint8_t { Auto, Always, Never };

/// How remarks are printed.
enum class RemarkMode : uint8_t {
  Hidden,
  Counted, ///< as one line with their numbers by kind, before warnings; none before errors
  Lines,   ///< as their first line, without source line and notes
  Full,    ///< like warnings
};

struct TextOptions {
  ColorMode color = ColorMode::Auto;
  RemarkMode remarks = RemarkMode::Full;
  /// The recipe to which the line of numbers refers, and the command that lists the remarks; either
  /// may be empty.
  std::string recipe = {}, explain = {};
};

/// Prints messages for people: `file:line:col: error: text [id]`, the source line, caret and range,
/// then notes. Remarks may be shortened to one line each, or to a single line with their numbers.
std::unique_ptr<DiagConsumer> makeTextConsumer(const SourceManager &sources, llvm::raw_ostream &out,
                                               TextOptions options = {});

/// Writes one object per line: {"severity", "id", "group", "text", "file", "range": {"begin":
/// {"line", "column", "offset"}, "end"}, "notes": [...], "fixits": [{"kind", "edits": [{"file",
/// "range", "text"}]}]}. Columns count code points, offsets bytes. A message without a location has
/// no range; its file is `recipe`, if that is given.
std::unique_ptr<DiagConsumer> makeJsonConsumer(const SourceManager &sources, llvm::raw_ostream &out,
                                               std::string recipe = {});

/// Writes all diagnostics as one SARIF 2.1.0 document at the end, for code-scanning tools.
std::unique_ptr<DiagConsumer> makeSarifConsumer(const SourceManager &sources,
                                                llvm::raw_ostream &out, std::string recipe = {});

} // namespace shardc
