#include "test/unit/data/TestData.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace shardc::data {
namespace {

const std::map<std::string, std::string> &goldens() {
  static const std::map<std::string, std::string> lines = [] {
    std::map<std::string, std::string> result;
    std::ifstream file(fixture("goldens.txt"));
    for (std::string line; std::getline(file, line);) {
      size_t colon = line.find(':');
      result[line.substr(0, colon)] = line.substr(colon + 1);
    }
    return result;
  }();
  return lines;
}

template <typename T> std::vector<T> numbers(const std::string &name) {
  auto line = goldens().find(name);
  if (line == goldens().end()) {
    ADD_FAILURE() << "no golden '" << name << "'";
    return {};
  }
  std::istringstream words(line->second);
  std::vector<T> result;
  for (T value; words >> value;)
    result.push_back(value);
  return result;
}

} // namespace

std::vector<int64_t> golden(const std::string &name) { return numbers<int64_t>(name); }
std::vector<double> goldenNumbers(const std::string &name) { return numbers<double>(name); }
bool hasGolden(const std::string &name) { return goldens().count(name) != 0; }

std::vector<std::string> goldenNames(std::string_view prefix, std::string_view suffix) {
  std::vector<std::string> result;
  for (const auto &[name, line] : goldens())
    if (name.starts_with(prefix) && name.ends_with(suffix))
      result.push_back(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  return result;
}

std::string contentsOf(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::vector<int64_t> textOf(const DataSource &source, int64_t index) {
  SampleBuffer buffer(source.sequenceLength());
  Sample view = buffer.view();
  Status status = source.sample(index, view);
  EXPECT_TRUE(status.isOk()) << status.message();
  std::vector<int64_t> text = asInts(buffer.tokens);
  text.push_back(buffer.labels.back());
  return text;
}

} // namespace shardc::data
