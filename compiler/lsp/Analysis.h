// Runs the compiler on one open recipe and keeps the configuration and the messages. Other files
// that are open in the editor are read from there, not from disk.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "compiler/lsp/Document.h"

namespace shardc::lsp {

/// The open documents; the key is the path that the compiler uses.
using Documents = std::map<std::string, Document>;

/// Checks a configuration that has no errors and reports findings, as `shardc check` does.
using CompileStep = std::function<void(const config::Config &, SourceManager &, DiagEngine &)>;

class Analysis {
public:
  /// Reads, configures and checks `document`. `further` and `measure` may be empty; then those
  /// checks or the measuring of data files are skipped.
  Analysis(const Document &document, const Documents &open, const CompileStep &further,
           const config::DataMeter &measure = {});

  const SourceManager &sources() const { return sources_; }
  BufferId buffer() const { return buffer_; }
  /// The configuration, as far as it could be built; null if the recipe's braces do not match.
  const config::Config *config() const { return config_ ? &*config_ : nullptr; }
  /// All messages, sorted by location.
  const std::vector<Diagnostic> &messages() const { return messages_; }
  bool isHere(SourceRange range) const {
    return range.isValid() && sources_.bufferOf(range.begin) == buffer_;
  }
  /// Start and end of `range` in the protocol's coordinates, in whichever file the range lies.
  std::pair<Position, Position> positions(SourceRange range) const;
  std::string uriOf(SourceRange range) const;

private:
  SourceManager sources_;
  DiagEngine diags_{sources_};
  BufferId buffer_;
  std::optional<config::Config> config_;
  std::vector<Diagnostic> messages_;
};

} // namespace shardc::lsp
