// Collects the messages of a compilation, and passes them to consumers, sorted by location. Phases
// report errors and continue; hasErrors() tells whether their results are usable.
//
//   diags.report(diag::UnknownKey, key.range, key.text, section)
//       .note(diag::SectionOpenedHere, section.range, section)
//       .fixIt(FixIt::replace(key.range, best));
//
// A rule from a table at run time: diags.report(rule.info, range, {DiagArg(a), DiagArg(b)}).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiler/diag/Diag.h"
#include "compiler/diag/WarningFlags.h"

namespace shardc {

class DiagEngine;

/// Prints finished messages.
class DiagConsumer {
public:
  virtual ~DiagConsumer() = default;
  virtual void handle(const Diagnostic &diagnostic) = 0;
  /// Called after the last message.
  virtual void finish() {}
};

/// A message that is being built. The builder's destructor, at the end of the statement, adds it to
/// the engine.
class DiagBuilder {
public:
  DiagBuilder(DiagEngine &engine, const DiagInfo &info, SourceRange range,
              llvm::ArrayRef<DiagArg> args);
  DiagBuilder(DiagBuilder &&other) noexcept;
  DiagBuilder(const DiagBuilder &) = delete;
  ~DiagBuilder();

  /// Adds a note. Later calls of fixIt() and highlight() apply to it.
  DiagBuilder &note(const DiagInfo &info, SourceRange range, llvm::ArrayRef<DiagArg> args = {});
  template <typename... Args>
  DiagBuilder &note(const TypedDiag<Args...> &row, SourceRange range,
                    std::type_identity_t<Args>... args) {
    return note(row.info, range, {toDiagArg(args)...});
  }
  /// Adds a fix-it to the last note or, if there is none, to the message.
  DiagBuilder &fixIt(FixIt fix);
  /// Marks the remark as a consequence: it is about a value that the user did not write, but that
  /// follows from a written one.
  DiagBuilder &asConsequence(bool is = true);
  /// Underlines another range, for the last note or, if there is none, for the message.
  DiagBuilder &highlight(SourceRange range);

private:
  Message &last();

  DiagEngine *engine_;
  Diagnostic diagnostic_;
};

class DiagEngine {
public:
  explicit DiagEngine(const SourceManager &sources) : sources_(sources) {}
  DiagEngine(const DiagEngine &) = delete;
  DiagEngine &operator=(const DiagEngine &) = delete;

  const SourceManager &sources() const { return sources_; }
  WarningFlags &flags() { return flags_; }
  const WarningFlags &flags() const { return flags_; }

  /// Adds a consumer, which receives every message at flush(). It must live until the engine's last
  /// flush.
  void addConsumer(DiagConsumer &consumer) { consumers_.push_back(&consumer); }
  /// Maximum number of errors that are printed; further ones are only counted. 0: no limit.
  void setErrorLimit(unsigned limit) { errorLimit_ = limit; }

  /// Reports a row of Diagnostics.def. Number and types of the arguments are checked at compile
  /// time.
  template <typename... Args>
  DiagBuilder report(const TypedDiag<Args...> &row, SourceRange range,
                     std::type_identity_t<Args>... args) {
    return report(row.info, range, {toDiagArg(args)...});
  }
  /// Reports a row of any other table. An invalid range means that there is no location.
  DiagBuilder report(const DiagInfo &info, SourceRange range, llvm::ArrayRef<DiagArg> args = {});

  /// Starts a new phase. Its messages may be consequences of earlier ones, and are printed after
  /// them.
  void beginPhase() { ++phase_; }

  /// Whether an error was reported, including warnings that -Werror turned into errors.
  bool hasErrors() const { return numErrors_ > 0; }
  unsigned numErrors() const { return numErrors_; }
  unsigned numWarnings() const { return numWarnings_; }

  /// Messages that were reported and not yet flushed, unsorted. Used for fix-its and editors.
  const std::vector<Diagnostic> &pending() const { return pending_; }

  /// Passes the messages since the last flush to the consumers, but at most errorLimit errors in
  /// total. Remarks come before warnings, and warnings before errors, so that a terminal shows
  /// errors last. Within a severity, messages are ordered by phase, then by location, those without
  /// a location first.
  void flush();
  /// Calls flush(), then finish() of every consumer. Must be called once, at the end.
  void finish();

private:
  friend class DiagBuilder;
  void file(Diagnostic diagnostic);
  /// Hides the value of a secret that the message is about.
  void hideSecrets(Message &message) const;

  const SourceManager &sources_;
  WarningFlags flags_;
  std::vector<DiagConsumer *> consumers_;
  std::vector<Diagnostic> pending_;
  std::set<std::string> seen_; ///< location, id and text of reported messages, to drop duplicates
  unsigned errorLimit_ = 20;
  unsigned phase_ = 0;
  unsigned numErrors_ = 0;
  unsigned numWarnings_ = 0;
  unsigned numErrorsShown_ = 0;
  unsigned numErrorsHidden_ = 0;
};

} // namespace shardc
