#include "compiler/lsp/Transport.h"

#include "llvm/ADT/StringRef.h"

namespace shardc::lsp {

namespace {

constexpr size_t kHeaderLineMax = 4096;
constexpr unsigned kHeaderLinesMax = 64;

} // namespace

/// Reads header lines until an empty one and returns the Content-Length; nothing at the end of the
/// input. All sizes have limits, since the other end may be faulty.
Result<std::optional<size_t>> Transport::readHeader() {
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

Result<std::optional<std::string>> Transport::read() {
  ASSIGN_OR_RETURN(std::optional<size_t> length, readHeader());
  if (!length)
    return std::optional<std::string>();
  std::string text(*length, '\0');
  if (std::fread(text.data(), 1, text.size(), in_) != text.size())
    return makeStatus(StatusCode::Io, "the input ends inside a message of {} bytes", *length);
  return std::optional(std::move(text));
}

Status Transport::write(const std::string &text) {
  bool isGood = std::fprintf(out_, "Content-Length: %zu\r\n\r\n", text.size()) > 0 &&
                std::fwrite(text.data(), 1, text.size(), out_) == text.size() &&
                std::fflush(out_) == 0;
  return isGood ? Status() : makeStatus(StatusCode::Io, "cannot write to the client");
}

} // namespace shardc::lsp
