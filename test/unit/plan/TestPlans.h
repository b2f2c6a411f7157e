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

/// `text` with the only occurrence of `from` replaced; fails the test if there is not exactly
/// one.
std::string replaced(std::string text, std::string_view from, std::string_view to);

struct Edit {
  const char *from, *to;
};
/// An edit after which a plan is refused.
struct WrongEdit {
  const char *name; ///< of the test
  Rule rule;
  Edit edit;
  const char *message; ///< of the first finding, or a part of it
};
void PrintTo(const WrongEdit &each, std::ostream *out);

/// The text of plans/<name>.plan with these edits, each of its only occurrence.
std::string edited(std::string_view name, const std::vector<Edit> &edits);

/// Fails the test, with the first finding, if there is any.
void expectAccepted(const Plan &plan);

/// Fails the test unless the first finding is of the rule and has the message, or a part of it.
void expectRefused(const Plan &plan, Rule rule, std::string_view message);

/// The index of the first role's cell of that name; fails the test if there is none.
uint32_t cellNamed(const Plan &plan, std::string_view name);

/// Moves a collective to another group, with a channel of it.
void setGroup(Plan &plan, Op &op, int16_t group);

/// Parses; fails the test, with the message, if that fails.
Plan parsed(std::string_view text);

/// The message for text that is refused; fails the test if it is not.
std::string parseError(std::string_view text);

} // namespace shardc::plan::test
