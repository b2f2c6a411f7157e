#include "runtime/checkpoint/Box.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace shardc::checkpoint {

Box Box::whole(Shape shape) {
  Shape origin(shape.size(), 0);
  return {std::move(origin), std::move(shape)};
}

Box Box::rows(Shape shape, int64_t first, int64_t count) {
  Box box = whole(std::move(shape));
  box.offset[0] = first;
  box.shape[0] = count;
  return box;
}

bool Box::isEmpty() const { return std::ranges::find(shape, 0) != shape.end(); }

bool Box::isInside(ShapeView tensor) const {
  if (offset.size() != tensor.size() || shape.size() != tensor.size())
    return false;
  for (size_t i = 0; i < tensor.size(); ++i)
    if (shape[i] < 0 || offset[i] < 0 || shape[i] > tensor[i] || offset[i] > tensor[i] - shape[i])
      return false;
  return true;
}

std::string boxText(const Box &box) {
  return shapeText(box.offset) + " of shape " + shapeText(box.shape);
}

bool overlap(const Box &a, const Box &b) {
  for (size_t i = 0; i < a.offset.size(); ++i)
    if (std::max(a.offset[i], b.offset[i]) >=
        std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]))
      return false;
  return true;
}

std::optional<Box> intersect(const Box &a, const Box &b) {
  if (!overlap(a, b))
    return std::nullopt;
  Box common;
  for (size_t i = 0; i < a.offset.size(); ++i) {
    int64_t low = std::max(a.offset[i], b.offset[i]);
    int64_t high = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
    common.offset.push_back(low);
    common.shape.push_back(high - low);
  }
  return common;
}

int64_t distance(ShapeView from, ShapeView to, ShapeView strides) {
  int64_t elements = 0;
  for (size_t i = 0; i < strides.size(); ++i)
    elements += (to[i] - from[i]) * strides[i];
  return elements;
}

Status forEachPiece(const Box &box, Element type, int64_t bytesMax,
                    const std::function<Status(const Box &)> &visit) {
  int64_t bytes = tensorBytes(type, box.shape).value_or(0);
  if (box.shape.empty() || bytes <= bytesMax)
    return visit(box);
  int64_t rows = box.shape[0], rowBytes = bytes / rows;
  int64_t step = std::max<int64_t>(1, bytesMax / std::max<int64_t>(rowBytes, 1));
  Box piece = box;
  for (int64_t row = 0; row < rows; row += step) {
    piece.offset[0] = box.offset[0] + row;
    piece.shape[0] = std::min(step, rows - row);
    RETURN_IF_ERROR(visit(piece));
  }
  return Status::ok();
}

Status readInPieces(const Box &box, const ReadNumbers &read, const TakeNumbers &take) {
  constexpr int64_t kBytesAtOnce = int64_t{16} << 20;
  std::vector<float> numbers;
  return forEachPiece(box, Element::F32, kBytesAtOnce, [&](const Box &piece) {
    numbers.resize(static_cast<size_t>(elementCount(piece.shape).value_or(0)));
    RETURN_IF_ERROR(read(piece, numbers.data()));
    return take(piece, numbers);
  });
}

Box clearPadding(const Box &box, int64_t rows, Element type, void *dst) {
  if (box.shape.empty() || box.offset[0] + box.shape[0] <= rows)
    return box;
  Box there = box;
  there.shape[0] = std::max<int64_t>(rows - box.offset[0], 0);
  there.offset[0] = std::min(box.offset[0], rows);
  auto bytesOf = [&](const Box &part) { return tensorBytes(type, part.shape).value_or(0); };
  std::memset(static_cast<uint8_t *>(dst) + bytesOf(there), 0,
              static_cast<size_t>(bytesOf(box) - bytesOf(there)));
  return there;
}

} // namespace shardc::checkpoint
