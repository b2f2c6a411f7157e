// Computes marks of values that hold blocks with split parameters: ranks along the splits have
// other elements, and no parts of a sum.
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

Mark withSplits(Mark mark, Axes splits) {
  // The same contribution cannot be that of each rank to elements of its own.
  if (mark.cover.kind == Cover::Some && (splits & ~(mark.varies | mark.split)) != 0)
    mark.cover = {Cover::Mixed};
  mark.split |= mark.varies & splits;
  mark.varies &= ~splits;
  mark.due &= ~splits;
  return mark;
}

BlockSplits::BlockSplits(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {
  for (const Param &param : plan_.params)
    if (Axes axes = splitAxesOf(plan_, param); param.block >= 0 && axes != 0) {
      axes_.resize(plan_.blocks.size());
      axes_[static_cast<size_t>(param.block)] |= axes;
    }
}

Mark BlockSplits::asBlock(Mark mark, int32_t block) {
  if (axes_.empty() || block < 0 || mark.block >= 0)
    return mark;
  Axes common = of(block);
  for (const Param *param : report_.paramsOf(block))
    common &= splitAxesOf(plan_, *param);
  mark = withSplits(mark, common);
  mark.block = block;
  return mark;
}

Mark BlockSplits::packed(const Mark &mark, int32_t block, size_t k) {
  if (axes_.empty() || block < 0 || k >= report_.paramsOf(block).size())
    return mark;
  return withSplits(mark, splitAxesOf(plan_, *report_.paramsOf(block)[k]));
}

Mark BlockSplits::viewed(Mark mark, const Op &view, const std::vector<Value> &values) {
  Axes along = view.getInt(AttrKey::coef) != 0 ? axesOf(plan_, view.group) : Axes{0};
  bool moves = along != 0; // by the index of a group of one rank nothing does
  mark.varies |= along;
  int64_t numel = values[view.results[0]].type.numel();
  int64_t from = values[view.operands[0]].type.numel();
  if (mark.split == 0 || mark.block < 0 || numel == from)
    return mark;
  const Block &block = plan_.blocks[static_cast<size_t>(mark.block)];
  bool isShard = moves && partOf(block, numel).has_value();
  if (!moves && from == block.numel) {
    int64_t begin = view.getInt(AttrKey::offset);
    mark.split = 0;
    for (const Param *param : report_.paramsOf(mark.block))
      if (param->offset < begin + numel && begin < param->offset + param->type.numel())
        mark.split |= splitAxesOf(plan_, *param);
  }
  if (!isShard)
    mark.block = -1;
  return mark;
}

} // namespace shardc::plan::verifier
