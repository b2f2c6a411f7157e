#include "runtime/base/Reports.h"

#include <algorithm>
#include <utility>

#include "runtime/base/Utf8.h"

namespace shardc {
namespace {

constexpr ReportInfo kRows[] = {
#define REPORT(severity, name, id, code, text, explanation)                                        \
  {Severity::severity, id, StatusCode::code, text, explanation},
#include "runtime/base/Reports.def"
};

} // namespace

std::string_view severityWord(Severity severity) {
  switch (severity) {
  case Severity::Note:
    return "note";
  case Severity::Remark:
    return "remark";
  case Severity::Warning:
    return "warning";
  case Severity::Error:
    return "error";
  }
  return "";
}

std::span<const ReportInfo> reportTable() { return kRows; }

const ReportInfo *findReport(std::string_view id) {
  auto row = std::ranges::find_if(kRows, [id](const ReportInfo &info) { return info.id == id; });
  return row == std::end(kRows) ? nullptr : row;
}

const ReportInfo &generalReport(StatusCode code) {
  switch (code) {
  case StatusCode::InvalidInput:
    return report::InputRefused.info();
  case StatusCode::NotFound:
    return report::NotFound.info();
  case StatusCode::Io:
    return report::SystemRefused.info();
  case StatusCode::Unavailable:
    return report::NotAvailable.info();
  case StatusCode::Exhausted:
    return report::ResourcesExhausted.info();
  case StatusCode::Deadlock:
    return report::Deadlocked.info();
  case StatusCode::Numeric:
    return report::NotFinite.info();
  case StatusCode::Aborted:
    return report::RunAborted.info();
  case StatusCode::Ok:
  case StatusCode::Internal:
    break;
  }
  return report::InternalError.info();
}

bool isWhole(const Report &report) {
  return report.severity == Severity::Note || report.id == report::PlanRefused.info().id;
}

std::string lineOf(const Report &report) {
  std::string text = escapeControls(report.text, "\n\t");
  if (isWhole(report))
    return text;
  // Our own further lines are notes or indented. Others are of names and values of files.
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; ++at)
    if (std::string_view rest = std::string_view(text).substr(at + 1);
        !rest.empty() && !rest.starts_with("note: ") && !rest.starts_with("  "))
      text.replace(at, 1, "\\x0a");
  size_t end = std::min(text.find('\n'), text.size());
  return fmt::format("{}: {} [{}]{}", severityWord(report.severity), text.substr(0, end), report.id,
                     text.substr(end));
}

std::string packReport(const Report &report) {
  return fmt::format("{}\n{}", report.id, report.text);
}

std::optional<Report> unpackReport(std::string_view bytes) {
  size_t end = bytes.find('\n');
  const ReportInfo *row = end == bytes.npos ? nullptr : findReport(bytes.substr(0, end));
  if (!row)
    return std::nullopt;
  return Report{row->severity, row->id, std::string(bytes.substr(end + 1))};
}

void ReportList::add(const Report &report) {
  std::lock_guard lock(mutex_);
  if (std::ranges::find(reports_, report) == reports_.end())
    reports_.push_back(report);
}

std::vector<Report> ReportList::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

} // namespace shardc
