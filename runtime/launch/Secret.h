// The secret of a job. Its processes prove to each other that they know it before they take part.
// It comes from the launcher's environment, or from a file that only the user can read.
#pragma once

#include <string>

#include "runtime/base/Hmac.h"
#include "runtime/launch/JobPosition.h"

namespace shardc::launch {

/// The variable with the secret, for users and scripts.
inline constexpr const char *kSecretVariable = "SHARDC_JOB_SECRET";

struct Secret {
  Key key{};
  std::string source; ///< where it is from, for messages: "the environment's ..." or a file
};

/// Finds the secret of a launched job in the first source that exists: 1. SHARDC_JOB_SECRET; 2. the
/// key that mpirun creates for each job; 3. the file `~/.shardc/secret`, which is created if it
/// does not exist. A file that others can read or write, or that belongs to another user, is
/// refused. If there is no secret, InvalidInput that says how to create one.
Result<Secret> findSecret(const JobPosition &position, const GetEnv &get);

} // namespace shardc::launch
