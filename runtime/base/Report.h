// A message of the runtime to people: a severity, a stable id and a text. The rows are in
// Reports.def (Reports.h makes reports of them); docs/messages.md lists them and `shardc explain
// ID` explains one. Code that reports something takes a ReportSink; the program decides where it
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

/// Severity of a message of the compiler or the runtime. A note of the runtime is a line of its
/// progress.
enum class Severity : uint8_t { Note, Remark, Warning, Error };

/// `error`, `warning`, `remark` or `note`.
std::string_view severityWord(Severity severity);

/// The kind of fault; the tools map it to their exit status.
enum class StatusCode : uint8_t {
  Ok,
  InvalidInput, ///< a file, option or plan from the user is wrong
  NotFound,     ///< a file or name that does not exist
  Io,           ///< the operating system refused to read or write
  Unavailable,  ///< a device, library or service is not available
  Exhausted,    ///< memory, disk space or one of our limits is exhausted
  Deadlock,     ///< work is left and none of it can run
  Numeric,      ///< a value that must be finite is not
  Aborted,      ///< stopped on request or because another rank failed
  Internal,     ///< a fault of this program
};

/// One row of Reports.def.
struct ReportInfo {
  Severity severity;
  const char *id;
  StatusCode code;         ///< of an error; Ok for the others
  const char *text;        ///< with a `{}` for each argument
  const char *explanation; ///< the causes, and what to do
};

/// All rows, in order.
std::span<const ReportInfo> reportTable();
/// The row with this id, or null.
const ReportInfo *findReport(std::string_view id);
/// The row for errors of this kind that have none of their own; not for Ok.
const ReportInfo &generalReport(StatusCode code);

struct Report {
  Severity severity = Severity::Error;
  std::string_view id; ///< of a row, so it outlives the report
  std::string text;
  bool operator==(const Report &) const = default;
};

/// Takes reports. Where nothing else is said, any thread may call it.
using ReportSink = std::function<void(const Report &)>;

/// Whether the text is printed as it is: a line of progress, or findings in a plan, which have
/// places and ids of their own.
bool isWhole(const Report &report);
/// The report as text without a line end: `warning: text [id]`, with the id at the end of the first
/// line.
std::string lineOf(const Report &report);

/// Serialises a report for other processes of the same program, and back; nothing if the bytes name
/// no row.
std::string packReport(const Report &report);
std::optional<Report> unpackReport(std::string_view bytes);

/// Keeps reports for later, each once. Any thread may use it.
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
