// Messages for people: `file:line:col: error: text [id]`, the source line, caret and range, then
// notes. Remarks may be shortened to a line each, or to one line that counts them.
#pragma once

#include "compiler/diag/Engine.h"
#include "compiler/diag/Remarks.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {

/// When to colour: always, never, or if the stream is a terminal.
enum class ColorMode : uint8_t { Auto, Always, Never };

/// What becomes of remarks.
enum class RemarkMode : uint8_t {
  Hidden,
  Counted, ///< one line with their numbers by kind, before warnings and errors
  Lines,   ///< each in its first line, without source line and notes
  Full,    ///< like warnings
};

struct TextOptions {
  ColorMode color = ColorMode::Auto;
  RemarkMode remarks = RemarkMode::Full;
  /// The recipe that the line of counts is about, and the command that lists the remarks; empty if
  /// there is none.
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
  void printCounts();
  void printSource(const Message &message);
  void printFixIts(const Message &message);

  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  TextOptions options_;
  bool color_;
  RemarkCounts counts_; ///< of remarks that were neither shown nor counted yet
};

/// The text form without colour, for tests and logs.
std::string renderText(const SourceManager &sources, const Diagnostic &diagnostic);

} // namespace shardc
