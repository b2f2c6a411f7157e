// Compares two checkpoints: names, shapes, types, values. Streams, so that at most one piece of
// each is in memory for each thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointView.h"
#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

struct TensorDifference {
  std::string name;
  std::string what;        ///< for people: shapes, types, or how many elements
  double maxAbs = 0;       ///< of values; NaN if a NaN is compared with a number
  int64_t elements = 0;    ///< that differ
  bool isOfValues = false; ///< otherwise of shape
};

struct ObjectDifference {
  std::string name, a, b; ///< values as text
};

struct CheckpointDiff {
  std::vector<std::string> onlyInA, onlyInB;
  std::vector<TensorDifference> tensors;
  std::vector<ObjectDifference> objects;
  int64_t sameTensors = 0, sameObjects = 0;
  double maxAbs = 0;     ///< over all
  bool byParams = false; ///< the formats differ, so parameters were compared, and no objects

  bool isEmpty() const {
    return onlyInA.empty() && onlyInB.empty() && tensors.empty() && objects.empty();
  }
};

struct DiffOptions {
  bool tensorsOnly = false;
  int threads = 1;
  int64_t pieceBytes = int64_t{16} << 20;
  ConvertProgress progress = {};
};

/// Compares two checkpoints: by names of tensors if both have the same format, otherwise by
/// parameters. InvalidInput if one has no parameters then. If element types differ and one converts
/// to the other, values are compared after the conversion.
Result<CheckpointDiff> diffCheckpoints(const CheckpointView &a, const CheckpointView &b,
                                       const DiffOptions &options = {});

} // namespace shardc::checkpoint
