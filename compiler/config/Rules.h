// The rule table: derivations, adjustments and checks, with reasons. A rule is a row of Rules.def,
// a predicate in Rules<Topic>.cpp and a test; a row without its predicate does not link.
#pragma once

#include "compiler/config/Config.h"
#include "compiler/diag/Diag.h"

namespace shardc::config {

enum class RuleId : uint16_t {
#define RULE(enumerator, ...) enumerator,
#include "compiler/config/Rules.def"
};

enum class RuleKind : uint8_t {
  Derive, ///< gives a value to an unset option; a remark if its text says so
  Adjust, ///< changes a value; always a remark
  Error,
  Unsupported, ///< an error about what upstream executes and shardc does not yet
  Warning,
  Remark,
};

struct RuleInfo {
  RuleId rule;
  llvm::StringRef id; ///< kebab-case, stable
  RuleKind kind;
  llvm::StringRef group;    ///< what -W names; empty for errors and for silent derivations
  llvm::StringRef text;     ///< of the message; empty if a derivation goes without saying
  llvm::StringRef reason;   ///< why, in sentences for explain and the reference
  llvm::StringRef upstream; ///< numbers of the upstream checks and adjustments it answers to
  llvm::StringRef older;    ///< texts that upstream used for it, separated by " | "

  /// The row as the engine wants it.
  DiagInfo diagInfo() const;
};

llvm::ArrayRef<RuleInfo> rules();
const RuleInfo &info(RuleId rule);
/// The rule of this id, or null.
const RuleInfo *findRule(llvm::StringRef id);
/// `derive`, `adjust`, `error`, `unsupported`, `warning`, `remark`.
llvm::StringRef ruleKindName(RuleKind kind);

class RuleContext;
using RulePredicate = void (*)(RuleContext &);
RulePredicate predicate(RuleId rule);

} // namespace shardc::config
