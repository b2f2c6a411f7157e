// Messages for machines: JsonConsumer writes one JSON object per line, SarifConsumer one SARIF
// 2.1.0 document at the end. Both contain id, location, notes and the edits of fix-its.
#pragma once

#include <memory>

#include "compiler/diag/Engine.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {

/// Objects have the form {"severity", "id", "group", "text", "file", "range": {"begin": {"line",
/// "column", "offset"}, "end"}, "notes": [...], "fixits": [{"kind", "edits": [{"file", "range",
/// "text"}]}]}. Columns count code points, offsets bytes. A message without a location has no
/// range; its file is `recipe`, if that is given.
class JsonConsumer : public DiagConsumer {
public:
  JsonConsumer(const SourceManager &sources, llvm::raw_ostream &out, std::string recipe = {})
      : sources_(sources), out_(out), recipe_(std::move(recipe)) {}
  void handle(const Diagnostic &diagnostic) override;

private:
  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  std::string recipe_;
};

/// Writes all diagnostics as one SARIF document at the end, for code-scanning tools.
class SarifConsumer : public DiagConsumer {
public:
  SarifConsumer(const SourceManager &sources, llvm::raw_ostream &out, std::string recipe = {});
  ~SarifConsumer() override;
  void handle(const Diagnostic &diagnostic) override;
  void finish() override;

private:
  struct State;
  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  std::string recipe_;
  std::unique_ptr<State> state_;
};

} // namespace shardc
