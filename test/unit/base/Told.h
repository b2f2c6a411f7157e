// Helpers that show what the code under test reports, in the form in which users read it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::test {

/// `error: text [id]`; empty for a status that is ok.
inline std::string said(const Status &status) {
  return status.isOk() ? "" : lineOf(status.report());
}

inline std::vector<std::string> said(const std::vector<Report> &reports) {
  std::vector<std::string> lines;
  for (const Report &report : reports)
    lines.push_back(lineOf(report));
  return lines;
}

/// Whether the status is an error whose message, or whose line with the id, contains `text`.
inline bool tells(const Status &status, std::string_view text) {
  return !status.isOk() && (status.message().find(text) != std::string::npos ||
                            said(status).find(text) != std::string::npos);
}

/// Collects reports: notes as text, others as `severity: text [id]`. Must outlive its sinks.
struct Reported {
  std::vector<std::string> notes, lines;

  ReportSink sink() {
    return [this](const Report &report) {
      (report.severity == Severity::Note ? notes : lines).push_back(lineOf(report));
    };
  }
};

} // namespace shardc::test
