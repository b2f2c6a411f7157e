#include "runtime/exec/Ranges.h"

#include <algorithm>

#include "runtime/base/Philox.h"

namespace shardc::exec {

int64_t pieceBegin(const plan::Block &block, int64_t numel, const GroupIndices &indices) {
  std::optional<plan::BlockPart> part = plan::partOf(block, numel);
  return part ? numel * indices.of(part->group) : -1;
}

std::vector<ParamPart> paramParts(const plan::Plan &plan, int32_t block, int64_t begin,
                                  int64_t numel) {
  std::vector<ParamPart> parts;
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
            [](const ParamPart &a, const ParamPart &b) { return a.begin < b.begin; });
  return parts;
}

std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, uint64_t seed,
                                             std::span<const int64_t> countOffsets) {
  std::vector<kernels::ParamRange> ranges;
  for (const ParamPart &part : paramParts(plan, block, begin, numel)) {
    const plan::Param &param = plan.params[part.param];
    kernels::ParamRange range;
    range.begin = part.begin;
    range.end = part.end;
    range.globalBegin = part.globalBegin;
    range.key = streamKey(seed, param.name);
    range.lrMult = static_cast<float>(param.lrMult);
    range.wdMult = static_cast<float>(param.wdMult);
    range.countOffset = countOffsets.empty() ? 0 : countOffsets[part.param];
    switch (param.init) {
    case plan::InitKind::Zeros:
      range.init = kernels::ParamRange::Zeros;
      break;
    case plan::InitKind::Ones:
      range.init = kernels::ParamRange::Ones;
      break;
    case plan::InitKind::Normal:
      range.init = kernels::ParamRange::Normal;
      break;
    }
    range.initStd = param.initStd;
    ranges.push_back(range);
  }
  return ranges;
}

std::vector<ElementRange> validElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                        int64_t numel) {
  std::vector<ElementRange> ranges;
  for (const ParamPart &part : paramParts(plan, block, begin, numel))
    if (!ranges.empty() && ranges.back().end == part.begin)
      ranges.back().end = part.end;
    else
      ranges.push_back({part.begin, part.end});
  return ranges;
}

int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel) {
  auto fits = [&](int64_t block) {
    return block >= 0 && block < static_cast<int64_t>(plan.blocks.size()) &&
           plan::partOf(plan.blocks[block], numel).has_value();
  };
  int64_t named = op.getInt(plan::AttrKey::block);
  if (plan::opInfo(op.kind).block == plan::BlockUse::List) // consecutive blocks
    named = std::max<int64_t>(named, 0) + static_cast<int64_t>(operandIndex);
  if (named >= 0)
    return fits(named) ? static_cast<int32_t>(named) : -1;
  int32_t found = -1;
  bool mayHold = plan::opInfo(op.kind).keepsBlock() && op.unit >= 0;
  for (size_t b = 0; mayHold && b < plan.blocks.size(); ++b)
    if (plan.blocks[b].unit == op.unit && fits(static_cast<int64_t>(b))) {
      if (found >= 0)
        return -1;
      found = static_cast<int32_t>(b);
    }
  return found;
}

} // namespace shardc::exec
