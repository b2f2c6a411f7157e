// Reads the metrics of a run, one JSON object per line, into one series per field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::page {

struct Point {
  double step = 0, value = 0;
};

struct Series {
  std::string name; ///< name of the field
  std::vector<Point> points;
};

/// A text that the model has continued after an evaluation.
struct SaidText {
  double step = 0;
  int64_t number = 0; ///< of the evaluation's texts
  std::string prompt, said, data;
};

/// An error in a line; lines count from 1.
struct MetricsFault {
  size_t line = 0; ///< counts from 1; 0 if the file has no steps
  std::string what;
};

struct Metrics {
  std::vector<Series> series; ///< in the order of their first values
  std::vector<SaidText> said;
  size_t steps = 0; ///< different steps that have a line
  std::string name; ///< of the file
};

/// Reads metrics; returns false and sets `fault` on an error. A `null` adds no point. The last line
/// may be incomplete, as in a run that still writes or was killed; it is then ignored.
bool readMetrics(std::string_view text, Metrics &metrics, MetricsFault &fault);

/// Reduces a series to at most `pointsMax` points: the smallest and the largest value of each of
/// several equal parts.
std::vector<Point> thinned(const std::vector<Point> &points, size_t pointsMax);

/// The median of the second half of the values, which excludes the warm-up; 0 if there are no
/// values.
double settled(const Series &series);

} // namespace shardc::page
