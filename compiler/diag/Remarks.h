// Counts remarks by the kinds of RemarkKinds.def. A recipe has many remarks, in which readers are
// seldom interested, so the text form prints their numbers and shows the remarks only on request.
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

/// The kind of a group; empty for a group without a row.
std::optional<RemarkKind> findRemarkKind(llvm::StringRef group);

/// A noun phrase for `count` remarks of a kind: `setting adjusted` for one, else `settings
/// adjusted`.
llvm::StringRef remarkKindName(RemarkKind kind, unsigned count);
/// A noun phrase for `count` consequences: `setting derived from others` for one, else the plural.
llvm::StringRef consequenceName(unsigned count);

/// The number of remarks of each kind.
class RemarkCounts {
public:
  /// Adds a remark. Consequences of other settings are counted separately.
  void add(llvm::StringRef group, bool isConsequence);
  /// Text such as `1 setting derived from others, 4 settings adjusted, 5 recommendations`; empty if
  /// there are only consequences.
  std::string text() const;

private:
  std::array<unsigned, kRemarkKinds> counts_ = {};
  unsigned consequences_ = 0;
};

} // namespace shardc
