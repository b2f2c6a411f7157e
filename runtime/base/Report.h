// A message of the runtime to people: a severity, a stable id and a text. Reports.def has the rows,
// and Reports.h creates reports from them; docs/messages.md lists them and `shardc explain ID`
// explains one. Code that reports something calls a ReportSink, and the program decides where it
// prints. A Status that is not ok holds a report of severity Error.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardc {

/// Severity of a message of the compiler or the runtime. A note of the runtime is a line about its
/// progress.
enum class Severity : uint8_t { Note, Remark, Warning, Error };

/// The word `error`, `warning`, `remark` or `note`.
std::string_view severityWord(Severity severity);

/// The kind of error. Tools map it to their exit status.
enum class StatusCode : uint8_t {
  Ok,
  InvalidInput, ///< a file, option or plan from the user is wrong
  NotFound,     ///< a file or name that does not exist
  Io,           ///< the operating system refused to read or write
  Unavailable,  ///< a device, library or service is not available
  Exhausted,    ///< memory, disk space or one of our limits is exhausted
  Deadlock,     ///< work is left, but none of it can run
  Numeric,      ///< a value that must be finite is not
  Aborted,      ///< stopped on request or because another rank failed
  Internal,     ///< a bug in this program
};

/// One row of Reports.def.
struct ReportInfo {
  Severity severity;
  const char *id;
  StatusCode code;         ///< kind of an error; Ok for other severities
  const char *text;        ///< text with one `{}` per argument
  const char *explanation; ///< the causes, and what to do
};

/// All rows, in order.
std::span<const ReportInfo> reportTable();
/// The row with this id, or null if there is none.
const ReportInfo *findReport(std::string_view id);
/// The row for errors of this kind that have no row of their own. `code` must not be Ok.
const ReportInfo &generalReport(StatusCode code);

/// One message to the person who runs a job.
struct Report {
  Severity severity = Severity::Error;
  std::string_view id; ///< id of a row, so it outlives the report
  std::string text;
  bool operator==(const Report &) const = default;
};

/// Receives reports. Unless noted otherwise, any thread may call it.
using ReportSink = std::function<void(const Report &)>;

/// Whether the text is printed without severity and id: a line of progress, or findings in a plan,
/// which have locations and ids of their own.
bool isWhole(const Report &report);
/// The report as text without a newline: `warning: text [id]`. The id is at the end of the first
/// line.
std::string lineOf(const Report &report);

/// Serialise a report for other processes of the same program, and parse it. The result is empty if
/// the bytes name no row.
std::string packReport(const Report &report);
std::optional<Report> unpackReport(std::string_view bytes);

/// Keeps reports for later, and drops repeated ones. Any thread may use it.
class ReportList {
public:
  void add(const Report &report);
  /// Returns the reports in order and removes them.
  std::vector<Report> take();
  ReportSink sink() {
    return [this](const Report &report) { add(report); };
  }

private:
  std::mutex mutex_;
  std::vector<Report> reports_;
};

} // namespace shardc
