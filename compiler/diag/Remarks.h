// A recipe has many remarks, and the reader seldom looks for them. Therefore the text form counts
// them by kind and shows them on request. The kinds are those of RemarkKinds.def.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc {

enum class RemarkKind : uint8_t {
#define REMARK_KIND(enumerator, singular, plural) enumerator,
#include "compiler/diag/RemarkKinds.def"
};

inline constexpr size_t kRemarkKinds = 0
#define REMARK_KIND(enumerator, singular, plural) +1
#include "compiler/diag/RemarkKinds.def"
    ;

/// The kind that a row of the table gives to a group; nothing for a group without a row.
std::optional<RemarkKind> findRemarkKind(llvm::StringRef group);

/// `setting adjusted`, or for any other number than one `settings adjusted`.
llvm::StringRef remarkKindName(RemarkKind kind, unsigned count);
/// `setting derived from others`, of remarks that are consequences, or the plural.
llvm::StringRef consequenceName(unsigned count);

/// How many remarks of each kind there were.
class RemarkCounts {
public:
  /// Consequences of other settings are counted by themselves.
  void add(llvm::StringRef group, bool isConsequence);
  /// `1 setting derived from others, 4 settings adjusted, 5 recommendations`; empty if there is
  /// nothing but consequences.
  std::string text() const;

private:
  std::array<unsigned, kRemarkKinds> counts_ = {};
  unsigned consequences_ = 0;
};

} // namespace shardc
