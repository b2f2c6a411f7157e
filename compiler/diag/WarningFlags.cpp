#include "compiler/diag/WarningFlags.h"

#include "compiler/basic/Format.h"
#include "compiler/basic/Suggest.h"

namespace shardc {

WarningFlags::WarningFlags() {
  for (const DiagRow &row : diagTable())
    if (!row.info.group.empty())
      addGroup(row.info.group);
#define REMARK_GROUP(group, kind) addGroup(group); // adds the groups of passes
#include "compiler/diag/RemarkKinds.def"
}

/// Applies `-W<group>`, `-Wno-<group>`, `-Werror=<group>` or `-Werror`. A plain `-Werror` also
/// replaces what earlier flags said of single groups.
Status WarningFlags::apply(llvm::StringRef flag) {
  llvm::StringRef rest = flag;
  if (!rest.consume_front("-W") || rest.empty())
    return makeStatus(StatusCode::InvalidInput, "'{}' is not a warning flag; write '-W<group>'",
                      flag);
  if (rest == "error" || rest == "no-error") {
    allErrors_ = rest == "error";
    for (auto &[group, state] : states_)
      state.error.reset();
    return Status::ok();
  }
  bool on = !rest.consume_front("no-");
  bool isError = rest.consume_front("error=");
  auto known = groups_.find(rest.str());
  if (known == groups_.end()) {
    std::vector<llvm::StringRef> names(groups_.begin(), groups_.end());
    Suggestion near = suggest(rest, names);
    std::string hint = near.names.empty() ? "the groups are " + quotedList(names, names.size())
                                          : "did you mean " + quotedList(near.names) + "?";
    return makeStatus(StatusCode::InvalidInput, "unknown warning group '{}' in '{}'; {}", rest,
                      flag, hint);
  }
  GroupState &state = states_[*known];
  if (isError)
    state.error = on;
  if (!isError || on) // -Werror=x also enables x
    state.enabled = on;
  return Status::ok();
}

std::optional<Severity> WarningFlags::effective(const DiagInfo &info) const {
  bool isWarning = info.severity == Severity::Warning;
  if (!isWarning && info.severity != Severity::Remark)
    return info.severity;
  auto found = states_.find(info.group.str());
  if (found != states_.end() && !found->second.enabled)
    return std::nullopt;
  bool named = found != states_.end() && found->second.error.has_value();
  bool promote = isWarning && (named ? *found->second.error : allErrors_);
  return promote ? Severity::Error : info.severity;
}

} // namespace shardc
