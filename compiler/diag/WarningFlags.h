// The -W flags: the groups of warnings and remarks that are printed, and those that are errors. If
// several flags name a group, the last one wins.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "compiler/diag/Diag.h"

namespace shardc {

class WarningFlags {
public:
  /// Registers the groups of Diagnostics.def.
  WarningFlags();

  /// Registers a group of another table for -W flags.
  void addGroup(llvm::StringRef group) { groups_.insert(group.str()); }
  const std::set<std::string> &groups() const { return groups_; }

  /// Applies a flag: `-Wfoo`, `-Wno-foo`, `-Werror`, `-Werror=foo`, `-Wno-error` or
  /// `-Wno-error=foo`. Returns InvalidInput, with a suggestion, for an unknown group, so all groups
  /// must be registered before.
  Status apply(llvm::StringRef flag);

  /// The severity of a message of this row, given the flags; empty if the message is disabled.
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
