// Messages for people: `file:line:col: error: text [id]`, the source line, caret and range, then
// notes.
#pragma once

#include "compiler/diag/Engine.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {

/// When to colour: always, never, or if the stream is a terminal.
enum class ColorMode : uint8_t { Auto, Always, Never };

class TextConsumer : public DiagConsumer {
public:
  TextConsumer(const SourceManager &sources, llvm::raw_ostream &out,
               ColorMode color = ColorMode::Auto);
  void handle(const Diagnostic &diagnostic) override;

private:
  void printMessage(const Message &message);
  void printSource(const Message &message);
  void printFixIts(const Message &message);

  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  bool color_;
};

/// The text form without colour, for tests and logs.
std::string renderText(const SourceManager &sources, const Diagnostic &diagnostic);

} // namespace shardc
