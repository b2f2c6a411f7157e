// A consumer for tests: keeps each message as `line:col: severity: text [id]`.
#pragma once

#include <string>
#include <vector>

#include "compiler/basic/Format.h"
#include "compiler/diag/Engine.h"

namespace shardc {

class Recorder : public DiagConsumer {
public:
  explicit Recorder(const SourceManager &sources) : sources_(sources) {}

  void handle(const Diagnostic &diagnostic) override {
    add(diagnostic);
    for (const Message &note : diagnostic.notes)
      add(note);
  }

  std::vector<std::string> lines;

private:
  void add(const Message &message) {
    std::string place;
    if (message.range.isValid()) {
      LineColumn at = sources_.lineColumn(message.range.begin);
      place = fmt::format("{}:{}: ", at.line, at.column);
    }
    lines.push_back(fmt::format("{}{}: {} [{}]", place, severityName(message.severity),
                                message.text, message.id));
  }

  const SourceManager &sources_;
};

} // namespace shardc
