#include "runtime/base/Status.h"

#include <cstdio>
#include <cstdlib>

namespace shardc {

Status Status::withContext(const std::string &context) && {
  if (!isOk())
    message_ = context + ": " + message_;
  return std::move(*this);
}

void checkFailed(const char *file, int line, const char *condition, const std::string &message) {
  std::fprintf(stderr, "%s:%d: internal error: %s (check '%s' failed)\n", file, line,
               message.c_str(), condition);
  std::abort();
}

} // namespace shardc
