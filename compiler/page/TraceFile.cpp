#include "compiler/page/TraceFile.h"

#include <cmath>
#include <map>

#include "runtime/base/Json.h"

namespace shardc::page {
namespace {

template <typename T> bool take(const nlohmann::json &object, const char *key, T &value) {
  auto found = object.find(key);
  bool fits = false;
  if (found != object.end()) {
    if constexpr (std::is_same_v<T, std::string>)
      fits = found->is_string();
    else if constexpr (std::is_integral_v<T>)
      fits = found->is_number_integer();
    else
      fits = found->is_number();
  }
  if (fits)
    value = found->get<T>();
  return fits;
}

Status malformed(size_t index, const char *what) {
  return makeStatus(StatusCode::InvalidInput, "event {} has no {}", index, what);
}

Result<trace::Span> spanOf(const nlohmann::json &event, size_t index,
                           const std::map<std::pair<int, int64_t>, std::string> &streams) {
  trace::Span span;
  int64_t thread = 0;
  double begin = 0, length = 0;
  if (!take(event, "pid", span.rank) || !take(event, "tid", thread))
    return malformed(index, "numbers 'pid' and 'tid'");
  if (!take(event, "ts", begin) || !take(event, "dur", length) || !(begin >= 0) || !(length >= 0) ||
      !(begin + length < 1e15))
    return malformed(index, "numbers 'ts' and 'dur' of at least 0");
  if (!take(event, "name", span.label))
    return malformed(index, "text 'name'");
  if (auto args = event.find("args"); args != event.end() && args->is_object()) {
    take(*args, "work", span.work);
    take(*args, "microbatch", span.microbatch);
  }
  auto stream = streams.find({span.rank, thread});
  span.stream = stream == streams.end() ? fmt::format("thread {}", thread) : stream->second;
  span.beginNs = std::llround(begin * 1e3);
  span.endNs = std::llround((begin + length) * 1e3);
  return span;
}

} // namespace

/// Reads two kinds of events: `M`, which name streams, and `X`, which are spans. Others are
/// ignored.
Result<std::vector<trace::Span>> readTrace(std::string_view text) {
  nlohmann::json json = parseJson(text);
  if (json.is_discarded())
    return makeStatus(StatusCode::InvalidInput, "it is not JSON");
  auto events = json.is_object() ? json.find("traceEvents") : json.end();
  if (!json.is_object() || events == json.end() || !events->is_array())
    return makeStatus(StatusCode::InvalidInput, "it has no list 'traceEvents'");
  std::map<std::pair<int, int64_t>, std::string> streams;
  std::vector<trace::Span> spans;
  for (const nlohmann::json &event : *events) {
    std::string phase, name, stream;
    int rank = 0;
    int64_t thread = 0;
    if (event.is_object() && take(event, "ph", phase) && phase == "M" &&
        take(event, "name", name) && name == "thread_name" && take(event, "pid", rank) &&
        take(event, "tid", thread) && event.contains("args") && event["args"].is_object() &&
        take(event["args"], "name", stream))
      streams[{rank, thread}] = stream;
  }
  for (size_t i = 0; i < events->size(); ++i) {
    const nlohmann::json &event = (*events)[i];
    std::string phase;
    if (!event.is_object() || !take(event, "ph", phase))
      return malformed(i, "text 'ph'");
    if (phase != "X")
      continue;
    ASSIGN_OR_RETURN(trace::Span span, spanOf(event, i, streams));
    spans.push_back(std::move(span));
  }
  if (spans.empty())
    return makeStatus(StatusCode::InvalidInput, "it has no work");
  return spans;
}

} // namespace shardc::page
