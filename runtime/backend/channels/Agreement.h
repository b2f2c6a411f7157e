// Negotiates how the members of a channel register memory: as far as all of them can, since one
// that registers alone would wait for the others forever.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::channels {

/// What a member can do; false where it cannot. Each is called once at most, but for the votes.
struct RegistrationSteps {
  std::function<bool()> canTryWindows; ///< by itself, without waiting for others
  std::function<bool()> windows;       ///< waits for all others, so all or none call it
  std::function<bool()> locally;       ///< by itself
  std::function<void()> dropLocal;     ///< takes back what `locally` did, whatever it gave
  /// True if `mine` is true of all members; `what` names the vote.
  std::function<Result<bool>(std::string_view what, bool mine)> allAgree;
};

/// What was registered by all members of what is wanted. The number of votes follows from `wanted`
/// alone: groups that share a name vote side by side, and one may get further than another.
/// Internal, where this member has windows and another has none: they stay as long as the
/// communicator, and collectives of members that differ in that may wait for ever.
Result<hal::Registration> agreeOnRegistration(std::string_view channel, hal::Registration wanted,
                                              const RegistrationSteps &steps);

} // namespace shardc::channels
