// The language server must answer or ignore any input. Input that begins with a header is read as
// the stream of a client; other input as one message per line, after 'initialize'.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "compiler/lsp/Server.h"
#include "runtime/base/Status.h"

namespace shardc {
namespace {

constexpr std::string_view kHeader = "Content-Length:";

void serveLines(std::string_view text, lsp::Server &server) {
  bool goesOn = server.handle(R"({"id":0,"method":"initialize","params":{}})");
  while (goesOn && !text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    goesOn = server.handle(std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static std::FILE *out = std::fopen("/dev/null", "w");
  std::string text(reinterpret_cast<const char *>(data), size);
  bool isStream = text.starts_with(kHeader);
  std::FILE *in = isStream ? ::fmemopen(text.data(), text.size(), "r") : nullptr;
  SHARDC_CHECK(out && (in || !isStream), "cannot open the streams");
  lsp::Transport transport(in, out);
  lsp::Server server(transport, {});
  if (isStream)
    static_cast<void>(server.run());
  else
    serveLines(text, server);
  if (in)
    std::fclose(in);
  return 0;
}

} // namespace shardc
