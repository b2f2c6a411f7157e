// The version of shardc, and the commit from which it was built.
#pragma once

#include <string>

namespace shardc {

/// The version, such as `0.1.0`.
std::string versionNumber();

/// The version with the commit: `0.1.0 (commit 1a2b3c4d5e6f)`, or `(commit 1a2b3c4d5e6f, changed)`
/// if the sources differed from the commit. Only the version if the sources were in no repository.
std::string versionText();

} // namespace shardc
