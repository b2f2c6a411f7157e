// Errors at run time. A Status says whether an operation succeeded and, if not, the kind of error,
// the id of the message, and the reason in one sentence. Functions that can fail return Status or
// Result<T>; nothing throws. Programming errors are CHECKs, and never depend on input.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/Report.h"

namespace shardc {

class [[nodiscard]] Status {
public:
  Status() = default;
  /// An error of this kind, with the general id of the kind.
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)),
        info_(code == StatusCode::Ok ? nullptr : &generalReport(code)) {}
  /// An error with the id of this row. The row must outlive it.
  Status(const ReportInfo &info, std::string message)
      : code_(info.code), message_(std::move(message)), info_(&info) {}
  /// The error that a report describes.
  explicit Status(const Report &report);

  static Status ok() { return {}; }
  /// Whether it is not an error. A Status does not convert to bool, so that neither meaning is
  /// guessed.
  bool isOk() const { return code_ == StatusCode::Ok; }
  explicit operator bool() const = delete;
  StatusCode code() const { return code_; }
  const std::string &message() const { return message_; }
  /// The error as a report. The status must not be ok.
  Report report() const;

  /// Puts `context: ` before the message; no effect on an ok status.
  Status withContext(const std::string &context) &&;
  /// Replaces the message; kind and id stay the same.
  Status withMessage(std::string message) &&;
  /// Replaces the id by that of another row of Reports.def; no effect on an ok status.
  Status as(const ReportInfo &info) &&;

private:
  StatusCode code_ = StatusCode::Ok;
  std::string message_;
  const ReportInfo *info_ = nullptr;
};

/// Makes a status from a format string: `return makeStatus(StatusCode::Io, "cannot open '{}'",
/// path);`. For errors with a row in Reports.def, use makeStatus of Reports.h.
template <typename... Args>
Status makeStatus(StatusCode code, fmt::format_string<Args...> text, Args &&...args) {
  return Status(code, fmt::format(text, std::forward<Args>(args)...));
}

/// A value, or the reason why there is none.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  /// Whether it has a value. `*` and `->` may only be used then; status() is ok then.
  bool isOk() const { return value_.has_value(); }
  const Status &status() const { return status_; }
  T &operator*() { return *value_; }
  const T &operator*() const { return *value_; }
  T *operator->() { return &*value_; }
  const T *operator->() const { return &*value_; }

private:
  std::optional<T> value_;
  Status status_;
};

/// Prints the place, the condition and the message, and aborts the program.
[[noreturn]] void checkFailed(const char *file, int line, const char *condition,
                              const std::string &message);

} // namespace shardc

#define SHARDC_CONCAT_IMPL(a, b) a##b
#define SHARDC_CONCAT(a, b) SHARDC_CONCAT_IMPL(a, b)

/// Returns the status from the function if it is not ok.
#define RETURN_IF_ERROR(expr)                                                                      \
  do {                                                                                             \
    ::shardc::Status status_ = (expr);                                                             \
    if (!status_.isOk())                                                                           \
      return status_;                                                                              \
  } while (false)

/// `ASSIGN_OR_RETURN(auto x, f());` unwraps a Result or returns from the function with its status.
#define ASSIGN_OR_RETURN(decl, expr)                                                               \
  ASSIGN_OR_RETURN_IMPL(SHARDC_CONCAT(result_, __LINE__), decl, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, decl, expr)                                                     \
  auto tmp = (expr);                                                                               \
  if (!tmp.isOk())                                                                                 \
    return tmp.status();                                                                           \
  decl = std::move(*tmp)

/// Checks an invariant of our code, in all builds. The message is a format string with arguments.
#define SHARDC_CHECK(condition, ...)                                                               \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::shardc::checkFailed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__));           \
  } while (false)

#ifdef NDEBUG
#define SHARDC_DCHECK(condition, ...) static_cast<void>(0)
#else
#define SHARDC_DCHECK(condition, ...) SHARDC_CHECK(condition, __VA_ARGS__)
#endif
