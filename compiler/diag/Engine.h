// Collects the messages of a compilation and hands them, sorted by place, to consumers. Phases
// report and continue; hasErrors() says whether their result may be used.
//
//   diags.report(diag::UnknownKey, key.range, key.text, section)
//       .note(diag::SectionOpenedHere, section.range, section)
//       .fixIt(FixIt::replace(key.range, best));
//
// A rule from a table at run time: diags.report(rule.info, range, {DiagArg(a), DiagArg(b)}).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compiler/diag/Diag.h"
#include "compiler/diag/WarningFlags.h"

namespace shardc {

class DiagEngine;

/// Shows finished messages somewhere.
class DiagConsumer {
public:
  virtual ~DiagConsumer() = default;
  virtual void handle(const Diagnostic &diagnostic) = 0;
  /// After the last message.
  virtual void finish() {}
};

/// A message being made; it is filed when the builder goes away at the end of the statement.
class DiagBuilder {
public:
  DiagBuilder(DiagEngine &engine, const DiagInfo &info, SourceRange range,
              llvm::ArrayRef<DiagArg> args);
  DiagBuilder(DiagBuilder &&other) noexcept;
  DiagBuilder(const DiagBuilder &) = delete;
  ~DiagBuilder();

  /// Adds a note; later fixIt() and highlight() calls belong to it.
  DiagBuilder &note(const DiagInfo &info, SourceRange range, llvm::ArrayRef<DiagArg> args = {});
  template <typename... Args>
  DiagBuilder &note(const TypedDiag<Args...> &row, SourceRange range,
                    std::type_identity_t<Args>... args) {
    return note(row.info, range, {toDiagArg(args)...});
  }
  /// Offers a repair at the message, or at the last note if there is one.
  DiagBuilder &fixIt(FixIt fix);
  /// Marks the remark as one about a value that the user did not write, and that follows from one
  /// that the user wrote.
  DiagBuilder &asConsequence(bool is = true);
  /// Underlines a further range of the message or of the last note.
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

  /// Consumers get every message at flush(); they must outlive the engine's last flush.
  void addConsumer(DiagConsumer &consumer) { consumers_.push_back(&consumer); }
  /// Errors shown before the rest are only counted; 0 shows all.
  void setErrorLimit(unsigned limit) { errorLimit_ = limit; }

  /// Reports a row of Diagnostics.def; the number and kinds of arguments are checked when
  /// compiling.
  template <typename... Args>
  DiagBuilder report(const TypedDiag<Args...> &row, SourceRange range,
                     std::type_identity_t<Args>... args) {
    return report(row.info, range, {toDiagArg(args)...});
  }
  /// Reports a row of any other table. A range that is not valid means that there is no place.
  DiagBuilder report(const DiagInfo &info, SourceRange range, llvm::ArrayRef<DiagArg> args = {});

  /// Messages from now on may be consequences of earlier ones, and are printed after them.
  void beginPhase() { ++phase_; }

  /// Whether an error was reported, -Werror counted in.
  bool hasErrors() const { return numErrors_ > 0; }
  unsigned numErrors() const { return numErrors_; }
  unsigned numWarnings() const { return numWarnings_; }

  /// Reported and not yet flushed, unsorted; for fix-its and editors.
  const std::vector<Diagnostic> &pending() const { return pending_; }

  /// Shows the messages since the last flush and forgets them; at most errorLimit errors in all.
  /// Remarks come before warnings and these before errors, so that errors are last on a terminal;
  /// within a severity, messages of earlier phases come first, then by place, with those without a
  /// place first.
  void flush();
  /// flush(), then the end for every consumer. Once, at the end.
  void finish();

private:
  friend class DiagBuilder;
  void file(Diagnostic diagnostic);

  const SourceManager &sources_;
  WarningFlags flags_;
  std::vector<DiagConsumer *> consumers_;
  std::vector<Diagnostic> pending_;
  std::set<std::string> seen_; ///< place, id and text of what was filed, so nothing is said twice
  unsigned errorLimit_ = 20;
  unsigned phase_ = 0;
  unsigned numErrors_ = 0;
  unsigned numWarnings_ = 0;
  unsigned numErrorsShown_ = 0;
  unsigned numErrorsHidden_ = 0;
};

} // namespace shardc
