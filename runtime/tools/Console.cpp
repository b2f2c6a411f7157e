#include "runtime/tools/Console.h"

#include <cstdio>

#include <unistd.h>

#include "runtime/base/Json.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

std::string jsonLineOf(const Report &report) {
  nlohmann::ordered_json object = {{"severity", std::string(severityWord(report.severity))},
                                   {"id", std::string(report.id)},
                                   {"text", report.text}};
  return toText(object);
}

} // namespace

void Console::emit(const Report &report) const {
  Report shown = report;
  shown.text = plan::printableLines(report.text);
  bool isOutput = isJson || report.severity < Severity::Warning;
  std::string line = (isJson ? jsonLineOf(shown) : lineOf(shown)) + "\n";
  if (!isOutput && !isWhole(shown))
    line.insert(0, "shardc-run: ");
  if (isOutput)
    std::fflush(stdout); // earlier output comes first
  [[maybe_unused]] ssize_t written =
      ::write(isOutput ? STDOUT_FILENO : STDERR_FILENO, line.data(), line.size());
}

} // namespace shardc::tools
