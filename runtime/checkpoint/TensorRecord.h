// One tensor in a torch archive: its storage, and the pickle that rebuilds it, read as plain
// numbers. Also copies boxes between strided tensors, with conversion of element types.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/PyGraph.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A tensor in an archive. Every element is inside `storage`.
struct TensorView {
  Element type = Element::F32;
  Shape shape;
  Shape strides;             ///< in elements, one per dimension, not negative
  int64_t storageOffset = 0; ///< in elements
  std::span<const uint8_t> storage;
  const ArchiveEntry *entry = nullptr; ///< the storage's entry in the ArchiveReader

  const uint8_t *origin() const { return storage.data() + storageOffset * elementBits(type) / 8; }
};

/// The tensor in an archive's `data.pkl`; InvalidInput if that is anything else.
Result<TensorView> readTensorRecord(const ArchiveReader &archive);

/// Whether a value of a pickle is a tensor or a parameter.
bool isTensor(const PyGraph &graph, PyId id);

/// The tensor that value `id` of an archive's pickle represents, for archives with several tensors.
Result<TensorView> tensorOf(const ArchiveReader &archive, const PyGraph &graph, PyId id);

/// Adds a dense tensor as a value of an object. Its storage is the entry `data/<key>` of the
/// archive to which the object is written. Only for types that torch stores typed.
PyId addTensorToGraph(PyGraph &graph, Element type, ShapeView shape, std::string_view key);

/// The pickle that torch.save writes for a record with a single contiguous tensor.
std::string tensorPickle(Element type, ShapeView shape);

/// Writes a whole record. `parts` are the tensor's bytes in parts, whose sizes add up to the
/// tensor's size.
Status writeTensorRecord(ByteSink &sink, Element type, ShapeView shape,
                         std::span<const std::string_view> parts);
/// Like writeTensorRecord(), but `give` produces the parts one after the other.
Status writeGivenRecord(ByteSink &sink, Element type, ShapeView shape, const GiveBytes &give);

/// Whether a box with these extents, in a tensor with these strides, is a dense array.
bool isDense(ShapeView extents, ShapeView strides);

/// Row-major strides of a dense tensor.
Shape denseStrides(ShapeView shape);

/// One side of a copy: the element type, and the strides in elements per dimension.
struct BoxSide {
  Element type;
  ShapeView strides;
};

/// Copies a box of `extents` from `src` to `dst`, and converts elements if types differ
/// (isConvertible).
void copyBox(ShapeView extents, const BoxSide &from, const uint8_t *src, const BoxSide &to,
             uint8_t *dst);

} // namespace shardc::checkpoint
