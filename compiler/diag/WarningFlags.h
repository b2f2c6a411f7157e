// The -W flags: which groups of warnings and remarks are shown, and which are errors. The last flag
// that names a group wins.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "compiler/diag/Diag.h"

namespace shardc {

class WarningFlags {
public:
  /// Knows the groups of Diagnostics.def.
  WarningFlags();

  /// Makes the group of another table known to -W flags.
  void addGroup(llvm::StringRef group) { groups_.insert(group.str()); }
  const std::set<std::string> &groups() const { return groups_; }

  /// Takes a flag as written: `-Wfoo`, `-Wno-foo`, `-Werror`, `-Werror=foo`, `-Wno-error`,
  /// `-Wno-error=foo`. Gives an InvalidInput status with a suggestion for an unknown group; call it
  /// after all groups are known.
  Status apply(llvm::StringRef flag);

  /// The severity of a message of this row after the flags; nothing if it is silenced.
  std::optional<Severity> effective(const DiagInfo &info) const;

private:
  struct GroupState {
    bool enabled = true;
    std::optional<bool> error;
  };
  std::set<std::string> groups_;
  std::map<std::string, GroupState> states_;
  bool allErrors_ = false;
};

} // namespace shardc
