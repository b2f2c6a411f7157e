// Negotiates how the members of a channel register memory. All members must register in the same
// way, since a member that registers alone would wait for the others forever.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::channels {

/// The steps of registration that a member can take. Each step returns false if the member cannot
/// take it, and is called at most once; only votes may be called several times.
struct RegistrationSteps {
  std::function<bool()> canTryWindows; ///< decides alone, without waiting for others
  std::function<bool()> windows;       ///< collective: called by all members or by none
  std::function<bool()> locally;       ///< registers alone
  std::function<void()> dropLocal;     ///< undoes `locally`, whatever it returned
  /// Whether `mine` is true for all members; `what` names the vote.
  std::function<Result<bool>(std::string_view what, bool mine)> allAgree;
};

/// Registers buffers step by step, with a vote of all members after each step, and returns how all
/// members have registered. The number of votes depends only on `wanted`: groups that share a name
/// vote at the same time, and one group may register more than another. Internal if this member has
/// windows and another member has none. A window lasts as long as its communicator, and collectives
/// between members with and without windows may never end.
Result<hal::Registration> agreeOnRegistration(std::string_view channel, hal::Registration wanted,
                                              const RegistrationSteps &steps);

} // namespace shardc::channels
