// Applies the edits of fix-its: new texts of the buffers, for `check --fix` and editors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/diag/Diag.h"

namespace shardc {

struct FixItResult {
  std::map<BufferId, std::string> texts; ///< new text of each buffer that changed
  unsigned numApplied = 0;
  unsigned numConflicts = 0; ///< fix-its left out because they overlap one made before
};

/// Applies the fix-its of the messages and their notes: the Applied ones and, if `recommended`, the
/// Recommended ones. If two change the same bytes, the first wins; equal edits count once. A fix-it
/// with an edit in a buffer that is not a file (`<--set ...>`) is left out.
FixItResult applyFixIts(const SourceManager &sources, llvm::ArrayRef<Diagnostic> diagnostics,
                        bool recommended);

} // namespace shardc
