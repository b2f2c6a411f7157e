#include "runtime/data/Jsonl.h"

#include <exception>
#include <new>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

using Json = nlohmann::json;

/// What a value that is not text is, in messages.
std::string nameOf(const Json &value) {
  if (value.is_null())
    return "null";
  return value.is_object()   ? "an object"
         : value.is_array()  ? "a list"
         : value.is_string() ? "a string"
                             : fmt::format("a {}", value.type_name());
}

/// The library's message without its error number and position.
std::string_view reason(std::string_view text) {
  size_t colon = text.rfind("syntax error");
  return colon == std::string_view::npos ? text : text.substr(colon);
}

} // namespace

/// The parser keeps only the value under the key. Exceptions of the JSON library end here. If the
/// key occurs twice, the last value counts, as in Python.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts) {
  texts.clear();
  try {
    Json object = Json::parse(line, [&](int depth, Json::parse_event_t event, Json &parsed) {
      return depth != 1 || event != Json::parse_event_t::key || parsed == key;
    });
    if (!object.is_object())
      return makeStatus(report::DataRefused, "the line is {}, not an object", nameOf(object));
    auto found = object.find(key);
    if (found == object.end())
      return makeStatus(report::DataRefused, "the object has no key '{}'", key);
    Json list = found->is_array() ? std::move(*found) : Json::array({std::move(*found)});
    for (Json &text : list) {
      if (!text.is_string())
        return makeStatus(report::DataRefused,
                          "'{}' holds {}; needed is a string or a list of strings", key,
                          nameOf(text));
      texts.push_back(std::move(text.get_ref<std::string &>()));
    }
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for a line of {} bytes",
                      line.size());
  } catch (const Json::parse_error &error) {
    return makeStatus(report::DataRefused, "malformed JSON at column {}: {}", error.byte,
                      reason(error.what()));
  } catch (const std::exception &error) {
    return makeStatus(report::DataRefused, "malformed JSON: {}", error.what());
  }
  return Status::ok();
}

} // namespace shardc::data
