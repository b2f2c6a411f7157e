#include "runtime/backend/cuda/Agreement.h"

namespace shardc::cuda {

using hal::Registration;

Result<Registration> agreeOnRegistration(Registration wanted, const RegistrationSteps &steps) {
  if (wanted == Registration::Nothing)
    return wanted;
  bool hasWindows = false;
  if (wanted == Registration::Windows) {
    ASSIGN_OR_RETURN(bool canTry, steps.allAgree("tries of windows", steps.canTryWindows()));
    ASSIGN_OR_RETURN(hasWindows, steps.allAgree("windows", canTry && steps.windows()));
  }
  ASSIGN_OR_RETURN(bool isLocal, steps.allAgree("buffers", hasWindows || steps.locally()));
  if (hasWindows)
    return Registration::Windows;
  if (isLocal)
    return Registration::Local;
  steps.dropLocal();
  return Registration::Nothing;
}

} // namespace shardc::cuda
