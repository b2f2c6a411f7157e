// Prints messages for people: `file:line:col: error: text [id]`, the source line, caret and range,
// then notes. Remarks may be shortened to one line each, or to a single line with their numbers.
#pragma once

#include "compiler/diag/Engine.h"
#include "compiler/diag/Remarks.h"
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

class TextConsumer : public DiagConsumer {
public:
  TextConsumer(const SourceManager &sources, llvm::raw_ostream &out, TextOptions options = {});
  void handle(const Diagnostic &diagnostic) override;
  void finish() override;

private:
  void printMessage(const Message &message);
  void printHead(const Message &message);
  void printSource(const Message &message);
  void printFixIts(const Message &message);

  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  TextOptions options_;
  bool color_;
  RemarkCounts counts_; ///< remarks that were neither printed nor counted in a line yet
};

/// The text form of a diagnostic without colour, for tests and logs.
std::string renderText(const SourceManager &sources, const Diagnostic &diagnostic);

} // namespace shardc
