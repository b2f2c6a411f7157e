#include "runtime/checkpoint/StoredParam.h"

#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

/// The shape of one fragment. The stored shape is the number of fragments per dimension, followed
/// by the number of elements of a fragment.
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

/// Copies the elements of the box that are in one fragment. `at` is the fragment's index per
/// dimension, and the box refers to the original tensor.
Status readFragment(const CheckpointReader &reader, const StoredParam &param, const Shape &local,
                    const Shape &at, const Box &box, Element type, uint8_t *dst) {
  Box fragment = {{}, local};
  for (size_t i = 0; i < at.size(); ++i)
    fragment.offset.push_back(at[i] * local[i]);
  std::optional<Box> common = intersect(fragment, box);
  if (!common)
    return Status::ok();
  const TensorMeta &tensor = *param.tensor;
  std::vector<uint8_t> flat(static_cast<size_t>(*tensorBytes(tensor.type, local)));
  Box stored = {at, Shape(at.size(), 1)};
  stored.offset.push_back(0);
  stored.shape.push_back(*elementCount(local));
  RETURN_IF_ERROR(reader.read(tensor.name, stored, tensor.type, flat.data()));
  Shape from = denseStrides(local), to = denseStrides(box.shape);
  int64_t src = distance(fragment.offset, common->offset, from);
  int64_t target = distance(box.offset, common->offset, to);
  copyBox(common->shape, {tensor.type, from}, flat.data() + src * elementBits(tensor.type) / 8,
          {type, to}, dst + target * elementBits(type) / 8);
  return Status::ok();
}

} // namespace

Shape StoredParam::shape() const {
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
                    "'{}' of stored shape {} is not a flattened form of the shape {}", tensor.name,
                    shapeText(tensor.shape), shapeText(original));
}

Status readStoredParam(const CheckpointReader &reader, const StoredParam &param, const Box &box,
                       Element type, void *dst) {
  if (box.isEmpty())
    return Status::ok();
  Box all = {concatenated(param.fixed, box.offset),
             concatenated(Shape(param.fixed.size(), 1), box.shape)};
  if (param.original.empty())
    return reader.read(param.tensor->name, all, type, dst);
  if (!all.isInside(param.original) || !isConvertible(param.tensor->type, type))
    return makeStatus(report::CheckpointDamaged, "the box at {} is not inside '{}' of shape {}",
                      boxText(all), param.tensor->name, shapeText(param.original));
  Shape local = fragmentShape(*param.tensor, param.original), first, last, fragment;
  for (size_t i = 0; i < local.size(); ++i) {
    first.push_back(all.offset[i] / local[i]);
    last.push_back((all.offset[i] + all.shape[i] - 1) / local[i]);
  }
  fragment = first;
  while (true) { // visits all fragments from first to last, like an odometer
    RETURN_IF_ERROR(
        readFragment(reader, param, local, fragment, all, type, static_cast<uint8_t *>(dst)));
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
