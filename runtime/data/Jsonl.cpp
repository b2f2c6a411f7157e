// Parses each line with a SAX parser, which keeps only the texts under the key, not the rest of the
// object.
#include "runtime/data/Jsonl.h"

#include <exception>
#include <new>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

using Json = nlohmann::json;

/// Receives the parse events of one line. Depth 1 is inside the object, 2 inside its values.
class TextHandler : public nlohmann::json_sax<Json> {
public:
  TextHandler(std::string_view key, std::vector<std::string> &texts) : key_(key), texts_(texts) {}

  Status status;
  bool found = false;

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t &) override { return other("a number"); }
  bool binary(binary_t &) override { return other("binary data"); }

  bool string(string_t &value) override {
    if (depth_ == 0)
      return other("a string");
    if (depth_ == 1 && matches_)
      beginValue();
    if (takes())
      texts_.push_back(std::move(value));
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ > 0 && !other("an object"))
      return false;
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ == 0 || inList())
      return other("a list");
    if (depth_ == 1 && matches_)
      beginValue();
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(string_t &name) override {
    if (depth_ == 1)
      matches_ = name == key_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string &,
                   const Json::exception &error) override {
    status = makeStatus(report::DataRefused, "malformed JSON at column {}: {}", position,
                        reason(error.what()));
    return false;
  }

private:
  /// Whether the parser is in the list of sentences: at depth 2, under the key. Deeper values under
  /// the key are refused.
  bool inList() const { return depth_ == 2 && matches_; }
  bool takes() const { return matches_ && (depth_ == 1 || depth_ == 2); }

  void beginValue() {
    found = true;
    texts_.clear();
  }

  /// Handles a value that is not text: an error at the top level and under the key, ignored
  /// elsewhere.
  bool other(const char *what) {
    if (depth_ == 0)
      status = makeStatus(report::DataRefused, "the line is {}, not an object", what);
    else if (takes())
      status = makeStatus(report::DataRefused,
                          "'{}' holds {}; needed is a string or a list of "
                          "strings",
                          key_, what);
    return status.isOk();
  }

  /// Returns the library's message without its error number and position.
  static std::string_view reason(std::string_view text) {
    size_t colon = text.rfind("syntax error");
    return colon == std::string_view::npos ? text : text.substr(colon);
  }

  std::string_view key_;
  std::vector<std::string> &texts_;
  int64_t depth_ = 0;
  bool matches_ = false;
};

} // namespace

/// Exceptions of the JSON library end here. If the key occurs twice, the last value counts, as in
/// Python.
Status extractTexts(std::string_view line, std::string_view key, std::vector<std::string> &texts) {
  texts.clear();
  TextHandler handler(key, texts);
  try {
    Json::sax_parse(line.begin(), line.end(), &handler);
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for a line of {} bytes",
                      line.size());
  } catch (const std::exception &error) {
    return makeStatus(report::DataRefused, "malformed JSON: {}", error.what());
  }
  RETURN_IF_ERROR(handler.status);
  if (!handler.found)
    return makeStatus(report::DataRefused, "the object has no key '{}'", key);
  return Status::ok();
}

} // namespace shardc::data
