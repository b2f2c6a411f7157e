#include "runtime/base/Version.h"

#include "runtime/base/Commit.h"

namespace shardc {

std::string versionNumber() { return SHARDC_VERSION; }

std::string versionText() {
  std::string commit = SHARDC_COMMIT;
  return commit.empty() ? versionNumber() : versionNumber() + " (commit " + commit + ")";
}

} // namespace shardc
