// Reads the metrics of a run, one JSON object a line, into series by field.
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
  std::string name; ///< the field's
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
  size_t line = 0; ///< 0: the file has no steps
  std::string what;
};

struct Metrics {
  std::vector<Series> series; ///< in the order of their first values
  std::vector<SaidText> said;
  size_t steps = 0; ///< different steps that have a line
  std::string name; ///< of the file
};

/// Fields without a value (`null`) have no point. A last line without an end is left out if it is
/// no object: the run may still write it. Metrics of a killed run have such a line.
bool readMetrics(std::string_view text, Metrics &metrics, MetricsFault &fault);

/// At most `pointsMax` points: of each equal part of the steps the smallest and the largest value.
std::vector<Point> thinned(const std::vector<Point> &points, size_t pointsMax);

/// The median of the last half of the values, which has no warm-up in it; 0 without values.
double settled(const Series &series);

} // namespace shardc::page
