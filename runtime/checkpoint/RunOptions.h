// The options that a run saved with its checkpoint. The parser knows only the YAML that our own
// runs write: one option per line, with values in JSON or as plain words.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/Json.h"

namespace shardc::checkpoint {

inline constexpr const char *kRunConfigFile = "run_config.yaml";

/// The options of one section: lines `  name: value` under `section:`.
class RunOptions {
public:
  using Json = nlohmann::json;

  RunOptions(std::string_view text, std::string_view section) {
    bool isInside = false;
    while (!text.empty()) {
      std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (!line.empty() && line[0] != ' ' && line[0] != '#')
        isInside = line == std::string(section) + ":";
      size_t name = line.find_first_not_of(' '), colon = line.find(": ");
      // Lines with more indentation belong to lists and other objects.
      if (!isInside || name != 2 || colon == std::string_view::npos)
        continue;
      Json value = parseJson(line.substr(colon + 2));
      values_.emplace(line.substr(name, colon - name),
                      value.is_discarded() ? Json(std::string(line.substr(colon + 2))) : value);
    }
  }

  bool isEmpty() const { return values_.empty(); }
  /// The value of an option; null if it is not set.
  const Json *find(std::string_view name) const {
    auto found = values_.find(name);
    return found != values_.end() && !found->second.is_null() ? &found->second : nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// The value if it is of this type.
  template <typename T> T valueOr(std::string_view name, T otherwise) const {
    const Json *found = find(name);
    return found && isOf<T>(*found) ? found->get<T>() : otherwise;
  }
  int64_t integerOr(const char *name, int64_t otherwise) const { return valueOr(name, otherwise); }
  double numberOr(const char *name, double otherwise) const { return valueOr(name, otherwise); }
  bool isOn(const char *name) const { return valueOr(name, false); }
  std::string word(const char *name) const { return valueOr(name, std::string()); }
  /// Numbers of a list, which the file stores as texts, or a single number.
  template <typename T = int64_t> std::vector<T> list(const char *name, T otherwise = -1) const {
    std::vector<T> numbers;
    const Json *found = find(name);
    if (found && isOf<T>(*found))
      numbers.push_back(found->get<T>());
    for (size_t i = 0; found && found->is_array() && i < found->size(); ++i) {
      const Json &item = (*found)[i];
      Json value = item.is_string() ? parseJson(item.get<std::string>()) : item;
      numbers.push_back(isOf<T>(value) ? value.get<T>() : otherwise);
    }
    return numbers;
  }
  std::vector<std::string> words(const char *name) const {
    std::vector<std::string> words;
    const Json *found = find(name);
    for (size_t i = 0; found && found->is_array() && i < found->size(); ++i)
      if ((*found)[i].is_string())
        words.push_back((*found)[i].get<std::string>());
    return words;
  }

  /// The value if it is of this type; otherwise, the option is one of missing().
  template <typename T> T needed(const char *name) {
    const Json *found = find(name);
    if (found && isOf<T>(*found))
      return found->get<T>();
    missing_.emplace_back(name);
    return T();
  }
  int64_t integer(const char *name) { return needed<int64_t>(name); }
  double number(const char *name) { return needed<double>(name); }
  const std::vector<std::string> &missing() const { return missing_; }

private:
  template <typename T> static bool isOf(const Json &value) {
    return std::is_same_v<T, bool>      ? value.is_boolean()
           : std::is_same_v<T, int64_t> ? value.is_number_integer()
           : std::is_same_v<T, double>  ? value.is_number()
                                        : value.is_string();
  }

  std::map<std::string, Json, std::less<>> values_;
  std::vector<std::string> missing_;
};

} // namespace shardc::checkpoint
