// Standard output of a program, and errors of writing to it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shardc {

/// The first call of a program. Standard descriptors that are closed lead to /dev/null from here,
/// so that no file gets their numbers, and with them the program's messages. Writes beyond the
/// size that `ulimit -f` allows fail like those to a full disk, and do not end the program.
void prepareOutput();

/// Prints to standard output, where fmt::print would throw if the disk is full or the descriptor
/// closed. finishOutput reports what failed.
template <typename... Args> void printOut(fmt::format_string<Args...> format, Args &&...args) {
  std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// The same for standard error; a failure to write cannot be reported.
template <typename... Args> void printError(fmt::format_string<Args...> format, Args &&...args) {
  std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// The last call of a program whose output is its result. Returns `status`, or kFailureStatus if
/// everything succeeded but some output was lost, which is reported on standard error. `isWritten`:
/// whether streams other than stdout could write to standard output.
int finishOutput(std::string_view program, int status, bool isWritten = true);

} // namespace shardc
