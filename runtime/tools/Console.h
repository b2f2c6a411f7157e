// Where the reports of shardc-run go: as people read them, errors and warnings on standard error,
// remarks and notes on standard output; or all as JSON, one object a line, on standard output.
#pragma once

#include "runtime/base/Report.h"

namespace shardc::tools {

struct Console {
  bool isJson = false;

  /// Prints a report in one write, so that lines of other processes do not mix with it. Any thread
  /// may call it.
  void emit(const Report &report) const;
  ReportSink sink() const {
    return [*this](const Report &report) { emit(report); };
  }
};

} // namespace shardc::tools
