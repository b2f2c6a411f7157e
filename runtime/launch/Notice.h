// Lines about signals. They are written by signal handlers too, so nothing here allocates or locks.
#pragma once

#include <array>
#include <cstring>
#include <string_view>

#include <unistd.h>

namespace shardc::launch {

/// Writes a row's text to standard error as a line of its own, in one write.
template <typename Row> void writeNotice(Row) {
  constexpr std::string_view kBefore = "\nshardc-run: ";
  std::array<char, kBefore.size() + Row::kText.size() + 1> line;
  std::memcpy(line.data(), kBefore.data(), kBefore.size());
  std::memcpy(line.data() + kBefore.size(), Row::kText.data(), Row::kText.size());
  line.back() = '\n';
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

} // namespace shardc::launch
