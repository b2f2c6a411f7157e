// The rows of Reports.def as constants: makeReport(report::SlowGathers, found, needed) creates a
// report with the row's text, and makeStatus(report::NotPlaced, level) a status. The number and
// types of arguments are checked at compile time.
#pragma once

#include "runtime/base/Status.h"

namespace shardc {

namespace report {

/// One enumerator per row of Reports.def, in its order.
enum class Kind : uint16_t {
#define REPORT(severity, name, id, code, text, explanation) name,
#include "runtime/base/Reports.def"
};

inline const ReportInfo &infoOf(Kind kind) { return reportTable()[static_cast<size_t>(kind)]; }

#define REPORT(severity, name, id, code, text, explanation)                                        \
  inline constexpr struct name##Row {                                                              \
    static constexpr std::string_view kText = text;                                                \
    static constexpr bool kIsError = Severity::severity == Severity::Error;                        \
    static const ReportInfo &info() { return infoOf(Kind::name); }                                 \
  } name{};
#include "runtime/base/Reports.def"

} // namespace report

/// Formats the row's text with the arguments. Too few, too many or unprintable arguments do not
/// compile.
template <typename Row, typename... Args> Report makeReport(Row, Args &&...args) {
  const ReportInfo &info = Row::info();
  return {info.severity, info.id,
          fmt::format(fmt::format_string<Args...>(Row::kText), std::forward<Args>(args)...)};
}

template <typename Row>
concept ErrorRow = Row::kIsError;
/// A row whose text is only its argument: the caller formats the whole text.
template <typename Row>
concept FreeErrorRow = ErrorRow<Row> && Row::kText == "{}";

/// The error of a row: its code, its id, and its text with the arguments.
template <ErrorRow Row, typename... Args>
requires(!FreeErrorRow<Row> || sizeof...(Args) == 1) Status makeStatus(Row, Args &&...args) {
  return Status(Row::info(),
                fmt::format(fmt::format_string<Args...>(Row::kText), std::forward<Args>(args)...));
}

/// Creates an error whose text the caller formats.
template <FreeErrorRow Row, typename Arg, typename... Args>
Status makeStatus(Row, fmt::format_string<Arg, Args...> text, Arg &&arg, Args &&...args) {
  return Status(Row::info(),
                fmt::format(text, std::forward<Arg>(arg), std::forward<Args>(args)...));
}

} // namespace shardc
