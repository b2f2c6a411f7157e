// Compares two checkpoints: names, shapes, types, values. Tensors are streamed, so that each thread
// has at most one piece of each checkpoint in memory.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointView.h"
#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

/// A tensor that both checkpoints have, and how it differs.
struct TensorDifference {
  std::string name;
  std::string what;        ///< text: shapes, types, or the number of elements
  double maxAbs = 0;       ///< largest difference of values; NaN if a NaN meets a number
  int64_t elements = 0;    ///< number of elements that differ
  bool isOfValues = false; ///< whether values differ; otherwise shapes or types
};

/// An object that both checkpoints have with different values.
struct ObjectDifference {
  std::string name, a, b; ///< a and b: both values as text
};

/// Everything that differs between checkpoints a and b.
struct CheckpointDiff {
  std::vector<std::string> onlyInA, onlyInB;
  std::vector<TensorDifference> tensors;
  std::vector<ObjectDifference> objects;
  int64_t sameTensors = 0, sameObjects = 0;
  double maxAbs = 0;     ///< maximum over all tensors
  bool byParams = false; ///< formats differ, so parameters were compared, but no objects

  bool isEmpty() const {
    return onlyInA.empty() && onlyInB.empty() && tensors.empty() && objects.empty();
  }
};

/// What is compared, and with how many threads.
struct DiffOptions {
  bool tensorsOnly = false;
  int threads = 1;
  int64_t pieceBytes = int64_t{16} << 20;
  ConvertProgress progress = {};
};

/// Compares two checkpoints: by names of tensors if both have the same format, otherwise by
/// parameters. InvalidInput if formats differ and one has no parameters. If element types differ
/// but one can be converted to the other, values are compared after conversion.
Result<CheckpointDiff> diffCheckpoints(const CheckpointView &a, const CheckpointView &b,
                                       const DiffOptions &options = {});

} // namespace shardc::checkpoint
