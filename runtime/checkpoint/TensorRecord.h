// One tensor in a torch archive: the pickle that rebuilds it, read as plain numbers, and its
// storage. Also copying of boxes between strided tensors, with conversion of the element type.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/PyGraph.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A tensor that lies in an archive; every element is inside `storage`.
struct TensorView {
  Element type = Element::F32;
  Shape shape;
  Shape strides;             ///< in elements, one per dim, >= 0
  int64_t storageOffset = 0; ///< in elements
  std::span<const uint8_t> storage;
  const ArchiveEntry *entry = nullptr; ///< the storage's entry, inside the ArchiveReader

  const uint8_t *origin() const { return storage.data() + storageOffset * elementBits(type) / 8; }
  bool isContiguous() const;
};

/// The tensor that an archive's `data.pkl` is; InvalidInput if it is anything else.
Result<TensorView> readTensorRecord(const ArchiveReader &archive);

/// Whether a value of a pickle is a tensor, or a parameter, which is one.
bool isTensor(const PyGraph &graph, PyId id);

/// The tensor that value `id` of an archive's pickle is, for archives with several tensors.
Result<TensorView> tensorOf(const ArchiveReader &archive, const PyGraph &graph, PyId id);

/// A dense tensor as a value of an object; its storage is the entry `data/<key>` of the archive
/// that the object is written into. For types that torch stores typed.
PyId addTensorToGraph(PyGraph &graph, Element type, ShapeView shape, std::string_view key);

/// The pickle that torch.save writes for one contiguous tensor that is the only object of its
/// record.
std::string tensorPickle(Element type, ShapeView shape);

/// Writes a whole record with the tensor's bytes in parts, which add up to the tensor's size.
Status writeTensorRecord(ByteSink &sink, Element type, ShapeView shape,
                         std::span<const std::string_view> parts);
/// The same with bytes that `give` makes one part after the other.
Status writeGivenRecord(ByteSink &sink, Element type, ShapeView shape, const GiveBytes &give);

/// Whether a box of a tensor with these strides lies in memory as a dense array of its shape.
bool isDense(ShapeView extents, ShapeView strides);

/// Row-major strides of a dense tensor.
Shape denseStrides(ShapeView shape);

/// One side of a copy: the first element, and elements from one to the next in each dim.
struct BoxSide {
  Element type;
  ShapeView strides;
};

/// Copies a box of `extents` from `src` to `dst`, converting where types differ (isConvertible).
void copyBox(ShapeView extents, const BoxSide &from, const uint8_t *src, const BoxSide &to,
             uint8_t *dst);

} // namespace shardc::checkpoint
