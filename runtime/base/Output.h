// Prints to a program's standard output, and reports errors of writing to it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/Utf8.h"

namespace shardc {

/// Must be the first call of a program. Opens /dev/null for standard descriptors that are closed,
/// so that no file that is opened later gets their number, and with it the program's messages. Also
/// makes writes beyond the limit of `ulimit -f` fail, as on a full disk, instead of ending the
/// program.
void prepareOutput();

/// Prints to standard output, where control characters but line feeds and tabs are escaped, since
/// names and values of files may have them. Does not throw, unlike fmt::print, if the disk is full
/// or the descriptor is closed; finishOutput reports such errors.
template <typename... Args> void printOut(fmt::format_string<Args...> format, Args &&...args) {
  std::string text = escapeControls(fmt::format(format, std::forward<Args>(args)...), "\n\t");
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// Prints to standard error. A failed write cannot be reported.
template <typename... Args> void printError(fmt::format_string<Args...> format, Args &&...args) {
  std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// Must be the last call of a program whose output is its result. Returns `status`, or
/// kFailureStatus if `status` is 0 but some output was lost, which is reported on standard error.
/// `isWritten` says whether streams other than stdout could write to standard output.
int finishOutput(std::string_view program, int status, bool isWritten = true);

} // namespace shardc
