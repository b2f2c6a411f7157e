// Votes in a fixed order: first whether all members can try windows, then whether all got them,
// then whether all registered locally. Every member takes part in every vote that its answers lead
// to.
#include "runtime/backend/channels/Agreement.h"

namespace shardc::channels {

using hal::Registration;

/// If NCCL gave windows to this member and not to another one, the result is an error, not a
/// fallback. The member returns it only after the last vote, so that no other member waits for its
/// vote.
Result<Registration> agreeOnRegistration(std::string_view channel, Registration wanted,
                                         const RegistrationSteps &steps) {
  if (wanted == Registration::Nothing)
    return wanted;
  bool hasWindows = false, isAloneWithThem = false;
  if (wanted == Registration::Windows) {
    ASSIGN_OR_RETURN(bool canTry, steps.allAgree("tries of windows", steps.canTryWindows()));
    bool mine = canTry && steps.windows();
    ASSIGN_OR_RETURN(hasWindows, steps.allAgree("windows", mine));
    isAloneWithThem = mine && !hasWindows;
  }
  ASSIGN_OR_RETURN(bool isLocal,
                   steps.allAgree("buffers", hasWindows || (!isAloneWithThem && steps.locally())));
  if (isAloneWithThem)
    return makeStatus(StatusCode::Internal,
                      "NCCL gave windows to some members of channel '{}' and none to others",
                      channel);
  if (hasWindows)
    return Registration::Windows;
  if (isLocal)
    return Registration::Local;
  steps.dropLocal();
  return Registration::Nothing;
}

} // namespace shardc::channels
