// A box of a tensor: the unit in which ranks save, records store, loads read, and conversions copy
// tensors.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/Element.h"

namespace shardc::checkpoint {

/// The elements from `offset` to `offset + shape`, per dimension.
struct Box {
  Shape offset, shape;

  /// The box of the whole tensor.
  static Box whole(Shape shape);
  /// Rows `first` to `first + count` of a tensor, which has at least one dimension.
  static Box rows(Shape shape, int64_t first, int64_t count);

  bool isEmpty() const;
  /// Whether the box has as many dimensions as the tensor and lies inside it.
  bool isInside(ShapeView tensor) const;
  bool operator==(const Box &) const = default;
};

/// Text for messages, such as `[2, 0] of shape [2, 3]`.
std::string boxText(const Box &box);

/// Whether two boxes with equally many dimensions have an element in common.
bool overlap(const Box &a, const Box &b);
/// The intersection; nothing if it is empty.
std::optional<Box> intersect(const Box &a, const Box &b);
/// The distance in elements from point `from` to point `to`, in an array with these strides.
int64_t distance(ShapeView from, ShapeView to, ShapeView strides);

/// Visits the box in pieces of whole rows, each of at most `bytesMax` bytes or a single row.
Status forEachPiece(const Box &box, Element type, int64_t bytesMax,
                    const std::function<Status(const Box &)> &visit);

using ReadNumbers = std::function<Status(const Box &box, float *dst)>;
using TakeNumbers = std::function<Status(const Box &box, std::span<float> numbers)>;
/// Reads the box in fp32, in pieces of whole rows of at most 16 MiB each or a single row, and
/// passes each piece's numbers to `take`.
Status readInPieces(const Box &box, const ReadNumbers &read, const TakeNumbers &take);

/// Sets rows beyond the tensor's last row to zero in a dense array of the box. Returns the box of
/// the other rows.
Box clearPadding(const Box &box, int64_t rows, Element type, void *dst);

} // namespace shardc::checkpoint
