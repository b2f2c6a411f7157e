#include "runtime/base/Status.h"

#include <cstdio>
#include <cstdlib>

namespace shardc {

Status::Status(const Report &report) : Status(StatusCode::Internal, report.text) {
  if (const ReportInfo *info = findReport(report.id); info && info->severity == Severity::Error) {
    info_ = info;
    code_ = info->code;
  }
}

Report Status::report() const {
  SHARDC_CHECK(info_, "a status that is ok has nothing to report");
  return {Severity::Error, info_->id, message_};
}

Status Status::withMessage(std::string message) && {
  if (!isOk())
    message_ = std::move(message);
  return std::move(*this);
}

Status Status::as(const ReportInfo &info) && {
  if (!isOk())
    info_ = &info;
  return std::move(*this);
}

Status Status::withContext(const std::string &context) && {
  if (!isOk())
    message_ = context + ": " + message_;
  return std::move(*this);
}

void checkFailed(const char *file, int line, const char *condition, const std::string &message) {
  std::fprintf(stderr, "%s:%d: internal error: %s (check '%s' failed)\n", file, line,
               message.c_str(), condition);
  std::abort();
}

} // namespace shardc
