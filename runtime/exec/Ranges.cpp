// Works in element offsets. A block is the concatenation of its parameters, a piece is the part of
// a block that a rank holds, and a range is the part of one parameter in a piece.
#include "runtime/exec/Ranges.h"

#include <algorithm>

#include "runtime/base/Philox.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::exec {

int64_t pieceBegin(const plan::Block &block, int64_t numel, const GroupIndices &indices) {
  std::optional<plan::BlockPart> part = plan::partOf(block, numel);
  return part ? numel * indices.of(part->group) : -1;
}

/// The result is sorted by position in the piece. Padding between parameters belongs to no part.
std::vector<ParamPiece> paramPieces(const plan::Plan &plan, int32_t block, int64_t begin,
                                    int64_t numel) {
  std::vector<ParamPiece> parts;
  for (uint32_t p = 0; p < plan.params.size(); ++p) {
    const plan::Param &param = plan.params[p];
    if (param.block != block)
      continue;
    int64_t from = std::max(param.offset, begin);
    int64_t to = std::min(param.offset + param.type.numel(), begin + numel);
    if (from < to)
      parts.push_back({p, from - begin, to - begin, from - param.offset});
  }
  std::sort(parts.begin(), parts.end(),
            [](const ParamPiece &a, const ParamPiece &b) { return a.begin < b.begin; });
  return parts;
}

namespace {

/// How ranks divide a dimension: the rank's index, the number of ranks, and the number of equal
/// parts that are each divided.
struct Cut {
  int64_t index = 0, ranks = 1, parts = 1;

  static Cut of(const plan::Plan &plan, const plan::Param &param, uint8_t dim,
                const GroupIndices &indices) {
    for (const plan::Split &split : param.splits)
      if (split.dim == dim)
        return {indices.of(split.group), plan.groupSize(split.group), split.parts};
    return {};
  }
};

/// Maps rows of this rank's part of a parameter to boxes of its whole tensors, according to the
/// parameter's splits.
class BoxMaker {
public:
  BoxMaker(const plan::Plan &plan, const plan::Param &param, const GroupIndices &indices)
      : param_(param), first_(param.rowDim()), rows_(Cut::of(plan, param, first_, indices)),
        rowCount_(param.type.shape[first_]), partRows_(rowCount_ / rows_.parts) {
    box_.rank = static_cast<uint8_t>(param.type.rank - first_);
    if (param.isStacked()) {
      Cut stack = Cut::of(plan, param, 0, indices);
      firstTensor_ = stack.index * param.type.shape[0];
    }
    const plan::Type &whole = param.wholeType();
    for (uint8_t d = first_ + 1; d < param.type.rank; ++d) {
      Cut cut = Cut::of(plan, param, d, indices);
      rowSize_ *= whole.shape[d];
      inRow_ = inRow_ * whole.shape[d] + cut.index * param.type.shape[d];
      box_.offset[d - first_] = cut.index * param.type.shape[d];
      box_.shape[d - first_] = param.type.shape[d];
      box_.columns *= param.type.shape[d];
      box_.stride *= whole.shape[d];
      if (cut.ranks == 1)
        continue;
      box_.columns = param.type.shape[d]; // elements within the split dimension are contiguous
      box_.stride = whole.shape[d];
      isCut_ = true;
    }
    if (!isCut_)
      box_.columns = box_.stride = 0;
  }

  /// The box that begins with row `row` of this rank and ends at row `end` or earlier.
  TensorBox from(int64_t row, int64_t end) const {
    TensorBox box = box_;
    int64_t inTensor = row % rowCount_, part = inTensor / partRows_;
    int64_t tensorBegin = row - inTensor;
    box.shape[0] = std::min(end, tensorBegin + (part + 1) * partRows_) - row;
    box.offset[0] = (part * rows_.ranks + rows_.index) * partRows_ + inTensor % partRows_;
    box.number = param_.isStacked() ? firstTensor_ + row / rowCount_ : 0;
    box.globalBegin = box.offset[0] * rowSize_ + inRow_;
    return box;
  }

private:
  const plan::Param &param_;
  uint8_t first_; ///< the dimension that counts rows
  Cut rows_;
  int64_t rowCount_, partRows_; ///< rows of one tensor on this rank
  int64_t firstTensor_ = 0;
  int64_t rowSize_ = 1, inRow_ = 0; ///< elements: of a whole row, before this rank's part
  bool isCut_ = false;
  TensorBox box_{.columns = 1, .stride = 1};
};

} // namespace

/// Cuts a part into boxes of whole rows, since only these are contiguous both in the piece and in a
/// whole tensor. A box ends where a stacked tensor ends, or where one of the equal parts ends that
/// tensor-parallel ranks divide separately.
std::vector<TensorBox> tensorBoxes(const plan::Plan &plan, const ParamPiece &part,
                                   const GroupIndices &indices) {
  const plan::Param &param = plan.params[part.param];
  BoxMaker producer(plan, param, indices);
  std::vector<TensorBox> boxes;
  int64_t size = param.rowSize(), begin = part.begin;
  int64_t row = part.globalBegin / size, end = (part.globalBegin + part.end - part.begin) / size;
  while (row < end) {
    TensorBox box = producer.from(row, end);
    box.param = part.param;
    box.begin = begin;
    box.end = begin += box.shape[0] * size;
    row += box.shape[0];
    boxes.push_back(box);
  }
  return boxes;
}

