// The plan verifier: proves that a plan can run, by every rule of VerifyRules.def that applies to
// the plan's level. It accepts plans of any origin, and shares no code with the passes that make
// plans. docs/plan.md describes what is proved, and how.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

enum class Rule : uint8_t {
#define RULE(enumerator, id, doc) enumerator,
#include "runtime/verify/VerifyRules.def"
};
inline constexpr int kRuleCount = 0
#define RULE(enumerator, id, doc) +1
#include "runtime/verify/VerifyRules.def"
    ;

/// The kebab-case id of a rule, and the sentence of its row.
std::string_view ruleId(Rule rule);
std::string_view ruleDoc(Rule rule);

/// A location in a plan; kNone for parts that do not apply.
struct Spot {
  uint32_t role = kNone;
  uint32_t segment = kNone;
  uint32_t op = kNone;
  bool operator==(const Spot &) const = default;
};

/// A byte range of an arena, on the ranks whose index in the plan's group of shards is `member`.
struct ByteRange {
  Arena arena = Arena::Work;
  int64_t begin = 0, end = 0;
  int64_t member = 0;
};

/// One broken rule.
struct Finding {
  Rule rule = Rule::Index;
  std::string message; ///< one sentence in the diagnostics' style
  Spot at;
  std::optional<Variant> variant; ///< for body segments, the microbatch in which it happens
  std::string value;              ///< the value concerned, without %; may be empty
  std::string note;               ///< the conflicting access or op; empty if there is none
  Spot noteAt;
};

/// Limit of the work for one plan, in visits of bytes, cells and collectives. It is reached after a
/// few seconds. Compiled plans need about a hundred visits per op.
inline constexpr uint64_t kVisitsMax = uint64_t{1} << 29;

/// Which iterations of loops are analysed. If an iteration does the same as the one before it, only
/// for a later microbatch, it cannot break a rule that the earlier one keeps. Tests analyse all
/// iterations.
enum class Iterations : uint8_t { Different, All };

/// Returns the broken rules, most basic first; an empty list for a valid plan. The plan must have
/// the form that parse() gives it: indices name entries of their tables, numbers keep their limits,
/// names are unique, and values are defined before their uses. If a rule is broken, rules that
/// build on it are not checked. Returns at most `findingsMax` findings. Refuses a plan that needs
/// more than `visitsMax` visits.
std::vector<Finding> verify(const Plan &plan, size_t findingsMax = 20,
                            uint64_t visitsMax = kVisitsMax,
                            Iterations iterations = Iterations::Different);

/// The recipe line that caused the part of the plan at this place; null if none is known.
const Loc *locAt(const Plan &plan, const Spot &spot);

/// Renders a finding like a diagnostic: `file:line:col: error: message [id]` with the recipe's line
/// if known (else `plan`), the op below it, then the note in the same form.
std::string render(const Plan &plan, const Finding &finding);

/// verify() as a status: InvalidInput with all findings rendered.
Status verified(const Plan &plan);

} // namespace shardc::plan
