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

/// Makes the fix-its of the messages and their notes: the Applied ones and, if `recommended`, those
/// too. Where two want the same bytes the first wins; equal edits count once. Edits in buffers that
/// are no file (`<--set ...>`) are left out with their fix-it.
FixItResult applyFixIts(const SourceManager &sources, llvm::ArrayRef<Diagnostic> diagnostics,
                        bool recommended);

} // namespace shardc
