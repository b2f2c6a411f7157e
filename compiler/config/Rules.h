// The rule table: derivations, adjustments and checks, with reasons. A rule consists of a row of
// Rules.def, a predicate in Rules<Topic>.cpp and a test. A row without a predicate fails to link.
#pragma once

#include "compiler/config/Config.h"
#include "compiler/diag/Diag.h"

namespace shardc::config {

/// The rules, in the order of Rules.def.
enum class RuleId : uint16_t {
#define RULE(enumerator, ...) enumerator,
#include "compiler/config/Rules.def"
};

/// What a rule does if its predicate finds a reason.
enum class RuleKind : uint8_t {
  Derive, ///< sets an option without a value; a remark if it has a text
  Adjust, ///< changes a value; always a remark
  Error,
  Unsupported, ///< an error about a feature that upstream executes and shardc does not yet
  Warning,
  Remark,
};

/// One row of Rules.def. Texts live as long as the program.
struct RuleInfo {
  RuleId rule;
  llvm::StringRef id; ///< the enumerator in kebab case
  RuleKind kind;
  llvm::StringRef group;         ///< name for -W; empty for errors and for silent derivations
  llvm::StringRef text;          ///< text of the message; empty if a derivation is not reported
  llvm::StringRef reason;        ///< why, in sentences for explain and the reference
  llvm::StringRef upstream = ""; ///< numbers of the corresponding upstream checks and adjustments
  llvm::StringRef older = "";    ///< texts that upstream used for it, separated by " | "

  /// The row in the form that the diagnostics engine needs.
  DiagInfo diagInfo() const;
};

/// All rows, and the row of a rule.
llvm::ArrayRef<RuleInfo> rules();
const RuleInfo &info(RuleId rule);
/// The rule with this id, or null.
const RuleInfo *findRule(llvm::StringRef id);
/// The kind in words: `derive`, `adjust`, `error`, `unsupported`, `warning` or `remark`.
llvm::StringRef ruleKindName(RuleKind kind);

class RuleContext;
/// Decides whether the rule applies, and if so changes or reports through the context.
using RulePredicate = void (*)(RuleContext &);
RulePredicate predicate(RuleId rule);

} // namespace shardc::config
