// Prints lines about signals. Signal handlers call it too, so nothing here allocates or locks.
#pragma once

#include <array>
#include <cstring>
#include <string_view>

#include <unistd.h>

namespace shardc {

/// Writes the program's name and a row's text to standard error, as a separate line and in one
/// write.
template <typename Row> void writeNotice(Row, std::string_view program = "shardc-run") {
  std::array<char, Row::kText.size() + 64> line;
  size_t size = 0;
  for (std::string_view part : {std::string_view("\n"), program.substr(0, 32),
                                std::string_view(": "), Row::kText, std::string_view("\n")}) {
    std::memcpy(line.data() + size, part.data(), part.size());
    size += part.size();
  }
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), size);
}

} // namespace shardc
