// A parameter in some checkpoint: a whole tensor, one layer or expert of a stacked tensor, or a
// box of a tensor that was saved as flattened fragments. Rows are read in the same way from
// all.
#pragma once

#include <string>

#include "runtime/checkpoint/CheckpointReader.h"

namespace shardc::checkpoint {

struct StoredParam {
  const TensorMeta *tensor = nullptr;
  Shape fixed = {}; ///< indices into the leading dims: layer, expert
  /// The tensor's shape before it was cut into flattened fragments; empty if it was not.
  Shape original = {};

  /// The parameter's own shape, without the fixed dims.
  Shape shape() const;
};

/// Checks that a flattened tensor's stored shape belongs to its original one.
Status checkFragments(const TensorMeta &tensor, ShapeView original);

/// Reads a box of the parameter into the dense array `dst` of `type`.
Status readStoredParam(const CheckpointReader &reader, const StoredParam &param, const Box &box,
                       Element type, void *dst);

} // namespace shardc::checkpoint
