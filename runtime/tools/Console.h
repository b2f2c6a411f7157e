// Prints the reports of shardc-run. As text, errors and warnings go to standard error, remarks and
// notes to standard output; as JSON, all go to standard output, one object a line.
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
