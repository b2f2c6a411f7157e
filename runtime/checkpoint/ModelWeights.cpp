#include "runtime/checkpoint/ModelWeights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {

double lengthOf(const float *row, int64_t columns) {
  double sum = 0;
  for (int64_t c = 0; c < columns; ++c)
    sum += static_cast<double>(row[c]) * static_cast<double>(row[c]);
  return std::sqrt(sum);
}

Result<ModelWeights> ModelWeights::open(const std::string &folder, const ReportSink &tell) {
  ModelWeights base;
  base.folder_ = folder;
  std::error_code error;
  if (std::filesystem::exists(folder + "/config.json", error) && !isCheckpoint(folder)) {
    ASSIGN_OR_RETURN(base.model_, HfWeights::open(folder, {}, tell));
    return base;
  }
  ASSIGN_OR_RETURN(std::string in, findCheckpoint(folder));
  ASSIGN_OR_RETURN(SavedParams opened, SavedParams::open(in, tell));
  base.saved_.emplace(std::move(opened));
  return base;
}

Result<std::vector<float>> ModelWeights::lengthsOf(const std::string &name,
                                                   const Shape &shape) const {
  std::optional<Shape> found = shapeOf(name);
  if (found != shape)
    return cannotConvert("'{}' is {} in '{}'; its adapter is for {}", name,
                         found ? shapeText(*found) : "missing", folder_, shapeText(shape));
  constexpr int64_t kRowsAtOnce = 256;
  int64_t columns = shape[1];
  std::vector<float> lengths, rows;
  for (int64_t first = 0; first < shape[0]; first += kRowsAtOnce) {
    int64_t count = std::min(kRowsAtOnce, shape[0] - first);
    rows.resize(static_cast<size_t>(count * columns));
    RETURN_IF_ERROR(read(name, {{first, 0}, {count, columns}}, rows.data()));
    for (int64_t i = 0; i < count; ++i)
      lengths.push_back(static_cast<float>(lengthOf(rows.data() + i * columns, columns)));
  }
  return lengths;
}

} // namespace shardc::checkpoint
