// Writes the JSON text directly, one event per line, without building a document in memory.
#include "runtime/trace/ChromeTrace.h"

#include <algorithm>
#include <map>
#include <optional>

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

/// Times are microseconds since the first span. Threads are numbered in the order of rank and
/// stream name, so that Perfetto lists the streams of a rank together.
std::string chromeTrace(const std::vector<Span> &spans,
                        const std::function<std::string(int rank)> &nameOf) {
  int64_t begin = 0;
  for (size_t i = 0; i < spans.size(); ++i)
    begin = i == 0 ? spans[i].beginNs : std::min(begin, spans[i].beginNs);
  std::map<std::pair<int, std::string>, int> threads; // ordered by name
  for (const Span &span : spans)
    threads.try_emplace({span.rank, span.stream});
  int next = 0;
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool isFirst = true;
  auto add = [&](const std::string &event) {
    out += isFirst ? "\n" : ",\n";
    out += event;
    isFirst = false;
  };
  std::optional<int> named; // the rank whose process name was written last
  for (auto &[key, id] : threads) {
    auto [rank, stream] = key;
    if (named != rank)
      add(fmt::format("{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\","
                      "\"args\":{{\"name\":\"{}\"}}}}",
                      rank, escaped(nameOf ? nameOf(rank) : fmt::format("rank {}", rank))));
    named = rank;
    id = next++;
    add(fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\","
                    "\"args\":{{\"name\":\"{}\"}}}}",
                    rank, id, escaped(stream)));
  }
  for (const Span &span : spans) {
    const std::string &name = span.label.empty() ? span.work : span.label;
    std::string microbatch =
        span.microbatch < 0 ? "" : fmt::format(",\"microbatch\":{}", span.microbatch);
    add(fmt::format("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},"
                    "\"dur\":{:.3f},\"args\":{{\"work\":\"{}\"{}}}}}",
                    span.rank, threads.at({span.rank, span.stream}), escaped(name),
                    static_cast<double>(span.beginNs - begin) / 1e3,
                    static_cast<double>(span.endNs - span.beginNs) / 1e3, escaped(span.work),
                    microbatch));
  }
  out += "\n]}\n";
  return out;
}

} // namespace shardc::trace
