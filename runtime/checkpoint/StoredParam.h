// A parameter as some checkpoint stores it: a whole tensor, one layer or expert of a stacked
// tensor, or a box of a tensor that was saved as flattened fragments. Rows of all of these are read
// in the same way.
#pragma once

#include "runtime/checkpoint/CheckpointReader.h"

namespace shardc::checkpoint {

/// Where a parameter's elements are. `tensor` belongs to the reader, which must outlive it.
struct StoredParam {
  const TensorMeta *tensor = nullptr;
  Shape fixed = {}; ///< indices in the leading dimensions: layer, expert
  /// The tensor's shape before it was divided into flattened fragments; empty if it was not.
  Shape original = {};

  /// The parameter's own shape, without the fixed dimensions.
  Shape shape() const;
};

/// Checks that the stored shape of a flattened tensor matches its original shape.
Status checkFragments(const TensorMeta &tensor, ShapeView original);

/// Reads a box of the parameter into the dense array `dst` of `type`.
Status readStoredParam(const CheckpointReader &reader, const StoredParam &param, const Box &box,
                       Element type, void *dst);

} // namespace shardc::checkpoint
