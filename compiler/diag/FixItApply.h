// Applies fix-its to the texts of buffers, for `check --fix` and editors.
#pragma once

#include <map>
#include <string>

#include "compiler/diag/Diag.h"

namespace shardc {

struct FixItResult {
  std::map<BufferId, std::string> texts; ///< new text of each buffer that changed
  unsigned numApplied = 0;
  unsigned numConflicts = 0; ///< fix-its that conflict with an earlier one and were skipped
};

/// Applies the fix-its of the messages and their notes: those of kind Applied and, if
/// `recommended`, also Recommended ones. If two fix-its change the same bytes, the first one wins;
/// equal edits are applied once. A fix-it that edits a buffer without a file (`<--set ...>`) is
/// skipped.
FixItResult applyFixIts(const SourceManager &sources, llvm::ArrayRef<Diagnostic> diagnostics,
                        bool recommended);

} // namespace shardc
