// Reads and writes JSON-RPC messages on two streams. Each message follows a `Content-Length`
// header, as the Language Server Protocol requires.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::lsp {

/// Maximum size of a message in bytes; larger messages are refused.
inline constexpr size_t kMessageBytesMax = size_t{64} << 20;

class Transport {
public:
  Transport(std::FILE *in, std::FILE *out) : in_(in), out_(out) {}

  /// The next message; empty at the end of the stream. InvalidInput for a malformed header or a
  /// message that is too large, Io if the stream ends inside a message.
  Result<std::optional<std::string>> read() {
    ASSIGN_OR_RETURN(std::optional<size_t> length, readHeader());
    if (!length)
      return std::optional<std::string>();
    std::string text(*length, '\0');
    if (std::fread(text.data(), 1, text.size(), in_) != text.size())
      return makeStatus(StatusCode::Io, "the input ends inside a message of {} bytes", *length);
    return std::optional(std::move(text));
  }

  /// Sends one message. Io if the stream is closed.
  Status write(const std::string &text) {
    bool isGood = std::fprintf(out_, "Content-Length: %zu\r\n\r\n", text.size()) > 0 &&
                  std::fwrite(text.data(), 1, text.size(), out_) == text.size() &&
                  std::fflush(out_) == 0;
    return isGood ? Status() : makeStatus(StatusCode::Io, "cannot write to the client");
  }

private:
  static constexpr size_t kHeaderLineMax = 4096;
  static constexpr unsigned kHeaderLinesMax = 64;

  /// Reads header lines until an empty one and returns the Content-Length; nothing at the end of
  /// the input. All sizes have limits, since the other end may be faulty.
  Result<std::optional<size_t>> readHeader() {
    std::optional<size_t> length;
    std::string line;
    for (unsigned lines = 0; lines < kHeaderLinesMax;) {
      int c = std::fgetc(in_);
      if (c == EOF && lines == 0 && line.empty())
        return std::optional<size_t>();
      if (c == EOF)
        return makeStatus(StatusCode::Io, "the input ends inside a message's header");
      if (c != '\n') {
        if (line.size() >= kHeaderLineMax)
          return makeStatus(StatusCode::InvalidInput, "a header line has more than {} bytes",
                            kHeaderLineMax);
        line += static_cast<char>(c);
        continue;
      }
      llvm::StringRef text = llvm::StringRef(line).trim();
      if (text.empty() && length)
        return length;
      if (text.empty())
        return makeStatus(StatusCode::InvalidInput, "a message's header has no Content-Length");
      auto [name, value] = text.split(':');
      size_t bytes = 0;
      if (name.trim().equals_insensitive("content-length")) {
        if (value.trim().getAsInteger(10, bytes) || bytes > kMessageBytesMax)
          return makeStatus(StatusCode::InvalidInput, "Content-Length is '{}'; the limit is {}",
                            value.trim().str(), kMessageBytesMax);
        length = bytes;
      }
      line.clear();
      ++lines;
    }
    return makeStatus(StatusCode::InvalidInput, "a message's header has more than {} lines",
                      kHeaderLinesMax);
  }

  std::FILE *in_;
  std::FILE *out_;
};

} // namespace shardc::lsp
