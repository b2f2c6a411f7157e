// Negotiates how the members of a channel register memory: as far as all of them can, since one
// that registers alone would wait for the others forever.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::channels {

/// The steps of registration that a member can take; each returns false if it cannot. Each is
/// called at most once, except the votes.
struct RegistrationSteps {
  std::function<bool()> canTryWindows; ///< by itself, without waiting for others
  std::function<bool()> windows;       ///< waits for all others, so all or none call it
  std::function<bool()> locally;       ///< by itself
  std::function<void()> dropLocal;     ///< takes back what `locally` did, whatever it gave
  /// True if `mine` is true of all members; `what` names the vote.
  std::function<Result<bool>(std::string_view what, bool mine)> allAgree;
};

/// Registers buffers step by step, with a vote of all members after each, and returns what all have
/// registered. The number of votes depends on `wanted` only: groups that share a name vote at the
/// same time, and one may get further than another. Internal if this member has windows and another
/// has none: windows stay as long as the communicator, and collectives of members that differ in
/// that may never end.
Result<hal::Registration> agreeOnRegistration(std::string_view channel, hal::Registration wanted,
                                              const RegistrationSteps &steps);

} // namespace shardc::channels
