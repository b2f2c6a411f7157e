// The compiler's result for one open recipe: its configuration and messages. Every other open file
// is read from the editor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "compiler/lsp/Document.h"

namespace shardc::lsp {

/// Open documents, by the path that the compiler uses for them.
using Documents = std::map<std::string, Document>;

/// Compiles a configuration without errors and reports findings, as `check` does.
using CompileStep = std::function<void(const config::Config &, SourceManager &, DiagEngine &)>;

class Analysis {
public:
  /// Reads, configures and checks `document`; `further` and `measure` may be empty.
  Analysis(const Document &document, const Documents &open, const CompileStep &further,
           const config::DataMeter &measure = {});

  const SourceManager &sources() const { return sources_; }
  BufferId buffer() const { return buffer_; }
  /// The configuration as far as it could be built; null if braces do not match.
  const config::Config *config() const { return config_ ? &*config_ : nullptr; }
  /// Sorted by location.
  const std::vector<Diagnostic> &messages() const { return messages_; }
  bool isHere(SourceRange range) const {
    return range.isValid() && sources_.bufferOf(range.begin) == buffer_;
  }
  /// The location in the document's coordinates, in whichever file it is.
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
