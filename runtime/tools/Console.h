// Prints the reports of shardc-run. In text form, errors and warnings go to standard error, remarks
// and notes to standard output. In JSON form, all go to standard output, one object per line.
#pragma once

#include "runtime/base/Report.h"

namespace shardc::tools {

struct Console {
  bool isJson = false;

  /// Prints a report in one write, so that it does not mix with lines of other processes.
  /// Thread-safe.
  void emit(const Report &report) const;
  ReportSink sink() const {
    return [*this](const Report &report) { emit(report); };
  }
};

} // namespace shardc::tools
