// Reads and writes JSON-RPC messages on two streams. Each message follows a `Content-Length`
// header, as the Language Server Protocol requires.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::lsp {

/// Maximum size of a message in bytes; larger messages are refused.
inline constexpr size_t kMessageBytesMax = size_t{64} << 20;

class Transport {
public:
  Transport(std::FILE *in, std::FILE *out) : in_(in), out_(out) {}

  /// The next message; empty at the end of the stream. InvalidInput for a malformed header or a
  /// message that is too large, Io if the stream ends inside a message.
  Result<std::optional<std::string>> read();

  /// Sends one message. Io if the stream is closed.
  Status write(const std::string &text);

private:
  Result<std::optional<size_t>> readHeader();

  std::FILE *in_;
  std::FILE *out_;
};

} // namespace shardc::lsp
