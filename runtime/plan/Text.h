// The text form of plans: printing and parsing. docs/plan.md describes the form. Parsing a printed
// plan gives the plan back, and printing is deterministic. Plans of every level can be printed,
// also invalid ones. The parser accepts the printed form with comments and any layout; everything
// else is refused with `file:line:col: error: ...`. It checks form, names and limits; the verifier
// checks what a plan means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- shared by printer and parser ----

/// Characters of words: names, keywords and numbers.
constexpr bool isWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '$';
}

/// Digits of the hash in a plan's first line.
inline constexpr size_t kHashDigits = 8;

/// CRC-32 of a plan's text below its first line and comment page. It finds damaged files, careless
/// edits, and ranks with different plans.
uint32_t textHash(std::string_view body);

/// True if the name needs no quotes.
bool isPlainName(std::string_view name);

/// Escapes control characters as `\xNN`, so that a plan cannot control the terminal.
std::string printable(std::string_view text);
/// Like printable(), but keeps line breaks and tabs.
std::string printableLines(std::string_view text);

/// The word of an enumeration attribute's value; empty if it has none.
std::string_view enumeratorName(const AttrInfo &info, int64_t value);

/// The value of an enumeration attribute's word.
std::optional<int64_t> parseEnumerator(const AttrInfo &info, std::string_view word);

/// Whether the attribute has the default of its row. Defaults are not printed.
bool isDefault(const Attr &attr);

// ---- plan -> text ----

/// Prints the complete plan. `page` is inserted below the first line: comment lines for readers,
/// each beginning with `//` and ending with a newline, for example from summary().
std::string print(const Plan &plan, std::string_view page = {});

/// Prints one op as its line in the text, without indentation and newline; for messages and dumps.
std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex);

/// Prints a value of the job as in the plan's text.
std::string printJobValue(const JobValue &value);

/// Prints a type, such as `bf16[2,128,64]`.
std::string printType(const Type &type);

/// Prints an address, such as `work 65536`, or `state 4096 + 500*all` with the group whose index it
/// depends on; `nowhere` if the place is not set.
std::string printPlace(const Plan &plan, const Place &place);

/// Identifies an op in messages: `matmul %y (a.recipe:12)`.
std::string opLabel(const Plan &plan, const Segment &segment, const Op &op);

/// Identifies each op of the segment, with the segment's name: `micro: matmul %y (a.recipe:12)`.
std::vector<std::string> opLabels(const Plan &plan, const Segment &segment);

// ---- text -> plan ----

/// Parses one plan. Errors: InvalidInput with the first error, its source line and a caret.
/// `fileName` is used only in messages. In the returned plan all indices are in range, every value
/// has its definition, and numbers are within Limits.h.
Result<Plan> parse(std::string_view text, std::string_view fileName);

/// Splits a text into its plans, one or several: each begins with a line `shardc.plan`.
std::vector<std::string_view> plansOf(std::string_view text);

/// Parses all plans of a text, at least one. A job with batch-size rampup has one plan per batch
/// size, in the order of the run (JobFacts.h).
Result<std::vector<Plan>> parseJob(std::string_view text, std::string_view fileName);

} // namespace shardc::plan
