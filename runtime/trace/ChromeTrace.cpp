#include "runtime/trace/ChromeTrace.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace shardc::trace {
namespace {

std::string escaped(const std::string &text) {
  std::string out;
  for (char c : text)
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    else
      out += c;
  return out;
}

} // namespace

std::string chromeTrace(const std::vector<Span> &spans) {
  int64_t begin = 0;
  for (size_t i = 0; i < spans.size(); ++i)
    begin = i == 0 ? spans[i].beginNs : std::min(begin, spans[i].beginNs);
  std::map<std::pair<int, std::string>, int> threads; // in order of names
  for (const Span &span : spans)
    threads.try_emplace({span.rank, span.stream});
  int next = 0;
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (auto &[key, id] : threads) {
    id = next++;
    out += fmt::format("{}\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\","
                       "\"args\":{{\"name\":\"{}\"}}}}",
                       id == 0 ? "" : ",", key.first, id, escaped(key.second));
  }
  for (const Span &span : spans) {
    const std::string &name = span.label.empty() ? span.work : span.label;
    out += fmt::format(",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},"
                       "\"dur\":{:.3f},\"args\":{{\"work\":\"{}\"}}}}",
                       span.rank, threads.at({span.rank, span.stream}), escaped(name),
                       static_cast<double>(span.beginNs - begin) / 1e3,
                       static_cast<double>(span.endNs - span.beginNs) / 1e3, escaped(span.work));
  }
  out += "\n]}\n";
  return out;
}

} // namespace shardc::trace
