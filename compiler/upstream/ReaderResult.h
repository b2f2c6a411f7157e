// Access to the JSON output of the readers in Python: lists that begin with a range in bytes.
#pragma once

#include <algorithm>

#include "compiler/basic/SourceManager.h"
#include "llvm/Support/JSON.h"

namespace shardc::upstream {

class ReaderResult {
public:
  using Array = llvm::json::Array;

  ReaderResult(BufferId input, const SourceManager &sources) : input_(input), sources_(sources) {}

  /// The text at index `at`; if there is none, its data() is null.
  static llvm::StringRef text(const Array &parts, size_t at) {
    return at < parts.size() ? parts[at].getAsString().getValueOr(llvm::StringRef())
                             : llvm::StringRef();
  }
  /// The list at index `at`; null if there is none.
  static const Array *list(const Array &parts, size_t at) {
    return at < parts.size() ? parts[at].getAsArray() : nullptr;
  }

  /// The source range given by the first two numbers; invalid if they are missing.
  SourceRange range(const Array *parts) const {
    llvm::Optional<int64_t> begin, end;
    if (parts != nullptr && parts->size() > 1)
      begin = (*parts)[0].getAsInteger(), end = (*parts)[1].getAsInteger();
    if (!begin || !end)
      return {};
    auto size = static_cast<int64_t>(sources_.text(input_).size());
    auto first = static_cast<size_t>(std::clamp<int64_t>(*begin, 0, size));
    auto last = static_cast<size_t>(std::clamp<int64_t>(*end, 0, size));
    return sources_.range(input_, first, std::max(first, last));
  }

private:
  BufferId input_;
  const SourceManager &sources_;
};

} // namespace shardc::upstream
