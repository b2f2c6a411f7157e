// `--verify-diagnostics`: comments in the recipe state the expected messages, and every message
// that is missing or unexpected is a failure.
//
//   lr = x          // expected-error {{unknown}}         this line; text or [id] contains it
//   // expected-error@+1 {{unknown}}                      lines further on (@-1 back)
//   // expected-note@base.recipe:3 {{here}}               another file, by the end of its name
//   // expected-warning@* {{somewhere}}                   anywhere, or without a place
//   // expected-remark 2 {{twice}}                        so many times
//   // expected-remark@* 0 {{never}}                      it must not be reported
//
// A file of several cases, split at lines `// -----`, is checked case by case with splitInput().
#pragma once

#include <string>
#include <vector>

#include "compiler/diag/Engine.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {

class VerifyConsumer : public DiagConsumer {
public:
  /// Reads the expectations of `main`. Remarks (with their notes) that nothing expects are skipped
  /// if `ignoreRemarks`.
  VerifyConsumer(const SourceManager &sources, BufferId main, bool ignoreRemarks = false);

  void handle(const Diagnostic &diagnostic) override;
  /// Compares and prints each difference as `file:line: ...`; true if there was none. After
  /// finish().
  bool check(llvm::raw_ostream &out) const;

private:
  struct Expectation {
    Severity severity;
    std::string file; ///< empty: the main buffer
    unsigned line;    ///< 0: anywhere
    std::string text;
    unsigned count;
    unsigned writtenAt;
  };
  struct Seen {
    Severity severity;
    std::string file;
    unsigned line;
    std::string text; ///< with [id]
    bool optional;
  };

  void readLine(llvm::StringRef line, unsigned number);
  bool matches(const Expectation &expected, const Seen &seen) const;
  bool checkAbsent(const Expectation &expected, llvm::raw_ostream &out) const;

  const SourceManager &sources_;
  std::string mainName_;
  bool ignoreRemarks_;
  std::vector<Expectation> expected_;
  std::vector<Seen> seen_;
  std::vector<std::string> malformed_;
};

/// One case of a split file; lines keep the numbers that they have in the file.
struct InputPart {
  std::string text;
  unsigned firstLine = 1;
};

/// Splits at lines that begin with `// -----`.
std::vector<InputPart> splitInput(llvm::StringRef text);

} // namespace shardc
