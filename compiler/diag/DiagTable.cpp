// The rows of Diagnostics.def as data, for the engine, the -W flags and the reference page.
#include "compiler/diag/Diag.h"

namespace shardc {

namespace {

template <typename... Args> constexpr unsigned numArgsOf(const TypedDiag<Args...> &) {
  return sizeof...(Args);
}

} // namespace

llvm::ArrayRef<DiagRow> diagTable() {
  static const DiagRow kRows[] = {
#define DIAG(severity, name, id, group, text, ...) {diag::name.info, #name, numArgsOf(diag::name)},
#include "compiler/diag/Diagnostics.def"
  };
  return kRows;
}

} // namespace shardc
