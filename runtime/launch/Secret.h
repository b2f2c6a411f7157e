// The secret of a job. Its processes prove to each other that they know it before they take part.
// It comes from the launcher's environment, or from a file that only the user can read.
#pragma once

#include <string>

#include "runtime/base/Hmac.h"
#include "runtime/launch/JobPosition.h"

namespace shardc::launch {

/// Variable with the secret, for users and scripts.
inline constexpr const char *kSecretVariable = "SHARDC_JOB_SECRET";

struct Secret {
  Key key{};
  std::string source; ///< where it is from, for messages: "the environment's ..." or a file
};

/// The secret of a launched job, the first that there is:
/// 1. SHARDC_JOB_SECRET; 2. what mpirun draws for each job; 3. the file `.shardc/secret` beside
/// `path`, the recipe or plan, which is made where there is none; 4. `~/.shardc/secret`, where that
/// folder cannot be written. A file that others can read or write, or that is another user's, is
/// refused. InvalidInput with the way out where there is no secret.
Result<Secret> findSecret(const JobPosition &position, const GetEnv &get, const std::string &path);

} // namespace shardc::launch
