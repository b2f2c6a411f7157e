#include "compiler/diag/Remarks.h"

#include "compiler/basic/Format.h"

namespace shardc {

std::optional<RemarkKind> findRemarkKind(llvm::StringRef group) {
#define REMARK_GROUP(name, enumerator)                                                             \
  if (group == name)                                                                               \
    return RemarkKind::enumerator;
#include "compiler/diag/RemarkKinds.def"
  return std::nullopt;
}

llvm::StringRef remarkKindName(RemarkKind kind, unsigned count) {
  switch (kind) {
#define REMARK_KIND(enumerator, singular, plural)                                                  \
  case RemarkKind::enumerator:                                                                     \
    return count == 1 ? singular : plural;
#include "compiler/diag/RemarkKinds.def"
  }
  return {};
}

llvm::StringRef consequenceName(unsigned count) {
  return count == 1 ? "setting derived from others" : "settings derived from others";
}

void RemarkCounts::add(llvm::StringRef group, bool isConsequence) {
  if (isConsequence) {
    ++consequences_;
    return;
  }
  ++counts_[static_cast<size_t>(findRemarkKind(group).value_or(RemarkKind::Other))];
}

std::string RemarkCounts::text() const {
  std::string out;
  for (size_t k = 0; k < kRemarkKinds; ++k)
    if (counts_[k] > 0)
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", counts_[k],
                         remarkKindName(static_cast<RemarkKind>(k), counts_[k]));
  if (out.empty() || consequences_ == 0)
    return out;
  return fmt::format("{} {}, {}", consequences_, consequenceName(consequences_), out);
}

} // namespace shardc
