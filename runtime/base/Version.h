// The version of shardc, and the commit that it was built from.
#pragma once

#include <string>

namespace shardc {

/// `0.1.0`.
std::string versionNumber();

/// `0.1.0 (commit 1a2b3c4d5e6f)`, or `(commit 1a2b3c4d5e6f, changed)` if the sources differed from
/// it; the number alone if they lay in no repository.
std::string versionText();

} // namespace shardc
