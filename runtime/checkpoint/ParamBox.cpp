#include "runtime/checkpoint/ParamBox.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

/// Extents of one fragment: the stored shape is the number of fragments in each dim, then the
/// elements of one.
Shape fragmentShape(const TensorMeta &tensor, ShapeView original) {
  Shape local;
  for (size_t i = 0; i < original.size(); ++i)
    local.push_back(original[i] / tensor.shape[i]);
  return local;
}

Shape concatenated(const Shape &a, ShapeView b) {
  Shape all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

/// Copies what one fragment holds of the box at `offset` with `shape`; both in the original tensor.
Status readFragment(const CheckpointReader &reader, const ParamBox &box, const Shape &local,
                    const Shape &at, ShapeView offset, ShapeView shape, Element type,
                    uint8_t *dst) {
  Shape inFragment, inBox, extents;
  for (size_t i = 0; i < at.size(); ++i) {
    int64_t low = std::max(at[i] * local[i], offset[i]);
    int64_t high = std::min((at[i] + 1) * local[i], offset[i] + shape[i]);
    if (low >= high)
      return Status::ok();
    inFragment.push_back(low - at[i] * local[i]);
    inBox.push_back(low - offset[i]);
    extents.push_back(high - low);
  }
  int64_t count = *elementCount(local);
  std::vector<uint8_t> flat(static_cast<size_t>(*tensorBytes(box.tensor->type, local)));
  Shape stored = concatenated(at, Shape{0}), one(at.size(), 1);
  one.push_back(count);
  RETURN_IF_ERROR(reader.read(box.tensor->name, stored, one, box.tensor->type, flat.data()));
  Shape from = denseStrides(local), to = denseStrides(shape);
  int64_t src = 0, target = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    src += inFragment[i] * from[i];
    target += inBox[i] * to[i];
  }
  copyBox(extents, {box.tensor->type, from}, flat.data() + src * elementBits(box.tensor->type) / 8,
          {type, to}, dst + target * elementBits(type) / 8);
  return Status::ok();
}

} // namespace

Shape ParamBox::shape() const {
  const Shape &whole = original.empty() ? tensor->shape : original;
  return {whole.begin() + static_cast<ptrdiff_t>(fixed.size()), whole.end()};
}

Status checkFragments(const TensorMeta &tensor, ShapeView original) {
  bool fits = tensor.shape.size() == original.size() + 1 && elementCount(original).has_value();
  int64_t count = 1;
  for (size_t i = 0; fits && i < original.size(); ++i) {
    fits = tensor.shape[i] > 0 && original[i] % tensor.shape[i] == 0;
    count *= fits ? original[i] / tensor.shape[i] : 1;
  }
  if (fits && tensor.shape.back() == count)
    return Status::ok();
  return makeStatus(report::CheckpointDamaged,
                    fmt::format("'{}' of stored shape {} is not a flattened form of the shape {}",
                                tensor.name, shapeText(tensor.shape), shapeText(original)));
}

Status readParamBox(const CheckpointReader &reader, const ParamBox &box, ShapeView offset,
                    ShapeView shape, Element type, void *dst) {
  if (std::ranges::find(shape, 0) != shape.end())
    return Status::ok();
  Shape at = concatenated(box.fixed, offset), extents(box.fixed.size(), 1);
  extents.insert(extents.end(), shape.begin(), shape.end());
  if (box.original.empty())
    return reader.read(box.tensor->name, at, extents, type, dst);
  bool isInside = at.size() == box.original.size() && extents.size() == at.size();
  for (size_t i = 0; isInside && i < at.size(); ++i)
    isInside = at[i] >= 0 && extents[i] <= box.original[i] && at[i] <= box.original[i] - extents[i];
  if (!isInside || !isConvertible(box.tensor->type, type))
    return makeStatus(report::CheckpointDamaged,
                      fmt::format("the box at {} of shape {} is not inside '{}' of shape {}",
                                  shapeText(at), shapeText(extents), box.tensor->name,
                                  shapeText(box.original)));
  Shape local = fragmentShape(*box.tensor, box.original), first, last, fragment;
  for (size_t i = 0; i < at.size(); ++i) {
    first.push_back(at[i] / local[i]);
    last.push_back((at[i] + extents[i] - 1) / local[i]);
  }
  fragment = first;
  while (true) { // all fragments from first to last, like an odometer
    RETURN_IF_ERROR(
        readFragment(reader, box, local, fragment, at, extents, type, static_cast<uint8_t *>(dst)));
    size_t dim = fragment.size();
    while (dim > 0 && fragment[dim - 1] == last[dim - 1]) {
      fragment[dim - 1] = first[dim - 1];
      --dim;
    }
    if (dim == 0)
      return Status::ok();
    ++fragment[dim - 1];
  }
}

} // namespace shardc::checkpoint
