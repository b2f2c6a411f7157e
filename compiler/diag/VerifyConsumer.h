// `--verify-diagnostics`: comments in the recipe state the expected messages. Each missing or
// unexpected message is a failure.
//
//   lr = x          // expected-error {{unknown}}         this line; text or [id] contains it
//   // expected-error@+1 {{unknown}}                      on the next line (@-1: the previous one)
//   // expected-note@base.recipe:3 {{here}}               another file, by the end of its name
//   // expected-warning@* {{somewhere}}                   on any line, or without a location
//   // expected-remark 2 {{twice}}                        this many times
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
  /// Reads the expectations of `main`. If `ignoreRemarks` is set, unexpected remarks and their
  /// notes do not count as failures.
  VerifyConsumer(const SourceManager &sources, BufferId main, bool ignoreRemarks = false);

  void handle(const Diagnostic &diagnostic) override;
  /// Compares messages and expectations, after finish(). Prints each difference as `file:line:
  /// ...`. Returns true if there is none.
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
    std::string text; ///< including [id]
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

/// One case of a split file. Its lines keep their numbers in the file.
struct InputPart {
  std::string text;
  unsigned firstLine = 1;
};

/// Splits at lines that begin with `// -----`.
std::vector<InputPart> splitInput(llvm::StringRef text);

} // namespace shardc
