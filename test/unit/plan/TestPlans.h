// Plans that the tests of this folder start from, and edits of their text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan::test {

/// The text of plans/<name>.plan.
std::string planText(std::string_view name);

/// `text` with the only occurrence of `from` replaced by `to`; fails the test unless there is
/// exactly one.
std::string replaced(std::string text, std::string_view from, std::string_view to);

struct Edit {
  const char *from, *to;
};
/// An edit that makes a plan invalid.
struct WrongEdit {
  const char *name; ///< of the test
  Rule rule;
  Edit edit;
  const char *message; ///< the first finding's message, or a part of it
};
void PrintTo(const WrongEdit &each, std::ostream *out);

/// The text of plans/<name>.plan with these edits; each edit has exactly one occurrence.
std::string edited(std::string_view name, const std::vector<Edit> &edits);

/// Fails the test with the first finding, if there is one.
void expectAccepted(const Plan &plan);

/// Fails the test unless the first finding has this rule, and a message that contains `message`.
void expectRefused(const Plan &plan, Rule rule, std::string_view message);

/// The index of the first role's cell of that name; fails the test if there is none.
uint32_t cellNamed(const Plan &plan, std::string_view name);

/// Moves a collective to another group, and to a channel of that group.
void setGroup(Plan &plan, Op &op, int16_t group);

/// Parses a plan; fails the test with the message if that fails.
Plan parsed(std::string_view text);

/// The message for a text that does not parse; fails the test if it parses.
std::string parseError(std::string_view text);

} // namespace shardc::plan::test
