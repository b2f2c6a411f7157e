// Proves that a plan can run: checks every rule of VerifyRules.def that applies to the plan's
// level. Takes any plan, of any origin; shares no code with the passes that make plans.
// docs/plan.md describes what is proved, and how.
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

/// Where in a plan; kNone where it does not apply.
struct Spot {
  uint32_t role = kNone;
  uint32_t segment = kNone;
  uint32_t op = kNone;
  bool operator==(const Spot &) const = default;
};

/// Bytes of an arena, on the ranks with this index in the plan's group of shards.
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
  std::optional<Variant> variant; ///< the microbatch in which it happens, for bodies
  std::string value;              ///< the value it is about, without %; may be empty
  std::optional<ByteRange> bytes;
  std::string note; ///< what the other side does; empty if there is none
  Spot noteAt;
};

/// The limit of visits of bytes, cells and collectives for one plan, which take a few seconds. A
/// compiled plan needs about a hundred per op.
inline constexpr uint64_t kVisitsMax = uint64_t{1} << 29;

/// Which turns of a loop are followed: those that do the same as the ones before them, for later
/// microbatches, break no rule that these keep. All of them are followed in tests.
enum class Turns : uint8_t { Different, All };

/// What is broken, the most basic rules first; empty for a plan that keeps them all. Later rules
/// are not looked at where earlier ones, which they build on, are broken. At most `findingsMax`
/// findings; a plan that takes more than `visitsMax` visits is refused.
std::vector<Finding> verify(const Plan &plan, size_t findingsMax = 20,
                            uint64_t visitsMax = kVisitsMax, Turns turns = Turns::Different);

/// A finding in the diagnostics' form: `file:line:col: error: message [id]` with the recipe's line
/// where it is known (`plan` otherwise), the op below it, then the note in the same form.
std::string render(const Plan &plan, const Finding &finding);

/// verify() as a status: InvalidInput with all findings rendered.
Status verified(const Plan &plan);

} // namespace shardc::plan
