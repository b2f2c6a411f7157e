// A box of a tensor: the unit in which ranks save, records store, loads read, and conversions move
// tensors.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/checkpoint/Element.h"

namespace shardc::checkpoint {

/// `shape` elements in each dim, from `offset` on.
struct Box {
  Shape offset, shape;

  /// All of a tensor.
  static Box whole(Shape shape);
  /// Rows of a tensor: `count` from `first` on. It has at least one dim.
  static Box rows(Shape shape, int64_t first, int64_t count);

  bool isEmpty() const;
  /// True if the box has as many dimensions as the tensor and lies inside of it.
  bool isInside(ShapeView tensor) const;
  bool operator==(const Box &) const = default;
};

/// `[2, 0] of shape [2, 3]`, for messages.
std::string boxText(const Box &box);

/// True if boxes with equally many dims have an element in common.
bool overlap(const Box &a, const Box &b);
/// The intersection; nothing if it is empty.
std::optional<Box> intersect(const Box &a, const Box &b);
/// How many elements the point `to` lies behind `from` in an array with these strides.
int64_t distance(ShapeView from, ShapeView to, ShapeView strides);

/// Visits the box, cut between rows into boxes of at most `bytesMax`; a larger row is one by
/// itself.
Status forEachPiece(const Box &box, Element type, int64_t bytesMax,
                    const std::function<Status(const Box &)> &visit);

/// Sets the rows of a box's dense array that lie beyond the tensor's last row to zero. Returns the
/// box of the other rows.
Box clearPadding(const Box &box, int64_t rows, Element type, void *dst);

} // namespace shardc::checkpoint
