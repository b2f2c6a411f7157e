// The text form of plans: printing, parsing, and what both agree on. docs/plan.md describes the
// form; parsing what is printed gives the plan back, and printing is deterministic. Plans of any
// level are printed, also those that the verifier refuses. The parser accepts what is printed,
// comments and any layout, and refuses everything else with `file:line:col: error: ...`; it checks
// form, names and limits. What a plan means is checked by the verifier.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- what printer and parser agree on ----

/// Characters of words: names, keywords and numbers.
constexpr bool isWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '$';
}

/// Digits of the hash in a plan's first line.
inline constexpr size_t kHashDigits = 8;

/// The hash of a plan's text below its first line and the page of comments: CRC-32, which finds
/// damage in transport, careless edits, and ranks that were given different plans.
uint32_t textHash(std::string_view body);

/// True if the name needs no quotes.
bool isPlainName(std::string_view name);

/// The text with control characters as `\xNN`: as they are, a plan could write into the terminal.
std::string printable(std::string_view text);
/// The same for a text of several lines, which stay.
std::string printableLines(std::string_view text);

/// The word of an enumeration attribute's value; empty if it has none.
std::string_view enumeratorName(const AttrInfo &info, int64_t value);

/// The value of an enumeration attribute's word.
std::optional<int64_t> parseEnumerator(const AttrInfo &info, std::string_view word);

/// True if the attribute has its table row's default, which is not printed.
bool isDefault(const Attr &attr);

// ---- plan -> text ----

/// The complete plan. `page` is put below the first line: comment lines for people, each beginning
/// with `//` and ending with a newline, for example from summary().
std::string print(const Plan &plan, std::string_view page = {});

/// One op as its line in the text, without indentation and newline; for messages and dumps.
std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex);

/// `bf16[2,128,64]`.
std::string printType(const Type &type);

/// `work 65536` or `state 4096 + 500*all`, with the name of the group that it moves with; `nowhere`
/// if it is not placed.
std::string printPlace(const Plan &plan, const Place &place);

/// Which op of its segment is meant, for messages: `matmul %y (a.recipe:12)`.
std::string opLabel(const Plan &plan, const Segment &segment, const Op &op);

/// `micro: matmul %y (a.recipe:12)`, one for each op of the segment.
std::vector<std::string> opLabels(const Plan &plan, const Segment &segment);

// ---- text -> plan ----

/// Parses a whole plan. InvalidInput with the first error, rendered with its source line and caret.
/// `fileName` is used only in messages. All indices in the plan that is returned are in range,
/// every value has its definition, and numbers keep the bounds of Limits.h.
Result<Plan> parse(std::string_view text, std::string_view fileName);

/// The plans of a text that has one or several, one after the other: the first line of each begins
/// with `shardc.plan`.
std::vector<std::string_view> plansOf(std::string_view text);

/// Parses all of them, at least one: those of a job whose batch grows have one batch size each, in
/// the order of the run (JobFacts.h).
Result<std::vector<Plan>> parseJob(std::string_view text, std::string_view fileName);

} // namespace shardc::plan
