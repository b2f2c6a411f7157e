// JSON-RPC messages over two streams, each after a `Content-Length` header, as the Language Server
// Protocol frames them.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::lsp {

/// Largest message that is read; a client that announces more is refused.
inline constexpr size_t kMessageBytesMax = size_t{64} << 20;

class Transport {
public:
  Transport(std::FILE *in, std::FILE *out) : in_(in), out_(out) {}

  /// The next message; nothing at the end of the stream. InvalidInput for a broken header or a
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
