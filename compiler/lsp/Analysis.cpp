#include "compiler/lsp/Analysis.h"

#include "compiler/basic/Library.h"

namespace shardc::lsp {

namespace {

struct Collector : DiagConsumer {
  explicit Collector(std::vector<Diagnostic> &messages) : messages(messages) {}
  void handle(const Diagnostic &diagnostic) override { messages.push_back(diagnostic); }
  std::vector<Diagnostic> &messages;
};

/// Maximum number of errors per document; more than a terminal shows, since an editor can list
/// them.
constexpr unsigned kErrorsMax = 200;

/// Other open files are taken from the editor up to this many bytes in total; the rest are read
/// from disk.
constexpr size_t kOpenBytesMax = size_t{256} << 20;

} // namespace

Analysis::Analysis(const Document &document, const Documents &open, const CompileStep &further,
                   const config::DataMeter &measure) {
  diags_.setErrorLimit(kErrorsMax);
  Collector collector(messages_);
  diags_.addConsumer(collector);
  size_t bytesLeft = kOpenBytesMax;
  for (const auto &[path, other] : open) {
    if (path == document.path || other.text.size() > std::min<size_t>(bytesLeft, kRecipeBytesMax))
      continue;
    sources_.addFile(path, other.text);
    bytesLeft -= other.text.size();
  }
  buffer_ = sources_.addFile(document.path, document.text);
  config::LoadOptions load;
  load.path = document.path;
  load.measure = measure;
  auto keep = [&](config::Step, const config::Config &config) { config_ = config; };
  std::optional<config::Config> sound = config::loadConfig(sources_, diags_, buffer_, load, keep);
  if (sound && further)
    further(*sound, sources_, diags_);
  diags_.finish();
}

std::pair<Position, Position> Analysis::positions(SourceRange range) const {
  auto position = [&](SourceLoc loc) -> Position {
    return {sources_.lineColumn(loc).line - 1, sources_.utf16Column(loc) - 1};
  };
  return {position(range.begin), position(range.end)};
}

std::string Analysis::uriOf(SourceRange range) const {
  return uriOfPath(filePathOf(sources_.name(sources_.bufferOf(range.begin))));
}

} // namespace shardc::lsp
