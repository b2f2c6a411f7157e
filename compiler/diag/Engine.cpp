#include "compiler/diag/Engine.h"

#include <algorithm>
#include <tuple>

#include "compiler/basic/Format.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc {

namespace {

/// Maximum number of stored messages; further ones are only counted. Otherwise a text with an error
/// in every byte could exhaust memory.
constexpr size_t kPendingMax = 10'000;

Message makeMessage(const DiagInfo &info, SourceRange range, llvm::ArrayRef<DiagArg> args) {
  Message message;
  message.severity = info.severity;
  message.id = info.id.str();
  message.text = formatDiagText(info.text, args);
  message.range = range;
  return message;
}

} // namespace

DiagBuilder::DiagBuilder(DiagEngine &engine, const DiagInfo &info, SourceRange range,
                         llvm::ArrayRef<DiagArg> args)
    : engine_(&engine), diagnostic_{makeMessage(info, range, args)} {
  diagnostic_.group = info.group.str();
}

DiagBuilder::DiagBuilder(DiagBuilder &&other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)), diagnostic_(std::move(other.diagnostic_)) {}

DiagBuilder::~DiagBuilder() {
  if (engine_)
    engine_->file(std::move(diagnostic_));
}

Message &DiagBuilder::last() {
  return diagnostic_.notes.empty() ? diagnostic_ : diagnostic_.notes.back();
}

DiagBuilder &DiagBuilder::note(const DiagInfo &info, SourceRange range,
                               llvm::ArrayRef<DiagArg> args) {
  diagnostic_.notes.push_back(makeMessage(info, range, args));
  diagnostic_.notes.back().severity = Severity::Note;
  return *this;
}

DiagBuilder &DiagBuilder::fixIt(FixIt fix) {
  last().fixIts.push_back(std::move(fix));
  return *this;
}

DiagBuilder &DiagBuilder::asConsequence(bool is) {
  diagnostic_.isConsequence = is;
  return *this;
}

DiagBuilder &DiagBuilder::highlight(SourceRange range) {
  last().highlights.push_back(range);
  return *this;
}

DiagBuilder DiagEngine::report(const DiagInfo &info, SourceRange range,
                               llvm::ArrayRef<DiagArg> args) {
  return DiagBuilder(*this, info, range, args);
}

void DiagEngine::file(Diagnostic diagnostic) {
  DiagInfo info{diagnostic.severity, diagnostic.id, diagnostic.group, {}};
  std::optional<Severity> severity = flags_.effective(info);
  if (!severity)
    return;
  diagnostic.promoted = *severity != diagnostic.severity;
  diagnostic.severity = *severity;
  diagnostic.phase = phase_;
  // A base recipe may be read twice, through two recipes that extend it. Its messages are reported
  // only once.
  std::string key = fmt::format("{}:{}:{}:{}", diagnostic.range.begin.raw(),
                                diagnostic.range.end.raw(), diagnostic.id, diagnostic.text);
  bool isFull = seen_.size() >= kPendingMax;
  if (!isFull && !seen_.insert(std::move(key)).second)
    return;
  numErrors_ += *severity == Severity::Error;
  numWarnings_ += *severity == Severity::Warning;
  if (isFull)
    numErrorsHidden_ += *severity == Severity::Error;
  else
    pending_.push_back(std::move(diagnostic));
}

void DiagEngine::hideSecrets(Message &message) const {
  constexpr size_t kBytesMin = 4, kBytesMax = 200; // messages shorten long words
  message.text = sources_.withoutSecrets(std::move(message.text));
  if (!message.range.isValid() || sources_.text(message.range) == sources_.shown(message.range))
    return;
  message.fixIts.clear();
  llvm::StringRef value = sources_.text(message.range), shown = sources_.shown(message.range);
  auto begin = std::mismatch(value.begin(), value.end(), shown.begin()).first;
  value = value.drop_front(begin - value.begin()).take_front(kBytesMax);
  for (; value.size() >= kBytesMin; value = value.drop_back())
    for (size_t at; (at = message.text.find(value.str())) != std::string::npos;)
      message.text.replace(at, value.size(), "***");
}

void DiagEngine::flush() {
  std::stable_sort(pending_.begin(), pending_.end(), [](const Diagnostic &a, const Diagnostic &b) {
    return std::tuple(a.severity, a.phase, a.range.begin) <
           std::tuple(b.severity, b.phase, b.range.begin);
  });
  for (Diagnostic &diagnostic : pending_) {
    hideSecrets(diagnostic);
    llvm::for_each(diagnostic.notes, [&](Message &note) { hideSecrets(note); });
    bool isError = diagnostic.severity == Severity::Error;
    if (isError && errorLimit_ != 0 && numErrorsShown_ >= errorLimit_) {
      ++numErrorsHidden_;
      continue;
    }
    numErrorsShown_ += isError;
    for (DiagConsumer *consumer : consumers_)
      consumer->handle(diagnostic);
  }
  pending_.clear();
}

void DiagEngine::finish() {
  flush();
  if (numErrorsHidden_ > 0) {
    Diagnostic last;
    static_cast<Message &>(last) = makeMessage(
        diag::TooManyErrors.info, {}, {DiagArg(numErrorsHidden_), DiagArg(numErrorsShown_)});
    for (DiagConsumer *consumer : consumers_)
      consumer->handle(last);
  }
  for (DiagConsumer *consumer : consumers_)
    consumer->finish();
}

} // namespace shardc