bool isCounted(const plan::Param &param, const GroupIndices &indices) {
  return std::ranges::all_of(param.copies, [&](int16_t group) { return indices.of(group) == 0; });
}

namespace {

/// Sets how tensor-parallel ranks divide the last two dimensions of the parameter, and which part
/// this rank has.
void setParts(const plan::Plan &plan, const plan::Param &param, const GroupIndices &indices,
              kernels::ParamRange &range) {
  for (const plan::Split &split : param.splits) {
    if (split.dim < param.rowDim())
      continue;
    range.parts = static_cast<int32_t>(plan.groupSize(split.group));
    range.part = static_cast<int32_t>(indices.of(split.group));
    range.cutsColumns = split.dim > param.rowDim();
  }
}

/// The range of a tensor, without its location in the shard.
kernels::ParamRange rangeOf(const plan::Plan &plan, size_t index, const RangeContext &context,
                            int64_t number) {
  const plan::Param &param = plan.params[index];
  kernels::ParamRange range;
  range.key = streamKey(context.seed, param.tensorName(number));
  range.lrMult = static_cast<float>(param.lrMult);
  range.wdMult = static_cast<float>(param.wdMult);
  range.isDecoupled = param.isDecoupled;
  range.countOffset = context.countOffsets.empty() ? 0 : context.countOffsets[index];
  range.number = plan::numberOfScale(plan, index) + number;
  range.initStd = param.initStd;
  switch (param.init) {
  case plan::InitKind::Zeros:
    range.init = kernels::ParamRange::Zeros;
    break;
  case plan::InitKind::Ones:
    range.init = kernels::ParamRange::Constant;
    range.initStd = 1;
    break;
  case plan::InitKind::Constant:
    range.init = kernels::ParamRange::Constant;
    break;
  case plan::InitKind::Normal:
    range.init = kernels::ParamRange::Normal;
    break;
  case plan::InitKind::LogUniform:
    range.init = kernels::ParamRange::LogUniform;
    break;
  case plan::InitKind::Uniform:
    range.init = kernels::ParamRange::Uniform;
    break;
  case plan::InitKind::StepBias:
    range.init = kernels::ParamRange::StepBias;
    break;
  }
  range.row = param.rowSize();
  for (size_t i = 0; i < param.turns.size(); ++i)
    range.turns[i] = static_cast<int32_t>(param.turns[i] != 0 ? param.turns[i]
                                                              : param.type.shape[param.rowDim()] /
                                                                    std::ssize(param.turns));
  return range;
}

} // namespace

/// A parameter that is neither split among tensor-parallel ranks nor stacked is one range.
/// Otherwise each box is a range, which keeps its location in the whole tensor, so that random
/// initial values do not depend on the layout.
std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, const GroupIndices &indices,
                                             const RangeContext &context) {
  std::vector<kernels::ParamRange> ranges;
  for (const ParamPiece &part : paramPieces(plan, block, begin, numel)) {
    const plan::Param &param = plan.params[part.param];
    if (context.isNorm && !isCounted(param, indices))
      continue;
    if (param.splits.empty() && !param.isStacked()) {
      kernels::ParamRange &range = ranges.emplace_back(rangeOf(plan, part.param, context, 0));
      range.begin = part.begin, range.end = part.end;
      range.globalBegin = part.globalBegin;
      range.inBlock = begin + part.begin;
      continue;
    }
    for (const TensorBox &box : tensorBoxes(plan, part, indices)) {
      kernels::ParamRange &range =
          ranges.emplace_back(rangeOf(plan, part.param, context, box.number));
      range.begin = box.begin, range.end = box.end;
      range.inBlock = begin + box.begin;
      setParts(plan, param, indices, range);
      range.globalBegin = box.globalBegin;
      range.columns = box.columns, range.stride = box.stride;
    }
  }
  return ranges;
}

/// Merges adjacent ranges, so that the kernel for norms reads few of them.
std::vector<ElementRange> countedElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                          int64_t numel, const GroupIndices &indices) {
  std::vector<ElementRange> ranges;
  for (const ParamPiece &part : paramPieces(plan, block, begin, numel))
    if (!isCounted(plan.params[part.param], indices))
      continue;
    else if (!ranges.empty() && ranges.back().end == part.begin)
      ranges.back().end = part.end;
    else
      ranges.push_back({part.begin, part.end});
  return ranges;
}

/// Returns the index of the block that the op's operand is, or is a shard of, judged by its number
/// of elements; -1 if there is none. An op that names no block may work on the block of its unit,
/// if exactly one block of the unit fits.
int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel) {
  auto fits = [&](int64_t block) {
    return block >= 0 && block < static_cast<int64_t>(plan.blocks.size()) &&
           plan::partOf(plan.blocks[block], numel).has_value();
  };
  int64_t named = op.getInt(plan::AttrKey::block);
  if (plan::opInfo(op).block == plan::BlockUse::List)
    named = operandIndex < op.blocks.size() ? op.blocks[operandIndex].block : -1;
  if (named >= 0)
    return fits(named) ? static_cast<int32_t>(named) : -1;
  int32_t found = -1;
  bool mayHold = plan::opInfo(op).keepsBlock() && op.unit >= 0;
  for (size_t b = 0; mayHold && b < plan.blocks.size(); ++b)
    if (plan.blocks[b].unit == op.unit && fits(static_cast<int64_t>(b))) {
      if (found >= 0)
        return -1;
      found = static_cast<int32_t>(b);
    }
  return found;
}

} // namespace shardc::exec
